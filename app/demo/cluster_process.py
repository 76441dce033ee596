"""The demo's cluster in a process of its own: control loop, agents and simulated GPUs on a clock that jumps.

It is the closed loop of the simulations and of `python -m bench demo`, step by step, and solvers count work units: a
seed gives one result, whatever else the machine does. What differs is where it is kept: in PostgreSQL, where the API
and the dashboard show it while it runs, and where it follows what people change.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from typing import TypeAlias

from agents.base.protocol import NodeCommand, Observation
from agents.sim.queues.tally import ServiceTotals
from agents.sim.truth.truth import load_truth
from app.base.clock import CatchingUpClock
from app.base.errors import Conflict
from app.base.logs import configure_logs
from app.base.settings import Settings
from app.db.base.engine import make_engine
from app.db.base.leader import Leader
from app.db.base.listen import noted_wakes
from app.db.base.transaction import Engine
from app.db.postgres_store import PostgresStore
from app.demo.feed import DemoFeed, Pushed
from app.demo.scenario import DURATION_S, KEPT_S, demo_cluster
from app.serve.child_process import send, stop_when_closed
from app.serve.plane import on_stop_signals
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan
from app.solver.inline import InlineSolver
from app.store.ingest_queue import IngestQueue
from app.store.store import AuditEvent
from solvers.types.plan import BoundPlan

CONNECTIONS = 4
"""The lead holds one of them."""
FRAME_S = 0.5
"""On the wall, between two pictures."""
MINUTE_S = 60


_Opened: TypeAlias = tuple[ClosedLoop, DemoFeed, Callable[[], Awaitable[bool]]]
"""The loop, what the view knows of it, and whether somebody woke it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTotals:
    """What came of the load up to a time, with which a minute of it ends."""

    totals: tuple[ServiceTotals, ...]
    at: datetime
    migration_usd: float
    """The GPUs that plans had left while a replica served on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoBody:
    """What the process runs. Up the pipe it sends every `TickOutcome`, a `Frame` now and then, and
    `LoadTotals` once: where the load ends that the report is of."""

    settings: Settings
    url: str
    clock: CatchingUpClock
    """Moved here alone."""
    seed: int
    duration_s: float
    limit_s: float
    """Wall seconds for it; the load that the report is of ends then, with a minute of it."""
    keep: bool
    """Go on after the load that the report is of."""

    def __call__(self, pipe: Connection) -> None:
        """Until the load is over, a signal comes, or the other side of the pipe is gone."""
        configure_logs(self.settings)
        asyncio.run(self._run(pipe))

    async def _run(self, pipe: Connection) -> None:
        stop = asyncio.Event()
        on_stop_signals(stop.set)
        stop_when_closed(pipe, stop.set)
        load_s = KEPT_S if self.keep else DURATION_S
        plan = demo_cluster("joint", self.seed, load_s=load_s)
        async with self._opened(plan) as (closed, feed, are_woken):
            show = _Show(pipe, feed, self.clock, self.limit_s)
            while not stop.is_set() and (self.keep or not show.is_over):
                # As `bench.closed_runs` does it: agents first, so that a tick knows the newest rates.
                await closed.pass_time(plan.agent_period_s)
                await closed.step()
                feed.look(self.clock.now())
                if await are_woken():
                    closed.wake()
                outcome = await closed.tick_if_due()
                feed.look(self.clock.now())
                if outcome is not None:
                    send(pipe, outcome)
                show.note_time()

    @asynccontextmanager
    async def _opened(self, plan: ClusterPlan) -> AsyncIterator[_Opened]:
        """Raises Conflict where another loop leads."""
        engine = make_engine(
            self.url, pool_size=CONNECTIONS, application="plimsoll-demo"
        )
        leader = Leader(engine, holder=f"{socket.gethostname()}:{os.getpid()}")
        pushed: Pushed = []
        store = DemoStore(engine, lambda: leader.epoch, pushed)
        queue = IngestQueue(store, self.clock, limit=len(plan.nodes))

        async def ingest(observation: Observation) -> int:
            feed.note_power(observation)
            return await queue.add(observation)

        try:
            if not await leader.acquire():
                raise Conflict("another control loop leads in the demo's database")
            closed = ClosedLoop(
                plan,
                world=load_truth(),
                clock=self.clock,
                solver=InlineSolver(),
                # Of no effect here, where `joint` decides; with it the loop is that of the benchmark to the letter.
                promises_may_break=True,
                store=store,
                ingest=ingest,
            )
            feed = DemoFeed(
                cluster=closed.cluster,
                services=plan.services,
                gpu_types=plan.gpu_types,
                duration_s=self.duration_s,
                start=self.clock.now(),
                pushed=pushed,
            )
            queue.start()
            async with noted_wakes(self.url) as are_woken:
                yield closed, feed, are_woken
            await queue.stop()
        finally:
            await leader.release()
            await engine.dispose()


class DemoStore(PostgresStore):
    """PostgreSQL, which remembers every target for the view."""

    def __init__(
        self, engine: Engine, epoch: Callable[[], int], pushed: Pushed
    ) -> None:
        super().__init__(engine, epoch=epoch)
        self._pushed = pushed

    async def push_target(
        self,
        plan_id: int,
        bound: BoundPlan,
        commands: tuple[NodeCommand, ...],
        at: datetime,
        *,
        line: AuditEvent | None = None,
    ) -> bool:
        """As everywhere."""
        is_pushed = await super().push_target(plan_id, bound, commands, at, line=line)
        if is_pushed:
            self._pushed.append((at, bound))
        return is_pushed


class _Show:
    """Pictures for the view, and the end."""

    def __init__(
        self, pipe: Connection, feed: DemoFeed, clock: CatchingUpClock, limit_s: float
    ) -> None:
        self._pipe = pipe
        self._feed = feed
        self._clock = clock
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._next_s = 0.0
        self.is_over = False
        """Whether all of the load has come that the report is of."""

    def note_time(self) -> None:
        """Send what is due."""
        now = self._clock.now()
        trace_s = (now - self._feed.start).total_seconds()
        passed_s = time.monotonic() - self._began_s
        is_cut = passed_s >= self._limit_s and round(trace_s) % MINUTE_S == 0
        ends_now = not self.is_over and (trace_s >= self._feed.duration_s or is_cut)
        if ends_now or passed_s >= self._next_s:
            self._next_s = passed_s + FRAME_S
            send(self._pipe, self._feed.frame(now, speed=trace_s / passed_s))
        if ends_now:
            self.is_over = True
            totals, usd = self._feed.cluster.totals(), self._feed.migration_usd(now)
            send(self._pipe, LoadTotals(totals=totals, at=now, migration_usd=usd))
