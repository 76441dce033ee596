"""Observations into PostgreSQL: exactly once, durable or not at all, and what they set off."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import msgspec
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import Ack, Observation
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
from solvers.types.state import Demand
from tests.integration.fleet import (
    START,
    make_gpu_reading,
    make_observation,
    make_record,
    make_service_reading,
    on_fleet,
    push,
    with_fleet,
)

pytestmark = pytest.mark.integration


async def scalar(engine: AsyncEngine, statement: str) -> object:
    async with engine.connect() as connection:
        return (await connection.execute(text(statement))).scalar_one()


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
    await store.ingest((make_observation(1, START, boot="b0"),), START)
    async with engine.connect() as connection:
        known = await refresh(connection, LoadedReportable(), START)
        written = [place(observation, START)]
        with EventLimits().transaction(START) as limited:
            await ingesting.ingest(
                connection, written, START, known.reportable, limited
            )
        pid = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
        with psycopg.connect(conninfo(database), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        await connection.invalidate()
    assert await scalar(engine, "SELECT count(*) FROM service_observation") == 0
    # The agent got no acknowledgement, so it sends again.
    assert await store.ingest((observation,), START) == Ingested(
        acknowledged={("n1", "b1"): 1}
    )
    assert await scalar(engine, "SELECT sum(arrivals) FROM service_hour") == 10


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1e13", '"2"'])
def test_impossible_numbers_do_not_pass_the_wire(value: str) -> None:
    message = msgspec.json.encode(make_observation(1, START)).decode()
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(
            message.replace('"window_s":2.0', f'"window_s":{value}'), type=Observation
        )


@on_fleet()
async def test_the_schema_refuses_nan_where_the_wire_was_passed_by(
    store: PostgresStore,
) -> None:
    with pytest.raises(InvalidRequest, match="cannot store this"):
        await store.ingest(
            (
                make_observation(
                    1, START, gpus=[make_gpu_reading(energy_j=float("nan"))]
                ),
            ),
            START,
        )


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


def heard(
    url: str,
    channel: str,
    work: Callable[[PostgresStore, AsyncEngine], Awaitable[None]],
) -> list[str]:
    """The notifications on a channel while `work` runs, after the fleet was made."""

    async def listening(store: PostgresStore, engine: AsyncEngine) -> list[str]:
        async with await psycopg.AsyncConnection.connect(
            conninfo(url), autocommit=True
        ) as connection:
            await connection.execute(f"LISTEN {channel}".encode())
            await work(store, engine)
            # Delivered in the order of the commits: after this one nothing else is on its way.
            async with engine.begin() as other:
                await other.execute(text(f"NOTIFY {channel}, 'that is all'"))
            payloads = []
            async for notice in connection.notifies():
                if notice.payload == "that is all":
                    break
                payloads.append(notice.payload)
            return payloads

    return with_fleet(url, listening)


@pytest.mark.parametrize(
    ("arrivals", "wakes"),
    [
        # Planned: 10 rps, so 10 in a window of 1 s; 10 + 4 · √10 = 22.6.
        (22, False),
        (23, True),
    ],
)
def test_a_notable_rise_of_the_arrival_rate_wakes_the_loop(
    database: str, arrivals: int, wakes: bool
) -> None:
    async def work(store: PostgresStore, _engine: AsyncEngine) -> None:
        await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
        later = START + timedelta(seconds=8)
        seen = make_observation(
            1, later, window_s=1.0, services=[make_service_reading(arrivals=arrivals)]
        )
        await store.ingest((seen,), later)

    assert ("arrival rate" in heard(database, WAKE_CHANNEL, work)) is wakes


@pytest.mark.parametrize(
    ("arrivals", "wakes"),
    [
        # Planned: 5 rps for a budget's sake, of up to 9.5 that were foreseen; 9.5 + 4 · √9.5 = 21.8.
        (21, False),
        (22, True),
    ],
)
def test_what_was_foreseen_and_is_left_out_of_the_plan_wakes_nobody(
    database: str, arrivals: int, wakes: bool
) -> None:
    async def work(store: PostgresStore, _engine: AsyncEngine) -> None:
        demand = Demand(
            service="chat",
            arrival_rate_rps=5.0,
            method="degraded",
            interval_rps=(6.5, 9.5),
        )
        await store.record_plan(
            replace(make_record(START, None, 1), state="kept", demands=(demand,))
        )
        later = START + timedelta(seconds=8)
        seen = make_observation(
            1, later, window_s=1.0, services=[make_service_reading(arrivals=arrivals)]
        )
        await store.ingest((seen,), later)

    assert ("arrival rate" in heard(database, WAKE_CHANNEL, work)) is wakes


def test_requests_for_a_service_that_is_gone_or_never_was_wake_nobody(
    database: str,
) -> None:
    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await services.remove(connection, "chat", at=START)
        readings = [
            make_service_reading(name, arrivals=1000) for name in ("chat", "nobody")
        ]
        await store.ingest((make_observation(1, START, services=readings),), START)

    assert "arrival rate" not in heard(database, WAKE_CHANNEL, work)


def test_a_gpu_that_fails_wakes_the_loop_and_makes_older_plans_too_old(
    database: str,
) -> None:
    async def work(store: PostgresStore, _engine: AsyncEngine) -> None:
        before = await store.load_snapshot(START)
        await store.ingest(
            (make_observation(1, START, gpus=[make_gpu_reading(1, healthy=False)]),),
            START,
        )
        after = await store.load_snapshot(START)
        assert [gpu.healthy for gpu in after.state.gpus] == [True, False]
        assert after.state.catalogue_revision > before.state.catalogue_revision
        again = make_observation(
            2, START + timedelta(seconds=2), gpus=[make_gpu_reading(1, healthy=False)]
        )
        await store.ingest((again,), START + timedelta(seconds=2))
        assert (
            await store.load_snapshot(START)
        ).state.catalogue_revision == after.state.catalogue_revision

    assert heard(database, WAKE_CHANNEL, work) == ["gpu"]


def test_a_node_that_follows_a_lost_generation_wakes_the_loop(database: str) -> None:
    async def work(store: PostgresStore, _engine: AsyncEngine) -> None:
        seen = msgspec.structs.replace(make_observation(1, START), generation=150)
        await store.ingest((seen,), START)

    assert heard(database, WAKE_CHANNEL, work) == ["restored"]


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
    await store.ingest(
        (make_observation(4, at, gpus=[make_gpu_reading(0, healthy=False)]),), at
    )
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


def test_a_push_tells_the_agents_and_their_answer_is_kept(database: str) -> None:
    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
        ack = Ack(generation=1, status="refused", detail="no MPS")
        await store.ingest(
            (
                msgspec.structs.replace(
                    make_observation(1, START), acks=(ack,), generation=1
                ),
            ),
            START,
        )
        async with engine.connect() as connection:
            row = (
                await connection.execute(
                    text("SELECT last_ack, last_ack_detail FROM report.node_health")
                )
            ).one()
        assert tuple(row) == ("refused", "no MPS")

    assert heard(database, "plimsoll_command", work) == ["1"]
