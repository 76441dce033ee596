"""Arrival rates over weeks and the choice of a technique, in PostgreSQL."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.maintenance import Retention, maintain
from app.db.postgres_store import PostgresStore
from app.db.predictions import forecasts, rates
from app.db.predictions.forecasts import PostgresForecasts
from app.db.workloads import services
from app.learn.choose_forecasts import choose_forecasts, judge, view_forecast
from solvers.forecast.back_test import ForecastScore
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.room import UNKNOWN_ROOM, Outcomes, Room
from solvers.forecast.seasons import COARSE_S, DAY_S
from solvers.forecast.types import RequestSeries, Season
from tests.app.runner import Result, cli
from tests.integration.api_harness import Api, Prepared, service
from tests.integration.fleet import (
    START,
    make_observation,
    make_service_reading,
    on_fleet,
    with_fleet,
)

pytestmark = pytest.mark.integration
STEP = timedelta(seconds=COARSE_S)
SCORE = ForecastScore(
    forecasts=200.0,
    pinball_rps=1.0,
    coverage=0.95,
    interval_coverage=0.9,
    error_rps=3.0,
    observed_rps=50.0,
)
DAILY = TechniqueChoice(
    technique="seasonal_daily",
    seasons=(Season(period_s=DAY_S, rates_rps=(1.0, 2.0, 3.0, 2.0)),),
    margin=1.25,
    scores={"seasonal_daily": SCORE, "burst_aware": replace(SCORE, pinball_rps=2.0)},
    judged_until_s=START.timestamp(),
)


async def observe(
    store: PostgresStore, counts: Sequence[int | None], *, start: datetime = START
) -> None:
    """Windows of a second with these arrivals of `chat`, none where None stands; reported after they are over."""
    heard = [
        make_observation(
            number + 1,
            start + timedelta(seconds=number + 1),
            boot=f"b{start.timestamp():.0f}",
            window_s=1.0,
            services=[make_service_reading(arrivals=count)],
        )
        for number, count in enumerate(counts)
        if count is not None
    ]
    await store.ingest(tuple(heard), start + timedelta(seconds=len(counts)))


async def load(
    engine: AsyncEngine, *, since: datetime = START, until: datetime
) -> RequestSeries | None:
    async with engine.begin() as connection:
        return (
            await rates.load_rates(connection, ["chat"], since=since, until=until)
        ).get("chat")


async def roll_up(engine: AsyncEngine, now: datetime) -> None:
    async with engine.begin() as connection:
        await rates.roll_up_rates(connection, now)


@on_fleet()
async def test_rates_are_sums_of_the_windows_and_know_silence_from_quiet(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, [*[2] * 300, *[0] * 300, *[None] * 300, *[None, 3, 3] * 100])
    await roll_up(engine, START + 4 * STEP + timedelta(seconds=10))
    series = await load(engine, until=START + 5 * STEP)
    assert series is not None
    assert (series.start_s, series.window_s) == (START.timestamp(), 300.0)
    np.testing.assert_allclose(series.arrivals, [600.0, 0.0, np.nan, 900.0, np.nan])


@on_fleet()
async def test_summing_again_changes_nothing_and_adds_what_came_late(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, [2] * 299)
    # Five minutes that are not over are not there.
    await roll_up(engine, START + timedelta(seconds=280))
    assert await load(engine, until=START + 2 * STEP) is None
    for _ in range(2):
        await roll_up(engine, START + STEP)
    await observe(store, [8], start=START + timedelta(seconds=299))
    await roll_up(engine, START + 3 * STEP)
    series = await load(engine, until=START + STEP)
    assert series is not None
    assert series.arrivals.tolist() == [606.0]


def test_a_trace_fills_in_what_was_not_measured(database: str) -> None:
    trace = RequestSeries(
        start_s=START.timestamp(),
        window_s=COARSE_S,
        arrivals=np.array([10.0, np.nan, 30.5, 40.0]),
    )

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        await observe(store, [1] * 300)
        await roll_up(engine, START + STEP)
        async with engine.begin() as connection:
            assert await rates.add_trace(connection, "chat", trace) == 2
            assert await rates.add_trace(connection, "chat", trace) == 0
        series = await load(engine, until=START + 4 * STEP)
        assert series is not None
        np.testing.assert_allclose(series.arrivals, [300.0, np.nan, 30.5, 40.0])

    with_fleet(database, work)


@on_fleet()
async def test_rates_are_summed_before_their_windows_are_forgotten_and_are_forgotten_after_weeks(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, [2] * 300)
    # No process led for ten hours: the windows are older than they are kept.
    late = START + timedelta(hours=10)
    await store.ingest((make_observation(1, late, boot="late"),), late)
    await maintain(engine, late)
    assert await load(engine, until=START + STEP) is not None
    async with engine.begin() as connection:
        assert (
            await connection.execute(text("SELECT count(*) FROM service_window"))
        ).scalar_one() == 0
        await forecasts.save(connection, {"chat": DAILY})
    later = START + timedelta(days=5)
    await store.ingest((make_observation(2, later, boot="late"),), later)
    await maintain(engine, later, Retention(rates_days=4))
    assert await load(engine, until=START + STEP) is None
    async with engine.begin() as connection:
        assert await forecasts.get(connection, "chat") == TechniqueChoice()


@on_fleet()
async def test_a_choice_comes_back_as_it_was_saved_and_reaches_the_snapshot(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    assert (await store.load_snapshot(START)).choices == {}
    async with engine.begin() as connection:
        assert await forecasts.get(connection, "chat") == TechniqueChoice()
        await forecasts.save(connection, {"chat": DAILY})
        assert await forecasts.get(connection, "chat") == DAILY
    snapshot = await store.load_snapshot(START)
    assert snapshot.choices == {"chat": replace(DAILY, scores={})}
    wide = TechniqueChoice(
        margin=1.5,
        room=Room(1.2, 40.0),
        burst_until_s=START.timestamp() + 100.0,
        judged_until_s=START.timestamp() + 200.0,
    )
    async with engine.begin() as connection:
        await forecasts.save(connection, {"chat": wide})
    assert (await store.load_snapshot(START)).choices == {"chat": wide}
    back = TechniqueChoice(
        room=UNKNOWN_ROOM._replace(burst_rps=50.0),
        judged_until_s=START.timestamp() + 300.0,
    )
    async with engine.begin() as connection:
        await forecasts.save(connection, {"chat": back})
    assert (await store.load_snapshot(START)).choices == {"chat": back}


@on_fleet({"default": ["chat", "photo"], "other": ["search"]})
async def test_a_project_is_known_to_burst_for_a_week_after_any_of_its_services_did(
    engine: AsyncEngine,
) -> None:
    history = PostgresForecasts(engine)
    burst = replace(
        DAILY, burst_until_s=START.timestamp(), judged_until_s=START.timestamp()
    )
    await history.save_choices({"photo": burst})

    async def bursting(days: float) -> list[str]:
        cases = await history.load_cases(START + timedelta(days=days), 9)
        return sorted(case.service for case in cases if case.bursts)

    assert await bursting(6.9) == ["chat", "photo"]
    assert await bursting(7.1) == []


@on_fleet()
async def test_what_was_late_counts_but_for_the_opening(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    # 300 windows of a second, in each of which ten requests finish and one of them is late.
    await observe(store, [2] * 300)

    async def of(since: datetime) -> Outcomes:
        async with engine.begin() as connection:
            found = await rates.load_outcomes(
                connection,
                {"chat": 25.0, "unheard": 25.0},
                since=since,
                counted_from=START + timedelta(seconds=10),
                until=START + timedelta(seconds=200),
            )
        assert set(found) == {"chat"}
        return found["chat"]

    # A service that is new, and one whose windows may begin before.
    new, old = await of(START - timedelta(hours=1)), await of(START)
    assert new == Outcomes(finished=1750.0, late=175.0, heard_s=175.0)
    assert old == Outcomes(finished=1900.0, late=190.0, heard_s=190.0)


@on_fleet({"default": ["chat", "photo", "search"]})
async def test_every_service_is_judged_in_turn_those_first_that_waited_longest(
    engine: AsyncEngine,
) -> None:
    history = PostgresForecasts(engine)
    names = ["chat", "photo", "search"]
    assert [case.service for case in await history.load_cases(START, 2)] == names[:2]
    await history.save_choices(
        {"chat": replace(DAILY, judged_until_s=START.timestamp())}
    )
    await history.save_choices(
        {"photo": replace(DAILY, judged_until_s=START.timestamp() - 50.0)}
    )
    assert [case.service for case in await history.load_cases(START, 9)] == ["search"]
    later = START + timedelta(seconds=600)
    assert [case.service for case in await history.load_cases(later, 9)] == [
        "search",
        "photo",
        "chat",
    ]
    async with engine.begin() as connection:
        await services.remove(connection, "search", at=START)
    assert [case.service for case in await history.load_cases(later, 9)] == [
        "photo",
        "chat",
    ]


def test_the_loop_s_own_windows_are_judged_and_the_view_shows_it(database: str) -> None:
    draw = np.random.default_rng(3)

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        now = START
        for _ in range(2):
            # A random walk: the newest rates say all.
            means = 200.0 * np.exp(np.cumsum(draw.normal(0.0, 0.05, size=300)))
            await observe(
                store, [int(count) for count in draw.poisson(means)], start=now
            )
            now += STEP
            chosen = await choose_forecasts(PostgresForecasts(engine), now)
        assert chosen["chat"].technique != "ewma"
        scores = chosen["chat"].scores
        assert scores["last_value"].forecasts > 200.0
        assert scores["ewma_fast"].pinball_rps < scores["ewma"].pinball_rps
        async with engine.begin() as connection:
            choice = await forecasts.get(connection, "chat")
        assert choice == chosen["chat"]
        view = view_forecast(await store.load_snapshot(now), "chat", choice)
        assert view.telemetry == "heard"
        assert list(view.rates_rps) == sorted(view.rates_rps)
        gone = view_forecast(
            await store.load_snapshot(now + timedelta(seconds=40)), "chat", choice
        )
        assert (gone.telemetry, gone.rates_rps) == ("stopped", ())

    with_fleet(database, work)


def test_a_trace_warms_a_service_up_from_the_command_line(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{300 * number},{2 + number // 144 % 2}" for number in range(3 * 288)]
    trace.write_text("second,rate_rps\n" + "\n".join(lines) + "\n")

    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", database)

    def warm_up(service: str) -> Result:
        return cli("forecast", "warm-up", service, trace)

    async def work(_store: PostgresStore, engine: AsyncEngine) -> TechniqueChoice:
        done = await asyncio.to_thread(warm_up, "chat")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(
            "chat: 864 rates of five minutes added, of 864 from "
        )
        unknown = await asyncio.to_thread(warm_up, "nobody")
        assert unknown.code == 1
        assert "no service is called 'nobody'" in unknown.err
        (case,) = await PostgresForecasts(engine).load_cases(datetime.now(UTC), 1)
        return judge(replace(case, choice=TechniqueChoice(technique="seasonal_daily")))

    (season,) = with_fleet(database, work).seasons
    # The first half of the UTC day at 2 rps, the second at 3.
    assert season.rates_rps[10] == pytest.approx(2.0, rel=0.01)
    assert season.rates_rps[200] == pytest.approx(3.0, rel=0.01)


def test_a_service_that_keeps_its_budget_is_planned_as_if_nothing_were_forgiven(
    small_fleet: Prepared,
) -> None:
    slo = {"latency_ms": 100.0, "percentile": 0.98}
    with small_fleet.running_api() as api:
        api.put("services/chat", service(slo=slo))
        assert _percentile(api) == 0.98
        api.put("services/chat", service(slo={**slo, "budget": "keep"}))
        assert api.get("services/chat")["spec"]["slo"]["budget"] == "keep"
        assert _percentile(api) == 1.0


def _percentile(api: Api) -> float:
    """What `chat` is judged by."""
    now = api.clock.now()
    (case,) = api.on_engine(lambda engine: PostgresForecasts(engine).load_cases(now, 1))
    return case.load.percentile
