"""Parts of `bench.scale` besides the loop: what a batch of jobs leaves in a database, what people's questions take."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.answers.explain import explain
from app.db.decisions import plans, policies
from app.db.reports import fleet_board as board
from app.db.workloads import tasks
from app.dispatch.dispatcher import JobDispatcher
from app.loop.tick import Loop
from bench.real_store import NETWORKS
from solvers.types.state import Task

BATCHES, ROUNDS = 9, 10
DISPATCHES_JOBS = "oltunes"
_OF_PLANS = (
    "plan",
    "plan_step",
    "plan_violation",
    "plan_content",
    "demand",
    "target",
    "allocation",
    "allocation_replica",
    "allocation_task",
    "command",
    "event",
)


class Agents(Protocol):
    """All nodes."""

    async def report(self, rates_rps: Mapping[str, float]) -> float:
        """One window of every node."""

    async def follow(self, generation: int) -> None:
        """Take up what a target changed."""


async def batch_bytes(
    loop: Loop, agents: Agents, engine: AsyncEngine, rates_rps: Mapping[str, float]
) -> list[float]:
    """Bytes that stay of each of several batches of jobs, one job in each."""
    dispatcher = JobDispatcher(store=loop.store, clock=loop.clock, turn=asyncio.Lock())
    sizes: list[float] = []
    async with engine.begin() as connection:
        settings = await policies.load_current(connection)
        dispatching = replace(settings, policy=DISPATCHES_JOBS)
        await policies.save(connection, dispatching, at=loop.clock.now(), actor="bench")
    for number in range(BATCHES):
        job = Task(
            name=f"job-{number}",
            kind="offline",
            network=NETWORKS[0],
            batch=8,
            iterations=1000,
            weight=0.75,
        )
        async with engine.begin() as connection:
            submission = tasks.TaskSubmission(task=job)
            await tasks.save(connection, submission, at=loop.clock.now(), actor="bench")
        before = await _kept_bytes(engine)
        # A round may leave a job to the next one.
        for _ in range(ROUNDS):
            await agents.report(rates_rps)
            if await dispatcher.round():
                break
        else:
            raise SystemExit(f"{job.name} was not dispatched in {ROUNDS} rounds")
        sizes.append(await _kept_bytes(engine) - before)
        target = (await loop.store.load_snapshot(loop.clock.now())).target
        assert target is not None
        await agents.follow(target.generation)
    return sizes


async def _kept_bytes(engine: AsyncEngine) -> int:
    """Of everything that plans write, without indexes."""
    sums = (f"(SELECT sum(pg_column_size(t)) FROM {table} t)" for table in _OF_PLANS)
    query = "SELECT " + " + ".join(f"coalesce({each}, 0)" for each in sums)
    async with engine.connect() as connection:
        return int((await connection.execute(text(query))).scalar_one())


async def overview_s(engine: AsyncEngine, now: datetime) -> float:
    """Reading what the dashboard's first page shows: every GPU with what it carries and measures."""
    since = now - timedelta(seconds=60.0)
    began_s = time.perf_counter()
    async with engine.connect() as connection:
        await board.load_gpus(connection, since)
        await board.load_parts(connection, since)
        await board.load_gauges(connection, since)
    return time.perf_counter() - began_s


async def explain_s(engine: AsyncEngine, plan_id: int | None) -> float:
    """Reading a plan with its problem, and saying why it is so."""
    assert plan_id is not None
    began_s = time.perf_counter()
    async with engine.connect() as connection:
        row = await plans.get(connection, plan_id)
        problem = await plans.load_problem(connection, plan_id)
    explain(
        row.plan,
        row.report,
        problem=problem,
        demands=row.demands,
        violations=row.violations,
        reason=row.summary.reason,
        bound=row.bound,
    )
    return time.perf_counter() - began_s
