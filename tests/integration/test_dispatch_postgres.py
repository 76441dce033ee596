"""Rounds of the dispatcher on PostgreSQL: lost to another planner, held for a person, refused by the checker."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.base.clock import ManualControlClock
from app.db.decisions import approval, policies
from app.db.postgres_store import PostgresStore
from app.db.predictions import profiles
from app.db.workloads import tasks
from app.dispatch.dispatcher import JobDispatcher
from app.store.store import PlanRecord, PolicySettings, Snapshot
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import Task
from tests.integration.fleet import (
    START,
    make_bound,
    make_observation,
    make_record,
    push,
    with_fleet,
)

pytestmark = pytest.mark.integration

Play = Callable[["Place"], Awaitable[None]]


class OvertakenStore(PostgresStore):
    """Another planner may push while a round writes its plan down, once."""

    rival: Callable[[], Awaitable[object]] | None = None

    async def record_plan(self, record: PlanRecord) -> int:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()
        return await super().record_plan(record)


class Place:
    """The fleet of two T4s under policy oltunes, its first target, and a dispatcher."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.clock = ManualControlClock()
        self.clock.advance((START - self.clock.now()).total_seconds())
        self.store = OvertakenStore(engine)
        self.dispatcher = JobDispatcher(
            store=self.store, clock=self.clock, turn=asyncio.Lock()
        )
        self.sequence = 0

    async def begin(self, settings: PolicySettings) -> None:
        async with self.engine.begin() as connection:
            await policies.save(connection, settings, at=self.clock.now(), actor="test")
        await push(self.store, self.clock.now(), {"n1/gpu-0": [("chat", 60.0, 2048.0)]})

    async def submit(self, name: str, network: str = "resnet50") -> None:
        task = Task(
            name=name,
            kind="offline",
            network=network,
            batch=8,
            iterations=100,
            weight=0.75,
        )
        async with self.engine.begin() as connection:
            await tasks.save(
                connection,
                tasks.TaskSubmission(task=task),
                at=self.clock.now(),
                actor="test",
            )

    async def round(self) -> bool:
        self.clock.advance(1.0)
        self.sequence += 1
        await self.store.ingest(
            (make_observation(self.sequence, self.clock.now()),), self.clock.now()
        )
        return await self.dispatcher.round()

    async def snapshot(self) -> Snapshot:
        return await self.store.load_snapshot(self.clock.now())

    async def places(self) -> dict[str, str]:
        """GPU by job."""
        target = (await self.snapshot()).target
        assert target is not None
        return {task.name: gpu.id for gpu in target.gpus for task in gpu.tasks}


def play(database: str, scenes: Play, settings: PolicySettings | None = None) -> None:
    async def run(_: PostgresStore, engine: AsyncEngine) -> None:
        place = Place(engine)
        await place.begin(settings or PolicySettings(policy="oltunes"))
        await scenes(place)

    with_fleet(database, run)


def test_a_job_whose_push_was_lost_starts_in_the_next_round(database: str) -> None:
    async def scenes(place: Place) -> None:
        await place.submit("a")
        place.store.rival = lambda: push(
            place.store, place.clock.now(), {"n1/gpu-0": [("chat", 60.0, 2048.0)]}
        )
        assert not await place.round()
        assert await place.places() == {}
        assert place.dispatcher.memory.failures == {"a": 1}
        assert await place.round()
        # The replica leaves 40 % of the first GPU; the job has one row, of 60 %.
        assert await place.places() == {"a": "n1/gpu-1"}

    play(database, scenes)


def test_a_plan_that_waits_for_a_person_is_not_lost_to_a_job(database: str) -> None:
    async def scenes(place: Place) -> None:
        first = await proposed(place, policy="oltunes")
        assert first is not None
        await place.submit("a")
        assert not await place.round()
        now = await place.snapshot()
        assert now.proposal is not None
        # Read once: the next snapshot has the same one.
        assert (await place.snapshot()).proposal is now.proposal
        async with place.engine.begin() as connection:
            await approval.reject(connection, first)
        assert (await place.snapshot()).proposal is None
        assert await place.round()

    play(
        database,
        scenes,
        PolicySettings(policy="oltunes", approve_switch=True),
    )


def test_a_refused_job_is_told_in_the_audit_and_blocks_nobody(database: str) -> None:
    async def scenes(place: Place) -> None:
        # 10 W idle and 65 W are more than the cap of 70 W.
        row = OperatingPoint(20.0, 8, 1000.0, 1.0, 1.0, 8.0, 2048.0, 65.0, 0.1)
        hot = OperatingPoints(
            network="hot", gpu_type="T4", sensitivity=0.5, rows=(row,)
        )
        async with place.engine.begin() as connection:
            await profiles.save_network(connection, "hot", at=START)
            await profiles.save_profiles(
                connection,
                [profiles.StoredProfile(points=hot, provenance="measured")],
                at=START,
            )
        await place.submit("poison", "hot")
        for _ in range(35):
            assert not await place.round()
        await place.submit("a")
        assert await place.round()
        assert set(await place.places()) == {"a"}
        async with place.engine.begin() as connection:
            told = await connection.execute(
                text("SELECT subject FROM event WHERE kind = 'TaskRefused'")
            )
        assert list(told.scalars()) == ["task/poison"]

    play(database, scenes)


async def proposed(place: Place, *, policy: str) -> int:
    """A plan of another policy than the target's that the tick would propose."""
    snapshot = await place.snapshot()
    assert snapshot.target is not None
    bound: BoundPlan = replace(
        make_bound(snapshot.target.generation, {}), policy=policy
    )
    return await place.store.record_plan(
        make_record(snapshot.at, bound, snapshot.state.catalogue_revision)
    )
