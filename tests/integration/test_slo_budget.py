"""Error budgets against figures that were worked out by hand."""

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db import maintenance
from app.db.decisions import policies
from app.db.postgres_store import PostgresStore
from app.db.reports import reports
from app.db.workloads import services
from app.store.store import PolicySettings
from solvers.types.state import Service, Slo
from tests.integration.fleet import (
    START,
    make_service_reading,
    observe,
    on_fleet,
)

pytestmark = pytest.mark.integration

PERIODS = ("5 min", "30 min", "1 h", "6 h", "3 d", "30 d")


def at(hour: int, minute: int = 0) -> datetime:
    return START.replace(hour=hour, minute=minute)


async def count(
    store: PostgresStore, sequence: int, moment: datetime, *, served: int, missed: int
) -> None:
    """Requests of `chat` were served, some of them too late, in two seconds before that moment."""
    reading = make_service_reading(
        "chat", arrivals=served, served=served, in_slo=served - missed
    )
    await observe(store, sequence, moment, services=[reading])


async def budgets(
    engine: AsyncEngine, service: str = "chat"
) -> dict[str, dict[str, Any]]:
    """The rows of one service by period."""
    async with engine.connect() as connection:
        report = await reports.load(
            connection, "slo_budget", among={"service": [service]}
        )
    rows: list[dict[str, Any]] = [
        dict(zip(report.columns, row, strict=True)) for row in report.rows
    ]
    return {row["period"]: row for row in rows}


on_two_services = on_fleet({"default": ["chat", "quiet"]})


@on_two_services
async def test_fifty_misses_of_ten_thousand_requests_use_a_quarter_of_a_budget_of_two_percent(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await count(store, 1, at(10, 20), served=6000, missed=10)
    await count(store, 2, at(10, 50), served=4000, missed=40)
    found = await budgets(engine)
    assert tuple(found) == PERIODS
    hour = found["1 h"]
    assert (hour["finished"], hour["misses"]) == (10_000, 50)
    assert hour["allowed_misses"] == Decimal(200)
    # 50 / 10,000 = 0.5 % missed, of 2 % that may.
    assert hour["burn_rate"] == Decimal("0.25")
    assert found["30 d"]["budget_used_percent"] == Decimal(25)
    assert found["30 d"]["counted_since"] == at(10)
    # Of the last five minutes: 40 / 4,000 = 1 %, half of 2 %; 40 of the 200 misses of all 30 days.
    assert found["5 min"]["burn_rate"] == Decimal("0.5")
    assert found["5 min"]["budget_used_percent"] == Decimal(20)


@on_two_services
async def test_requests_before_a_period_do_not_count_in_it_and_none_counts_twice(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await count(store, 1, at(10, 20), served=100, missed=1)
    await count(store, 2, at(11, 25), served=200, missed=2)
    await count(store, 3, at(12, 10), served=400, missed=4)
    await count(store, 4, at(12, 20), served=800, missed=8)
    found = await budgets(engine)
    # Until 12:20: one hour begins at 11:20, half an hour at 11:50, each within an hour that counts in part only.
    wanted = dict(zip(PERIODS, (800, 1200, 1400, 1500, 1500, 1500), strict=True))
    assert {period: row["finished"] for period, row in found.items()} == wanted
    assert all(100 * row["misses"] == row["finished"] for row in found.values())


@on_two_services
async def test_refused_requests_are_misses_and_without_requests_nothing_is_said(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    reading = make_service_reading(
        "chat", arrivals=100, served=90, in_slo=89, rejected=10
    )
    await observe(store, 1, at(10, 5), services=[reading])
    chat, quiet = await budgets(engine), await budgets(engine, "quiet")
    # 11 of 100 where 2 may: five and a half times too many.
    assert chat["1 h"]["burn_rate"] == Decimal("5.5")
    assert [
        (row["finished"], row["burn_rate"], row["budget_used_percent"])
        for row in quiet.values()
    ] == [(0, None, None)] * len(PERIODS)
    assert not any(row["is_alerting"] for row in quiet.values())


@on_two_services
async def test_an_alert_needs_the_long_and_the_short_period(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    async def alerting() -> dict[str, bool | None]:
        found = await budgets(engine)
        return {period: row["is_alerting"] for period, row in found.items()}

    unwatched = {"5 min": None, "30 min": None, "30 d": None}
    await count(store, 1, at(10, 10), served=1000, missed=400)
    # 40 % / 2 % = 20 > 14.4.
    assert await alerting() == {**unwatched, "1 h": True, "6 h": True, "3 d": True}
    # Ten minutes later it is 400 / 1010 / 2 % = 19.8 over the hour, and 0 over five minutes.
    await count(store, 2, at(10, 20), served=10, missed=0)
    assert await alerting() == {**unwatched, "1 h": False, "6 h": True, "3 d": True}


@on_two_services
async def test_a_new_slo_counts_from_its_hour_on(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await count(store, 1, at(10, 30), served=1000, missed=10)
    async with engine.begin() as connection:
        tighter = Service(
            name="chat",
            project="default",
            network="resnet50",
            slo=Slo(latency_ms=100.0, percentile=0.99),
        )
        await services.save(connection, tighter, at=at(11, 30), actor="test")
    await count(store, 2, at(11, 40), served=1000, missed=10)
    row = (await budgets(engine))["30 d"]
    # 2 % of the first thousand, 1 % of the second.
    assert row["allowed_misses"] == Decimal(30)
    assert row["burn_rate"] == Decimal("0.6667")
    assert row["slo_percent"] == Decimal(99)


WITHOUT_STEPS = (
    Path(__file__).parents[1] / "data/slo_budget_all_windows.sql"
).read_text(encoding="utf-8")
"""The view all_windows: the same figures, read from every window."""


@pytest.mark.parametrize("seed", range(2))
@on_two_services
async def test_sums_of_five_minutes_give_the_figures_of_all_windows(
    store: PostgresStore, engine: AsyncEngine, seed: int
) -> None:
    draw = Random(seed)
    for sequence in range(1, 200):
        # Late ones among them, and windows that lie across the edges of five minutes.
        moment = at(10) + timedelta(
            seconds=draw.choice([draw.uniform(0, 8 * 3600), draw.uniform(25200, 28800)])
        )
        served = draw.randrange(200)
        reading = make_service_reading(
            draw.choice(["chat", "quiet"]),
            arrivals=served,
            served=served,
            in_slo=draw.randint(0, served),
        )
        await observe(store, sequence, moment, services=[reading])
        if sequence % 40 == 0:
            slo = Slo(latency_ms=100.0, percentile=draw.choice([0.9, 0.95, 0.99]))
            noun = Service(name="chat", project="default", network="resnet50", slo=slo)
            async with engine.begin() as connection:
                await services.save(connection, noun, at=moment, actor="test")
                await policies.save(
                    connection,
                    PolicySettings(window_s=draw.choice([2.0, 5.0, 7.0])),
                    at=moment,
                    actor="test",
                )
    if seed % 2:
        await maintenance.maintain(engine, at(18))
    async with engine.begin() as connection:
        await connection.execute(text(WITHOUT_STEPS))
        found, wanted = [
            list(
                await connection.execute(
                    text(f"SELECT * FROM {view} ORDER BY service, period_s")
                )
            )
            for view in ("report.slo_budget", "all_windows")
        ]
    assert len(wanted) == 2 * len(PERIODS)
    assert sum(row.finished for row in wanted) > 0
    assert found == wanted


@on_two_services
async def test_deleted_services_have_no_budget(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    async with engine.begin() as connection:
        await services.remove(connection, "chat", at=at(10) + timedelta(minutes=1))
    query = text("SELECT DISTINCT service FROM report.slo_budget")
    async with engine.connect() as connection:
        assert list((await connection.execute(query)).scalars()) == ["quiet"]
