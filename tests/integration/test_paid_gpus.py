"""GPUs that are paid for anyway, over the API, in stored problems and in reports."""

from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.db.decisions import policies, problem_archive
from app.db.fleet import gpu_types
from app.store.store import PolicySettings
from solvers.types.state import ALL_PAID
from tests.integration.api_harness import Api, gpu_type
from tests.integration.fleet import (
    START,
    make_fleet,
    make_gpu_type,
    observe,
    on_connection,
    push,
)
from tests.integration.test_reports import a_busy_morning, an_hour_of_energy, at, query
from tests.solvers.tick.test_survive import a_problem

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("paid", [0, 2, "all"])
def test_what_is_paid_for_comes_back_as_it_was_stated(api: Api, paid: object) -> None:
    api.put("gpu-types/T4", gpu_type(paid=paid))
    assert api.get("gpu-types/T4")["spec"]["paid"] == paid


@pytest.mark.parametrize("paid", [-1, "some", True, 0.5])
def test_what_is_no_number_of_gpus_is_refused_once_by_name(
    api: Api, paid: object
) -> None:
    answer = api.call("PUT", "gpu-types/T4", gpu_type(paid=paid), If_Match="*")
    assert answer.status_code in (400, 422)
    (refused,) = answer.json()["errors"]
    assert refused["pointer"] == "/spec/paid"
    assert "must be all or a number of GPUs" in refused["detail"]


@on_connection
async def test_a_stored_problem_keeps_what_is_paid_for(
    connection: AsyncConnection,
) -> None:
    plain = a_problem(10.0)
    counts = (2, ALL_PAID)
    paid = tuple(
        replace(one, paid_count=count)
        for one, count in zip(plain.gpu_types, counts, strict=True)
    )
    problem = replace(plain, gpu_types=paid)
    for stored in (plain, problem):
        packed = problem_archive.pack(stored, problem_archive.PartCache())
        await problem_archive.save_parts(connection, packed.parts)
        assert await problem_archive.unpack(connection, packed.body) == stored


PAYMENTS = (
    "SELECT extract(hour FROM hour)::int, used_hours, paid_gpus, standing_cost_usd, on_demand_cost_usd "
    "FROM report.cost_by_payment_hour ORDER BY hour"
)


async def reserve(engine: AsyncEngine, count: int, since: datetime) -> None:
    """`count` T4s are paid for from then on."""
    async with engine.begin() as connection:
        await gpu_types.set_paid(connection, "T4", count, at=since)


def test_an_owned_fleet_costs_the_same_while_it_is_idle(database: str) -> None:
    """Both T4s, of 1.20 USD and of 2.40 since 10:30, are owned from 10:00 on; nothing runs from 11:00 to 13:30."""

    async def an_idle_fleet(engine: AsyncEngine) -> None:
        store = await make_fleet(engine, {"default": ["chat"]})
        async with engine.begin() as connection:
            noun = replace(make_gpu_type(), paid_count=ALL_PAID)
            await gpu_types.save(connection, noun, at=START)
            await gpu_types.set_price(connection, "T4", Decimal("2.40"), at=at(10, 30))
        await push(store, at(10), {"n1/gpu-0": [("chat", 50, 4096)]})
        await push(store, at(11), {})
        await observe(store, 1, at(13, 30))

    (rows,) = query(database, an_idle_fleet, PAYMENTS)
    assert rows == [
        (10, Decimal(1), 2, Decimal("3.60"), Decimal(0)),
        (11, Decimal(0), 2, Decimal("4.80"), Decimal(0)),
        (12, Decimal(0), 2, Decimal("4.80"), Decimal(0)),
        (13, Decimal(0), 2, Decimal("2.40"), Decimal(0)),
    ]


def test_what_was_paid_for_is_remembered_by_time(database: str) -> None:
    """A GPU is reserved from 10:45 on, and both from 11:00."""

    async def growing(engine: AsyncEngine) -> None:
        await a_busy_morning(engine)
        await reserve(engine, 1, at(10, 45))
        await reserve(engine, 2, at(11))

    (rows,) = query(database, growing, PAYMENTS)
    assert rows == [
        # A quarter of an hour at 2.40 stands; of 1.25 GPU-hours a quarter is paid for, and 4/5 of 2.40 USD are rented.
        (10, Decimal("1.25"), 1, Decimal("0.60"), Decimal("1.92")),
        (11, Decimal("0.5"), 2, Decimal("1.20"), Decimal(0)),
    ]


def test_budgets_tell_what_is_paid_for_anyway_from_what_could_be_saved(
    database: str,
) -> None:
    async def fill(engine: AsyncEngine) -> None:
        await a_busy_morning(engine)
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE gpu_type SET paid_count = 1"))
            await connection.execute(
                text(
                    "INSERT INTO budget (name, project, period, action, limit_usd, created_at) VALUES "
                    "('all', NULL, 'day', 'degrade', 9, now()), ('web', 'web', 'day', 'degrade', 9, now())"
                )
            )

    (rows,) = query(
        database,
        fill,
        "SELECT budget, usd_per_hour, avoidable_usd_per_hour FROM report.budget_status ORDER BY budget",
    )
    # Two GPUs at 2.40, one of which is paid for: half is rented. chat has 60 % of one.
    assert rows == [
        ("all", Decimal("4.80"), Decimal("2.40")),
        ("web", Decimal("1.44"), Decimal("0.72")),
    ]


def test_energy_is_priced_as_the_policy_of_the_hour_says(database: str) -> None:
    async def fill(engine: AsyncEngine) -> None:
        await an_hour_of_energy(engine)
        async with engine.begin() as connection:
            # 0.20 USD, and 400 g at 100 USD per tonne: 0.04 USD. What is said later changes nothing for that hour.
            first = PolicySettings(
                energy_price_usd_per_kwh=0.2,
                carbon_price_usd_per_t=100.0,
                carbon_g_per_kwh=(400.0,),
            )
            await policies.save(connection, first, at=START, actor="test")
            later = PolicySettings(energy_price_usd_per_kwh=9.0)
            await policies.save(connection, later, at=at(10, 30), actor="test")

    (rows,) = query(
        database,
        fill,
        "SELECT round((energy_wh * 3600)::numeric, 6), energy_cost_usd FROM report.cost_by_payment_hour "
        "WHERE energy_wh > 0",
    )
    # 100 joules at 0.24 USD per 3,600,000 of them.
    assert rows == [(Decimal(100), Decimal("0.000006666667"))]
