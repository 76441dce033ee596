"""What the processes do that fault tests kill; importable by name, because each is started as a new process.

Every body touches the file `reached` where it stops for ever, so that the test knows when to kill it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import NodeCommand
from app.base.clock import WallClock
from app.db.base.engine import make_engine
from app.db.base.leader import Leader
from app.db.base.listen import WAKE_CHANNEL, Listener
from app.db.decisions import targets
from app.db.postgres_store import PostgresStore
from app.loop.controller import Controller
from app.loop.tick import Loop
from app.solver.inline import InlineSolver
from app.solver.process import PlanAnswer, PlanRequest, Solver, SolverWorker, run_policy
from app.store.store import AuditEvent, PlanRecord
from solvers.types.plan import BoundPlan
from tests.app.loop.worker_bodies import nothing

PERIOD_S = 0.5


async def stop_for_ever(reached: Path) -> None:
    await asyncio.to_thread(reached.touch)
    await asyncio.Event().wait()


class StoppingStore(PostgresStore):
    """A store that never comes back from one step."""

    def __init__(
        self, engine: AsyncEngine, leader: Leader, *, step: str, reached: Path
    ) -> None:
        super().__init__(engine, epoch=lambda: leader.epoch)
        self._leader = leader
        self._own_engine = engine
        self._step = step
        self._reached = reached

    async def record_plan(self, record: PlanRecord) -> int:
        await self._stop_at("before the plan is written")
        plan_id = await super().record_plan(record)
        await self._stop_at("after the plan is written")
        return plan_id

    async def push_target(
        self,
        plan_id: int,
        bound: BoundPlan,
        commands: tuple[NodeCommand, ...],
        at: datetime,
        *,
        line: AuditEvent | None = None,
    ) -> bool:
        await self._stop_at("before the push")
        if self._step == "before the push commits":
            async with self._own_engine.begin() as connection:
                epoch = self._leader.epoch
                await targets.push(
                    connection, plan_id, bound, commands, at, epoch=epoch
                )
                await stop_for_ever(self._reached)
        return await super().push_target(plan_id, bound, commands, at, line=line)

    async def _stop_at(self, step: str) -> None:
        if step == self._step:
            await stop_for_ever(self._reached)


def hang(request: PlanRequest) -> PlanAnswer:
    """A solve that never ends; the file to touch is the policy's memory."""
    Path(str(request.memory)).touch()
    while True:
        time.sleep(3600.0)


def hang_once(request: PlanRequest) -> PlanAnswer:
    """The first solve never ends, later ones are the policy's own."""
    if Path(str(request.memory)).exists():
        return run_policy(replace(request, memory=None))
    return hang(request)


def control(url: str, holder: str, step: str, reached: Path) -> None:
    """A controller that leads and ticks until it reaches `step`; with an empty one it goes on for ever."""
    solver: Solver = (
        SolverWorker(run=hang, prepare=nothing)
        if step == "during the solve"
        else InlineSolver()
    )
    asyncio.run(
        _control(
            url,
            holder,
            solver,
            lambda engine, leader: StoppingStore(
                engine, leader, step=step, reached=reached
            ),
        )
    )


async def _control(
    url: str,
    holder: str,
    solver: Solver,
    make_store: Callable[[AsyncEngine, Leader], PostgresStore],
) -> None:
    engine = make_engine(url, pool_size=4, application=holder)
    leader = Leader(engine, holder=holder)
    controller = Controller(
        Loop(store=make_store(engine, leader), solver=solver, clock=WallClock()),
        leader,
        Listener(url, WAKE_CHANNEL),
        period_s=_period_s,
        maintain=_maintain,
    )
    await controller.run()


async def _period_s() -> float:
    return PERIOD_S


def _maintain() -> Awaitable[None]:
    return asyncio.sleep(0)
