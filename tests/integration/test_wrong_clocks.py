"""An API whose clock was wrong for a while: what it filed must not keep out what comes once the clock is right."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import Observation, ReplicaReading
from app.db.fleet import nodes
from app.db.postgres_store import PostgresStore
from app.loop.observe import silent_nodes
from solvers.types.state import GpuId
from tests.integration.fleet import (
    make_gpu_reading,
    make_observation,
    on_fleet,
    push,
)

pytestmark = pytest.mark.integration
HOUR = timedelta(hours=1)


def a_report(
    sequence: int, at: datetime, *, healthy: bool = True, replicas: int = 1
) -> Observation:
    """The report that a node sends at that time by the API's clock."""
    readings = tuple(
        ReplicaReading(
            id=f"chat-{number}",
            service="chat",
            gpu_index=0,
            state="ready",
            sm_percent=50.0,
            batch=1,
            memory_mib=100.0,
        )
        for number in range(replicas)
    )
    gpus = [make_gpu_reading(0, healthy=healthy)]
    return msgspec.structs.replace(
        make_observation(sequence, at, gpus=gpus),
        generation=sequence,
        problems=(f"problem {sequence}",),
        replicas=readings,
    )


async def a_node_that_reported_ahead(store: PostgresStore) -> datetime:
    """It reported twice under a clock one hour ahead, and never since; the present moment."""
    now = datetime.now(UTC)
    for sequence in (1, 2):
        ahead = now + HOUR + timedelta(seconds=2 * sequence)
        await store.ingest((a_report(sequence, ahead, replicas=3),), ahead)
    return now


@on_fleet()
async def test_the_first_report_under_the_right_clock_is_taken_in_full(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    now = await a_node_that_reported_ahead(store)
    await store.ingest((a_report(3, now, healthy=False),), now)
    async with engine.connect() as connection:
        row = await nodes.get(connection, "n1", now)
        gpu = await nodes.get_gpu(connection, GpuId("n1/gpu-0"))
    assert (row.observed_generation, row.problems) == (3, ("problem 3",))
    assert not gpu.healthy
    assert row.last_seen_at == now
    # A report that was overtaken undoes nothing of it.
    await store.ingest((a_report(2, now - HOUR),), now)
    async with engine.connect() as connection:
        assert (await nodes.get(connection, "n1", now)).observed_generation == 3


@pytest.mark.parametrize("reports_again", [False, True])
@on_fleet()
async def test_a_node_that_falls_silent_after_a_clock_was_ahead_counts_as_silent(
    store: PostgresStore, reports_again: bool
) -> None:
    now = await a_node_that_reported_ahead(store)
    if reports_again:
        await store.ingest((a_report(3, now),), now)
        assert silent_nodes(await store.load_snapshot(now)) == ()
    later = now + timedelta(minutes=5)
    assert silent_nodes(await store.load_snapshot(later)) == ("n1",)


@on_fleet()
async def test_a_drain_tells_the_replicas_of_the_last_report_whatever_the_clock_was_before(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    left = []
    shares = [("chat", 30.0, 100.0)] * 3
    await push(store, datetime.now(UTC), {"n1/gpu-0": shares})
    now = await a_node_that_reported_ahead(store)
    async with engine.begin() as connection:
        await nodes.set_drain(connection, "n1", until=now + HOUR)
    for sequence, replicas in ((3, 1), (4, 0)):
        at = now + timedelta(seconds=2 * sequence)
        await store.ingest((a_report(sequence, at, replicas=replicas),), at)
        async with engine.connect() as connection:
            drains = await nodes.list_drains(connection, ["n1"])
        left.append(drains["n1"].replicas_left)
    assert (left) == [1, 0]
