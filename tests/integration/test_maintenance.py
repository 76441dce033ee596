"""What the leader does by the hour: what it forgets, and what it must not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import Ack, LaunchFailure, ServiceReading
from app.base.clock import WallClock
from app.base.settings import Settings
from app.db.base.observation_rows import WindowedObservation
from app.db.fleet import nodes
from app.db.fleet.launches import note_failures
from app.db.fleet.pushed_telemetry import OLDEST_S, Pushed, save
from app.db.maintenance import Retention, maintain
from app.db.postgres_store import PostgresStore
from app.serve.controller_process import maintain_plane
from app.serve.plane import make_plane
from app.store.launch_book import FORGOTTEN_AFTER
from app.store.reportable import Ingested
from solvers.types.plan import Plan
from tests.integration.fleet import (
    START,
    column,
    make_gpu_reading,
    make_observation,
    make_record,
    make_service_reading,
    observe,
    on_fleet,
)

pytestmark = pytest.mark.integration
LATER = START + timedelta(days=40)


@on_fleet()
async def test_of_old_acknowledgements_only_each_node_s_newest_is_kept(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    acks = tuple(
        Ack(generation=generation, status="applied") for generation in (1, 2, 3)
    )
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO command (node, generation, body, created_at) "
                "SELECT 'n1', n, '', :at FROM generate_series(1, 3) AS n"
            ),
            {"at": START},
        )
    await store.ingest(
        (msgspec.structs.replace(make_observation(1, START), acks=acks),), START
    )
    await maintain(engine, START + timedelta(days=29))
    assert await column(
        engine, "SELECT generation FROM acknowledgement ORDER BY 1"
    ) == [1, 2, 3]
    await maintain(engine, LATER)
    assert await column(engine, "SELECT generation FROM acknowledgement") == [3]


@on_fleet()
async def test_a_start_of_an_agent_is_forgotten_with_its_last_observation(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await store.ingest(
        (
            make_observation(1, START, boot="crashed"),
            make_observation(1, START, boot="old"),
        ),
        START,
    )
    yesterday = LATER - timedelta(days=1)
    await observe(store, 2, yesterday, boot="old")
    await maintain(engine, LATER)
    assert await column(engine, "SELECT boot FROM agent_boot") == ["old"]
    # Still told from new ones.
    await store.ingest((make_observation(2, yesterday, boot="old"),), LATER)
    assert await column(engine, "SELECT sequence FROM observation") == [2]


@on_fleet()
async def test_hours_that_nobody_summed_for_days_are_all_caught_up(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    for hour in range(30):
        at = START + timedelta(hours=hour, minutes=30)
        await observe(
            store, hour + 1, at, gpus=[make_gpu_reading(energy_j=10.0 + hour)]
        )
    await maintain(engine, START + timedelta(hours=30))
    energies = await column(engine, "SELECT energy_j FROM gpu_hour ORDER BY hour")
    assert energies == [10.0 + hour for hour in range(30)]


@on_fleet()
async def test_the_least_retention_keeps_every_day_that_a_wrong_clock_may_report_of(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    with pytest.raises(ValidationError, match="retention_days"):
        Settings(retention_days=7)
    keep = Retention(observations_days=Settings(retention_days=8).retention_days)
    for sequence, now in enumerate((START, START.replace(hour=23, minute=59)), start=1):
        await store.ingest((make_observation(sequence, START.replace(year=1999)),), now)
        await maintain(engine, now, keep)
    assert await column(engine, "SELECT sequence FROM observation ORDER BY 1") == [1, 2]


class ClockAhead(WallClock):
    """A machine's clock that is weeks ahead of the database's."""

    def now_s(self) -> float:
        return super().now_s() + 45 * 86400.0


async def observed_days(engine: AsyncEngine) -> list[object]:
    """Days for which there is a place for observations."""
    return await column(
        engine,
        "SELECT right(relname, 8) FROM pg_class WHERE relispartition AND relkind = 'r' "
        "AND relname ~ '^observation_[0-9]{8}$' ORDER BY 1",
    )


@on_fleet()
async def test_a_leader_whose_clock_is_weeks_ahead_drops_nothing_and_ingest_goes_on(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    plane = make_plane(Settings(), database, clock=ClockAhead())
    now = datetime.now(UTC)
    reading = make_service_reading()
    await observe(store, 1, now, services=[reading])
    await maintain_plane(plane, engine)
    assert await column(engine, "SELECT sequence FROM observation") == [1]
    assert await column(engine, "SELECT DISTINCT service FROM service_window") == [
        "chat"
    ]
    days = await observed_days(engine)
    assert days == [f"{now + timedelta(days=n):%Y%m%d}" for n in (0, 1, 2)]
    # Nor does it claim to have summed hours that are still to come.
    assert await column(engine, "SELECT received_until <= now() FROM roll_up") == [True]
    later = now + timedelta(seconds=2)
    assert await store.ingest((make_observation(2, later),), later) == Ingested(
        acknowledged={("n1", "b1"): 2}
    )


MADE_OF_TELEMETRY = (
    "INSERT INTO service_rate VALUES ('chat', date_bin('5 minutes', :at, 'epoch'), 300, 1)",
    "INSERT INTO demand (service, at, arrival_rate_rps, method) VALUES ('chat', :at, 1, 'kept')",
)
TELEMETRY = {
    "service_window": "window_start",
    "service_step": "start",
    "service_rate": "start",
    "demand": "at",
}
"""The column that says when a row was measured, by table."""


@on_fleet()
async def test_retention_never_reaches_beyond_the_newest_window_whatever_the_time_is(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    newest = START + timedelta(days=40)
    for sequence, at in enumerate((START, newest), 1):
        seen = make_observation(sequence, at, services=[make_service_reading()])
        await store.ingest((seen,), at)
        async with engine.begin() as connection:
            for statement in MADE_OF_TELEMETRY:
                await connection.execute(text(statement), {"at": at})
    await maintain(engine, START + timedelta(days=4000))
    assert await column(engine, "SELECT sequence FROM observation") == [2]
    assert "20260410" in await observed_days(engine)
    for table, moment in TELEMETRY.items():
        kept = await column(engine, f"SELECT DISTINCT {moment} FROM {table}")
        assert {f"{at:%Y%m%d}" for at in kept} == {"20260410"}, table


@on_fleet()
async def test_marks_that_a_wrong_clock_set_into_the_future_do_not_keep_hours_from_being_summed(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await maintain(engine, START + timedelta(days=45))
    gpus = [make_gpu_reading(energy_j=10.0)]
    await observe(store, 1, START, gpus=gpus)
    await maintain(engine, START + timedelta(hours=2))
    assert await column(engine, "SELECT energy_j FROM gpu_hour") == [10.0]


@on_fleet()
async def test_pushed_windows_are_forgotten_when_none_as_old_is_taken_any_more(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    assert timedelta(days=Retention().pushed_days) > timedelta(
        seconds=OLDEST_S + 3600.0
    )
    reading = ServiceReading(service="chat", arrivals=1, served=1, in_slo=1)
    window = Pushed(
        source="gateway",
        start_s=START.timestamp(),
        window_s=10.0,
        reading=reading,
        sha256=bytes(32),
    )
    async with engine.begin() as connection:
        assert await save(connection, window, START)
    await maintain(engine, START + timedelta(days=1))
    assert await column(engine, "SELECT source FROM pushed_window") == ["gateway"]
    # Nothing newer was reported or pushed.
    await maintain(engine, START + timedelta(days=4000))
    assert await column(engine, "SELECT source FROM pushed_window") == ["gateway"]
    later = START + timedelta(days=3)
    await observe(store, 1, later)
    await maintain(engine, later)
    assert await column(engine, "SELECT source FROM pushed_window") == []


FAILED = """
INSERT INTO launch_failure (service, gpu, failures, times, failed_at, detail)
VALUES (:service, 'n2/gpu-0', 1, 0, :at, 'no')
"""


def a_failed_launch(at: datetime) -> WindowedObservation:
    failure = LaunchFailure(replica="r", service="chat", gpu_index=0, detail="no")
    observation = msgspec.structs.replace(make_observation(1, at), failures=(failure,))
    return WindowedObservation(observation=observation, received=at, start=at, end=at)


@on_fleet()
async def test_launches_that_failed_more_than_a_day_ago_are_forgotten_but_not_by_reports(
    engine: AsyncEngine,
) -> None:
    ages = {"new": timedelta(), "old": FORGOTTEN_AFTER, "older": 3 * FORGOTTEN_AFTER}
    async with engine.begin() as connection:
        await nodes.save(connection, "n2", {0: "T4"}, at=START)
        for service, age in ages.items():
            row = {"service": service, "at": LATER - age}
            await connection.execute(text(FAILED), row)
    later = LATER + timedelta(minutes=1)
    known = "SELECT service FROM launch_failure ORDER BY service"
    # A report has locked its own nodes only: it must not wait for what another one wrote of others.
    async with engine.connect() as other, engine.begin() as connection:
        await other.execute(text("SELECT FROM launch_failure FOR UPDATE"))
        await connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        await note_failures(connection, [a_failed_launch(later)], later)
    assert await column(engine, known) == ["chat", "new", "old", "older"]
    await maintain(engine, later)
    assert await column(engine, known) == ["chat", "new"]


@on_fleet()
async def test_contents_are_kept_as_long_as_a_plan_has_them(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    kept = replace(make_record(START, None, 1), state="kept")
    await store.record_plan(kept)
    await store.record_plan(replace(kept, plan=Plan(policy="mudi")))
    ids = [await store.record_plan(replace(kept, at=LATER)) for _ in range(2)]
    shared = "SELECT DISTINCT content FROM plan WHERE id >= {}".format(*ids)
    assert len(await column(engine, "SELECT sha256 FROM plan_content")) == 2
    for used_at, left in ((LATER, 2), (START, 1)):
        async with engine.begin() as connection:
            await connection.execute(
                text("UPDATE plan_content SET used_at = :at"), {"at": used_at}
            )
        await maintain(engine, LATER + timedelta(hours=1))
        contents = await column(engine, "SELECT sha256 FROM plan_content")
        assert len(contents) == left
    assert contents == await column(engine, shared)


@on_fleet()
async def test_what_is_advised_stays_however_long_nothing_else_is(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    """The loop proposes it once, and a program may follow it for months."""
    withdrawn, proposed = [
        await store.record_plan(replace(make_record(START, None, 1), state=state))
        for state in ("withdrawn", "proposed")
    ]
    await maintain(engine, START + timedelta(days=90))
    assert await column(engine, "SELECT id FROM plan") == [proposed]
    assert withdrawn != proposed


@on_fleet()
async def test_a_partition_that_somebody_dropped_is_made_again_by_the_next_observation(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, 1, START)
    async with engine.begin() as connection:
        await connection.execute(text("SELECT drop_observation_days('2026-03-02')"))
    assert await observed_days(engine) == []
    # The store remembers that it made them.
    assert await store.ingest((make_observation(2, START),), START) == Ingested(
        acknowledged={("n1", "b1"): 2}
    )
    assert await column(engine, "SELECT sequence FROM observation") == [2]
