"""Reporting views against figures that were worked out by hand."""

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from msgspec import structs
from sqlalchemy import create_engine, pool
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import ReplicaReading, TokenCounts
from app.base.errors import Conflict
from app.db import maintenance
from app.db.base.listen import conninfo
from app.db.fleet import gpu_types, nodes
from app.db.postgres_store import PostgresStore
from app.db.reports import reports
from app.postgres import server as postgres
from tests.conftest import copied_database
from tests.integration.fault_harness import rows, with_store
from tests.integration.fleet import (
    START,
    make_fleet,
    make_gpu_reading,
    make_observation,
    make_service_reading,
    observe,
    push,
)
from tools.documents.sql import PAGE, document

pytestmark = pytest.mark.integration
Rows = list[tuple[object, ...]]


def at(hour: int, minute: int = 0) -> datetime:
    return START.replace(hour=hour, minute=minute)


def query(
    url: str, fill: Callable[[AsyncEngine], Awaitable[Any]] | None, *statements: str
) -> list[Rows]:
    """The rows of each statement after `fill` did its part, where there is one."""
    if fill is not None:
        with_store(url, lambda _, engine: fill(engine))
    return [rows(url, statement) for statement in statements]


async def a_busy_morning(engine: AsyncEngine) -> None:
    """10:00 three services on one T4 at 1.20 USD; 10:30 the price doubles; 10:45 another target; seen until 11:15.

    Every stretch below costs 0.60 USD: gpu-0 10:00-10:30 (half an hour at 1.20), 10:30-10:45 and 10:45-11:00 (a
    quarter at 2.40), gpu-1 10:45-11:00, and both 11:00-11:15.
    """
    store = await make_fleet(engine, {"web": ["chat", "vision"], "default": ["search"]})
    # SM percent idle 25; memory 25 %, 25 % and 12.5 % of 16384 MiB, idle 37.5 %.
    await push(
        store,
        at(10),
        {"n1/gpu-0": [("chat", 30, 4096), ("search", 20, 4096), ("vision", 25, 2048)]},
    )
    async with engine.begin() as connection:
        await gpu_types.set_price(connection, "T4", Decimal("2.40"), at=at(10, 30))
    await push(
        store,
        at(10, 45),
        {"n1/gpu-0": [("chat", 60, 8192)], "n1/gpu-1": [("search", 100, 16384)]},
    )
    await observe(store, 1, at(11, 15))


@pytest.fixture(scope="module")
def morning(postgres_server: postgres.Server, migrated_template: str) -> Iterator[str]:
    """The database of a busy morning, for tests that only read it."""
    with copied_database(postgres_server, template=migrated_template) as url:
        query(url, a_busy_morning)
        yield url


def test_cost_by_service_is_right_to_the_cent_in_three_accountings(
    morning: str,
) -> None:
    (rows,) = query(
        morning,
        None,
        "SELECT service, project, cost_usd, whole_gpu_cost_usd, memory_cost_usd FROM report.cost_by_service_hour "
        "WHERE hour = '2026-03-01 10:00+00' ORDER BY service",
    )
    assert rows == [
        # Idle: 25 % of 1.20 + 40 % of 0.60; memory 37.5 % of 1.20 + 50 % of 0.60.
        ("(idle)", "(idle)", Decimal("0.54"), Decimal(0), Decimal("0.75")),
        # 30 % of 1.20 + 60 % of 0.60; whole 30/75 of 1.20 + all of 0.60; memory 25 % of 1.20 + 50 % of 0.60.
        ("chat", "web", Decimal("0.72"), Decimal("1.08"), Decimal("0.60")),
        # 20 % of 1.20 + all of 0.60; whole 20/75 of 1.20 + 0.60; memory 25 % of 1.20 + all of 0.60.
        ("search", "default", Decimal("0.84"), Decimal("0.92"), Decimal("0.90")),
        # 25 % of 1.20; whole 25/75 of 1.20; memory 12.5 % of 1.20.
        ("vision", "web", Decimal("0.30"), Decimal("0.40"), Decimal("0.15")),
    ]


def test_cost_by_project_type_and_bill_agree(morning: str) -> None:
    projects, types, bill = query(
        morning,
        None,
        "SELECT project, cost_usd, whole_gpu_cost_usd FROM report.cost_by_project_hour "
        "WHERE hour = '2026-03-01 10:00+00' ORDER BY project",
        "SELECT extract(hour FROM hour)::int, gpu_type, cost_usd, whole_gpu_cost_usd, memory_cost_usd, idle_cost_usd "
        "FROM report.cost_by_gpu_type_hour ORDER BY hour",
        "SELECT extract(hour FROM hour)::int, gpu, hours, cost_usd FROM report.bill_hour ORDER BY hour, gpu",
    )
    assert projects == [
        ("(idle)", Decimal("0.54"), Decimal(0)),
        ("default", Decimal("0.84"), Decimal("0.92")),
        ("web", Decimal("1.02"), Decimal("1.48")),
    ]
    assert types == [
        (10, "T4", Decimal("2.40"), Decimal("2.40"), Decimal("2.40"), Decimal("0.54")),
        (11, "T4", Decimal("1.20"), Decimal("1.20"), Decimal("1.20"), Decimal("0.24")),
    ]
    assert bill == [
        (10, "n1/gpu-0", Decimal(1), Decimal("1.80")),
        (10, "n1/gpu-1", Decimal("0.25"), Decimal("0.60")),
        (11, "n1/gpu-0", Decimal("0.25"), Decimal("0.60")),
        (11, "n1/gpu-1", Decimal("0.25"), Decimal("0.60")),
    ]


def test_the_cost_of_an_hour_is_read_without_the_targets_of_other_hours(
    morning: str,
) -> None:
    (((plan,),),) = query(
        morning,
        None,
        "EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM report.cost_by_service_hour WHERE hour >= '2026-03-01 11:00+00'",
    )
    assert isinstance(plan, list)
    # Of five stretches two lie in that hour: those of the two GPUs.
    assert list(loops(plan[0]["Plan"], "WindowAgg")) == [2, 2]


def test_attainment_counts_rejected_requests_as_misses_and_is_null_without_traffic(
    database: str,
) -> None:
    async def fill(engine: AsyncEngine) -> None:
        store = await make_fleet(engine, {"default": ["chat", "quiet"]})
        quiet = make_service_reading("quiet", arrivals=0, served=0, in_slo=0)
        chat = make_service_reading(
            "chat", arrivals=200, served=196, in_slo=195, rejected=4
        )
        await observe(store, 1, at(10, 5), services=[chat, quiet])

    (rows,) = query(
        database,
        fill,
        "SELECT service, requests, in_slo, attainment_percent, slo_percent, is_met FROM report.slo_attainment_hour "
        "ORDER BY service",
    )
    assert rows == [
        # 195 of 196 served and 4 rejected.
        ("chat", 200, 195, Decimal("97.5000"), Decimal(98), False),
        ("quiet", 0, 0, None, Decimal(98), None),
    ]


def test_who_left_in_time_is_no_miss_and_is_shown(database: str) -> None:
    async def fill(engine: AsyncEngine) -> None:
        store = await make_fleet(engine, {"default": ["chat"]})
        chat = make_service_reading("chat", arrivals=100, served=60, in_slo=57)
        left = structs.replace(chat, gone=40, unmeasured=3)
        await observe(store, 1, at(10, 5), services=[left])

    (rows,) = query(
        database,
        fill,
        "SELECT requests, gone, unmeasured, attainment_percent FROM report.slo_attainment_hour",
    )
    assert rows == [(100, 40, 3, Decimal("95.0000"))]


def a_model_reading(tokens: TokenCounts) -> ReplicaReading:
    """Of the replica that `push` puts on the first GPU."""
    return ReplicaReading(
        id="chat-0",
        service="chat",
        gpu_index=0,
        state="ready",
        sm_percent=100.0,
        batch=8,
        memory_mib=4096.0,
        requests=5,
        tokens=tokens,
    )


async def an_hour_of_tokens(engine: AsyncEngine) -> None:
    """chat has a T4 at 1.20 USD for an hour, in which it answers 370,000 tokens."""
    store = await make_fleet(engine, {"web": ["chat"]})
    await push(store, at(10), {"n1/gpu-0": [("chat", 100, 4096)]})
    for sequence, minute in enumerate((20, 59), 1):
        reading = make_service_reading("chat", in_slo=9, output_tokens=180_000)
        # Of an answer that is under way engines have counted tokens already.
        tokens = TokenCounts(50_000, 5_000, 170_000 if sequence == 1 else 200_000)
        seen = make_observation(
            sequence,
            at(10, minute),
            services=(reading,),
            replicas=(a_model_reading(tokens),),
        )
        await store.ingest((seen,), at(10, minute))
    await observe(store, 3, at(11))


def test_a_million_tokens_cost_what_the_gpus_did_meanwhile(database: str) -> None:
    (rows,) = query(
        database,
        an_hour_of_tokens,
        "SELECT project, service, output_tokens, tokens_per_s, goodput_rps, round(cost_usd, 6), "
        "usd_per_million_tokens, prompt_tokens, found_percent FROM report.tokens_by_service_hour",
    )
    (row,) = rows
    assert row[:5] == ("web", "chat", 370_000, Decimal("102.778"), Decimal("0.005"))
    # 1.20 USD, 370,000 tokens.
    assert row[5:7] == (Decimal("1.200000"), Decimal("3.243243"))
    assert row[7:] == (100_000, Decimal("10.0"))


async def an_hour_of_energy(engine: AsyncEngine) -> PostgresStore:
    """gpu-0 runs chat at a profiled point (30 W above 10 W idle) for the hour in which 2 s with 80 J were seen."""
    store = await make_fleet(engine, {"default": ["chat"]})
    await push(store, at(9), {"n1/gpu-0": [("chat", 60, 2048)]})
    readings = [make_gpu_reading(0, energy_j=80.0), make_gpu_reading(1, energy_j=20.0)]
    await store.ingest((make_observation(1, at(10, 5), gpus=readings),), at(11, 5))
    return store


ENERGY = "SELECT service, round((energy_wh * 3600)::numeric, 6) FROM report.energy_by_service_hour ORDER BY service"
UTILISATION = (
    "SELECT gpu, busy_percent, power_w, memory_used_mib, allocated_hours, sm_percent "
    "FROM report.gpu_utilisation_hour ORDER BY gpu"
)


def test_energy_is_divided_by_planned_watts_and_adds_up(database: str) -> None:
    energy, utilisation = query(database, an_hour_of_energy, ENERGY, UTILISATION)
    # gpu-0's 80 J: 30 W of chat against 10 W idle, both over the whole hour. All of gpu-1's 20 J are idle.
    assert energy == [("(idle)", Decimal(20 + 20)), ("chat", Decimal(60))]
    assert utilisation == [
        ("n1/gpu-0", 50.0, 40.0, 4096.0, Decimal(1), Decimal(60)),
        ("n1/gpu-1", 50.0, 10.0, 4096.0, Decimal(0), Decimal(0)),
    ]


def test_what_a_node_used_and_cost_stays_when_the_node_goes(database: str) -> None:
    async def fill(engine: AsyncEngine) -> None:
        await push(await an_hour_of_energy(engine), at(11, 5), {})
        async with engine.begin() as connection:
            await nodes.remove(connection, "n1", at=at(11, 6))
        async with engine.begin() as connection:
            with pytest.raises(Conflict, match="kept for the reports"):
                await gpu_types.remove(connection, "T4")

    energy, bill = query(
        database,
        fill,
        ENERGY,
        "SELECT cost_usd FROM report.bill_hour ORDER BY hour LIMIT 1",
    )
    assert energy == [("(idle)", Decimal(20 + 20)), ("chat", Decimal(60))]
    assert bill == [(Decimal("1.20"),)]


def test_rolling_up_changes_no_report_and_takes_late_observations_in(
    database: str,
) -> None:
    async def roll_twice(engine: AsyncEngine) -> None:
        store = await an_hour_of_energy(engine)
        await maintenance.maintain(engine, at(11, 10))
        late = make_observation(2, at(10, 6), gpus=[make_gpu_reading(1, energy_j=60.0)])
        await store.ingest((late,), at(11, 11))
        await maintenance.maintain(engine, at(12, 10))

    utilisation, rolled = query(
        database,
        roll_twice,
        UTILISATION,
        "SELECT gpu, energy_j FROM gpu_hour ORDER BY gpu",
    )
    assert rolled == [("n1/gpu-0", 80.0), ("n1/gpu-1", 80.0)]
    # gpu-1: 20 J + 60 J over 4 s.
    assert [(row[0], row[2]) for row in utilisation] == [
        ("n1/gpu-0", 40.0),
        ("n1/gpu-1", 20.0),
    ]


@pytest.mark.parametrize("is_rolled_up", [False, True])
def test_how_busy_a_gpu_was_is_unknown_where_the_driver_does_not_say_and_else_of_what_it_said(
    database: str, is_rolled_up: bool
) -> None:
    async def fill(engine: AsyncEngine) -> None:
        store = await an_hour_of_energy(engine)
        unknown = [
            structs.replace(make_gpu_reading(index), busy_percent=None)
            for index in (0, 1)
        ]
        await store.ingest((make_observation(2, at(10, 6), gpus=unknown),), at(11, 5))
        sliced = [structs.replace(make_gpu_reading(1), busy_percent=None)]
        await observe(store, 3, at(12, 6), gpus=sliced)
        if is_rolled_up:
            await maintenance.maintain(engine, at(13, 10))

    (rows,) = query(
        database,
        fill,
        "SELECT gpu, busy_percent FROM report.gpu_utilisation_hour ORDER BY hour, gpu",
    )
    # At 10:05 both were busy for 50 % of 2 s; of the 2 s at 10:06, and of 12:06, it is unknown.
    assert rows == [("n1/gpu-0", 50.0), ("n1/gpu-1", 50.0), ("n1/gpu-1", None)]


def test_old_partitions_are_dropped_and_hours_stay(database: str) -> None:
    async def forget(engine: AsyncEngine) -> None:
        store = await an_hour_of_energy(engine)
        late = START + timedelta(days=maintenance.Retention().observations_days + 1)
        await observe(store, 9, late)
        await maintenance.maintain(engine, late)

    days, hours = query(
        database,
        forget,
        "SELECT count(*) FROM pg_class WHERE relispartition AND relkind = 'r' AND relname LIKE 'observation_2026030%'",
        "SELECT count(*) FROM gpu_hour",
    )
    assert (days, hours) == ([(0,)], [(2,)])


def test_plan_history_counts_moves_and_names_the_period_in_force(morning: str) -> None:
    (rows,) = query(
        morning,
        None,
        "SELECT generation, state, gap_percent, in_force_from, in_force_until, replicas_started, replicas_stopped "
        "FROM report.plan_history ORDER BY plan_id",
    )
    assert rows == [
        (1, "superseded", 0.0, at(10), at(10, 45), 3, 0),
        # chat-0 stays on gpu-0; search-1 and vision-2 leave it; search-0 starts on gpu-1.
        (2, "target", 0.0, at(10, 45), None, 1, 2),
    ]


def test_node_health_compares_wanted_and_observed(morning: str) -> None:
    (rows,) = query(
        morning,
        None,
        "SELECT node, silent_s, wanted_generation, observed_generation, gpus, unhealthy_gpus FROM report.node_health",
    )
    assert rows == [("n1", Decimal(0), 2, 0, 2, 0)]


def test_every_report_loads_within_a_period(morning: str) -> None:
    counts: dict[str, int] = {}

    async def load_all(engine: AsyncEngine) -> None:
        hour = {"since": at(11), "until": at(12), "limit": 100}
        async with engine.connect() as connection:
            for name in reports.REPORTS:
                report = await reports.load(connection, name, **hour)
                counts[name] = len(report.rows)

    query(morning, load_all)
    expected = {"bill_hour": 2, "cost_by_service_hour": 3, "plan_history": 0}
    assert counts.items() >= (expected | {"node_health": 1}).items()


def test_the_reader_reads_reports_and_nothing_else(database: str) -> None:
    with psycopg.connect(conninfo(database)) as connection:
        connection.execute("SET ROLE plimsoll_reader")
        assert connection.execute(
            "SELECT count(*) FROM report.bill_hour"
        ).fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT count(*) FROM public.token")


def test_the_documentation_of_the_views_is_up_to_date(database: str) -> None:
    engine = create_engine(database, poolclass=pool.NullPool)
    with engine.connect() as connection:
        wanted = document(connection)
    engine.dispose()
    assert "None" not in wanted, "every view and column has a comment"
    assert PAGE.read_text(encoding="utf-8") == wanted, "run `make openapi`"


def loops(node: dict[str, Any], kind: str) -> Iterator[int]:
    """How often each node of a kind ran, in a plan of execution."""
    if node["Node Type"] == kind:
        yield node["Actual Loops"]
    for inner in node.get("Plans", ()):
        yield from loops(inner, kind)
