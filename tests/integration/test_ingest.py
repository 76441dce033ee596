"""Observations into PostgreSQL: exactly once, durable or not at all, and what they set off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import msgspec
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import Ack
from app.base.errors import InvalidRequest
from app.db.base.listen import WAKE_CHANNEL, conninfo
from app.db.base.observation_rows import place
from app.db.fleet import ingest as ingesting
from app.db.fleet.agent_boots import NEW_BOOTS_PER_HOUR
from app.db.fleet.reportable import LoadedReportable, refresh
from app.db.postgres_store import PostgresStore
from app.db.workloads import services
from app.store.event_limits import EventLimits
from app.store.reportable import Ingested
from solvers.types.state import ClusterState, Demand
from tests.integration.fleet import (
    START,
    make_gpu_reading,
    make_observation,
    make_record,
    make_service_reading,
    observe,
    on_fleet,
    push,
    scalar,
)
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


@on_fleet()
async def test_a_replayed_batch_changes_nothing_and_is_acknowledged(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    batch = tuple(
        make_observation(
            n, START + timedelta(seconds=2 * n), services=[make_service_reading()]
        )
        for n in (1, 2, 3)
    )
    late = START + timedelta(seconds=10)
    assert await store.ingest(batch, late) == Ingested(acknowledged={("n1", "b1"): 3})
    # The same numbers again, in another order, and one that claims another window.
    again = (batch[2], batch[0], make_observation(2, START), batch[0])
    assert await store.ingest(again, late) == Ingested(acknowledged={("n1", "b1"): 3})
    assert await scalar(engine, "SELECT count(*) FROM observation") == 3
    assert await scalar(engine, "SELECT count(*) FROM service_observation") == 3
    assert await scalar(engine, "SELECT sum(arrivals) FROM service_hour") == 30
    assert await scalar(engine, "SELECT sum(arrivals) FROM service_window") == 30


@on_fleet()
async def test_an_observation_that_was_overtaken_is_still_taken_once(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    reading = make_service_reading()
    first, second = (
        make_observation(n, START + timedelta(seconds=2 * n), services=[reading])
        for n in (1, 2)
    )
    now = START + timedelta(seconds=9)
    for observation in (second, first, first):
        await store.ingest((observation,), now)
    assert await scalar(engine, "SELECT sum(arrivals) FROM service_hour") == 20
    # What the agent says of itself is the word of the newest window.
    end = await scalar(engine, "SELECT last_window_end FROM node")
    assert end == START + timedelta(seconds=4)


@on_fleet()
async def test_a_batch_that_fails_leaves_nothing_behind(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    good = make_observation(1, START, services=[make_service_reading()])
    # Built past the wire's checks, as a fault in the middle of the transaction: the schema refuses the energy.
    reading = make_gpu_reading(energy_j=-1.0)
    bad = make_observation(2, START, gpus=[reading])
    with pytest.raises(InvalidRequest, match="cannot store this"):
        await store.ingest((good, bad), START)
    assert await scalar(engine, "SELECT count(*) FROM observation") == 0
    assert await store.ingest((good,), START) == Ingested(
        acknowledged={("n1", "b1"): 1}
    )


@on_fleet()
async def test_a_connection_that_dies_before_the_commit_loses_no_acknowledged_observation(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    observation = make_observation(1, START, services=[make_service_reading()])
    await observe(store, 1, START, boot="b0")
    async with engine.connect() as connection:
        known = await refresh(connection, LoadedReportable(), START)
        written = [place(observation, START)]
        with EventLimits().transaction(START) as limited:
            await ingesting.ingest(
                connection, written, START, known.reportable, limited
            )
        pid = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
        with psycopg.connect(conninfo(database), autocommit=True) as other:
            limit_ms = int(1000 * PATIENCE_S)
            other.execute("SELECT pg_terminate_backend(%s, %s)", (pid, limit_ms))
        await connection.invalidate()
    assert await scalar(engine, "SELECT count(*) FROM service_observation") == 0
    # The agent got no acknowledgement, so it sends again.
    assert await store.ingest((observation,), START) == Ingested(
        acknowledged={("n1", "b1"): 1}
    )
    assert await scalar(engine, "SELECT sum(arrivals) FROM service_hour") == 10


@on_fleet()
async def test_unknown_nodes_are_named_and_the_others_taken(
    store: PostgresStore,
) -> None:
    batch = (make_observation(1, START, node="stranger"), make_observation(1, START))
    assert await store.ingest(batch, START) == Ingested(
        acknowledged={("n1", "b1"): 1}, unknown_nodes=("stranger",)
    )


@on_fleet()
async def test_a_clock_that_is_wrong_is_measured_and_its_windows_are_moved(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await store.ingest((make_observation(1, START + timedelta(days=400)),), START)
    assert (
        await scalar(engine, "SELECT clock_skew_s FROM report.node_health")
        == 400 * 86400.0
    )
    assert await scalar(
        engine, "SELECT max(window_start) FROM observation"
    ) == START - timedelta(seconds=2)
    await store.ingest((make_observation(2, START.replace(year=1999)),), START)
    assert await scalar(
        engine, "SELECT min(window_start) FROM observation"
    ) == START - timedelta(days=7)


@on_fleet()
async def test_many_writers_at_once_neither_deadlock_nor_lose_counts(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    others = [PostgresStore(engine) for _ in range(3)]
    readings = [make_service_reading(name) for name in ("chat", "a", "b", "c")]
    batches = [
        tuple(
            make_observation(
                n,
                START,
                boot=f"b{n % 3}",
                services=readings if n % 2 else readings[::-1],
            )
            for n in range(first, first + 6)
        )
        for first in (1, 3, 5, 7, 2, 4, 6, 8)
    ]
    await asyncio.gather(
        *(
            (store, *others)[index % 4].ingest(batch, START)
            for index, batch in enumerate(batches)
        )
    )
    # Numbers 1 to 13, each once, each with 10 arrivals.
    assert await scalar(engine, "SELECT count(*) FROM observation") == 13
    assert await scalar(engine, "SELECT min(arrivals) FROM service_hour") == 130
    assert await scalar(engine, "SELECT max(arrivals) FROM service_hour") == 130


@asynccontextmanager
async def heard(
    engine: AsyncEngine, database: str, channel: str = WAKE_CHANNEL
) -> AsyncIterator[list[str]]:
    """The notifications on a channel meanwhile, which are there at the end."""
    notices: list[str] = []
    async with await psycopg.AsyncConnection.connect(
        conninfo(database), autocommit=True
    ) as connection:
        await connection.execute(f"LISTEN {channel}".encode())
        yield notices
        # Delivered in the order of the commits: after this one nothing else is on its way.
        async with engine.begin() as other:
            await other.execute(text(f"NOTIFY {channel}, 'that is all'"))
        async for notice in connection.notifies():
            if notice.payload == "that is all":
                break
            notices.append(notice.payload)


DEGRADED = Demand(
    service="chat", arrival_rate_rps=5.0, method="degraded", interval_rps=(6.5, 9.5)
)


@pytest.mark.parametrize(
    ("planned", "arrivals", "wakes"),
    [
        # Planned: 10 rps, so 10 in a window of 1 s; 10 + 4 · √10 = 22.6.
        (None, 22, False),
        (None, 23, True),
        # Planned: 5 rps for a budget's sake, of up to 9.5 that were foreseen; 9.5 + 4 · √9.5 = 21.8.
        (DEGRADED, 21, False),
        (DEGRADED, 22, True),
    ],
)
@on_fleet()
async def test_a_notable_rise_of_the_arrival_rate_over_what_was_foreseen_wakes_the_loop(
    store: PostgresStore,
    engine: AsyncEngine,
    database: str,
    planned: Demand | None,
    arrivals: int,
    wakes: bool,
) -> None:
    if planned is None:
        await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
    else:
        record = make_record(START, None, 1)
        await store.record_plan(replace(record, state="kept", demands=(planned,)))
    later = START + timedelta(seconds=8)
    reading = make_service_reading(arrivals=arrivals)
    seen = make_observation(1, later, window_s=1.0, services=[reading])
    async with heard(engine, database) as notices:
        await store.ingest((seen,), later)
    assert ("arrival rate" in notices) is wakes


@on_fleet()
async def test_requests_for_a_service_that_is_gone_or_never_was_wake_nobody(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    async with engine.begin() as connection:
        await services.remove(connection, "chat", at=START)
    names = ("chat", "nobody")
    readings = [make_service_reading(name, arrivals=1000) for name in names]
    async with heard(engine, database) as notices:
        await observe(store, 1, START, services=readings)
    assert "arrival rate" not in notices


@on_fleet()
async def test_a_gpu_that_fails_wakes_the_loop_and_makes_older_plans_too_old(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    async def fails(sequence: int) -> ClusterState:
        end = START + timedelta(seconds=2 * sequence)
        gpus = [make_gpu_reading(1, healthy=False)]
        await observe(store, sequence, end, gpus=gpus)
        return (await store.load_snapshot(START)).state

    before = (await store.load_snapshot(START)).state
    async with heard(engine, database) as notices:
        after = await fails(1)
        assert [gpu.healthy for gpu in after.gpus] == [True, False]
        assert after.catalogue_revision > before.catalogue_revision
        assert (await fails(2)).catalogue_revision == after.catalogue_revision
    assert notices == ["gpu"]


@on_fleet()
async def test_a_node_that_follows_a_lost_generation_wakes_the_loop(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    seen = msgspec.structs.replace(make_observation(1, START), generation=150)
    async with heard(engine, database) as notices:
        await store.ingest((seen,), START)
    assert notices == ["restored"]


@on_fleet()
async def test_a_gpu_that_fails_and_comes_back_is_an_event_each_with_what_its_node_says(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    said = (("GPU 10: strange", "could not read GPU 1: it fell off the bus"), (), ())
    for sequence, (problems, healthy) in enumerate(
        zip(said, (False, False, True), strict=True), 1
    ):
        at = START + timedelta(seconds=2 * sequence)
        told = make_observation(
            sequence, at, gpus=[make_gpu_reading(1, healthy=healthy)]
        )
        await store.ingest((msgspec.structs.replace(told, problems=problems),), at)
    # The other one fails without a word of it.
    at = START + timedelta(seconds=8)
    await observe(store, 4, at, gpus=[make_gpu_reading(0, healthy=False)])
    async with engine.connect() as connection:
        query = "SELECT kind, subject, actor, reason FROM event WHERE kind LIKE 'Gpu%' ORDER BY id"
        lines = [tuple(row) for row in await connection.execute(text(query))]
    assert lines == [
        (
            "GpuFailed",
            "node/n1",
            "node/n1",
            "could not read GPU 1: it fell off the bus",
        ),
        ("GpuRecovered", "node/n1", "node/n1", "GPU 1 accepts work again"),
        ("GpuFailed", "node/n1", "node/n1", "GPU 0: no reason given"),
    ]


@on_fleet()
async def test_a_push_tells_the_agents_and_their_answer_is_kept(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    async with heard(engine, database, "plimsoll_command") as notices:
        await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
        ack = Ack(generation=1, status="refused", detail="no MPS")
        seen = msgspec.structs.replace(
            make_observation(1, START), acks=(ack,), generation=1
        )
        await store.ingest((seen,), START)
    assert notices == ["1"]
    query = text("SELECT last_ack, last_ack_detail FROM report.node_health")
    async with engine.connect() as connection:
        row = (await connection.execute(query)).one()
    assert tuple(row) == ("refused", "no MPS")


@on_fleet()
async def test_the_schema_refuses_nan_where_the_wire_was_passed_by(
    store: PostgresStore,
) -> None:
    with pytest.raises(InvalidRequest, match="cannot store this"):
        await observe(store, 1, START, gpus=[make_gpu_reading(energy_j=float("nan"))])


@on_fleet()
async def test_a_start_too_many_is_refused_without_another_commit_for_its_neighbours(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    known = make_observation(1, START)
    strange = [
        make_observation(1, START, boot=f"s{number}")
        for number in range(NEW_BOOTS_PER_HOUR + 5)
    ]
    taken = await store.ingest((known, *strange), START)
    assert len(taken.refused_boots) == 6
    assert taken.acknowledged["n1", "b1"] == 1
    rows = await scalar(engine, "SELECT count(*) FROM agent_boot")
    assert rows == NEW_BOOTS_PER_HOUR
