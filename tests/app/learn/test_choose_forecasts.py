"""Which technique forecasts a service, judged next to the tick, and what is shown of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import pytest

from app.learn.choose_forecasts import (
    MAX_SERVICES,
    Case,
    HeardLoad,
    choose_forecasts,
    judge,
    view_forecast,
)
from app.loop.budgets import KEPT
from app.loop.forecast import make_demands
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.room import Outcomes
from solvers.forecast.seasons import COARSE_S, DAY_S
from solvers.forecast.types import RequestSeries, Season
from solvers.types.state import Scaling
from tests.app.fleets import SETTINGS, a_service
from tests.app.snapshots import NOW, a_snapshot, a_state, windows_of

NOW_S = NOW.timestamp()
FLAT = Season(period_s=DAY_S, rates_rps=(50.0,) * 288)


def a_walk(seconds: int, *, until_s: float = NOW_S, seed: int = 1) -> RequestSeries:
    """A rate that wanders: the newest windows tell the most."""
    draw = np.random.default_rng(seed)
    means = 500.0 * np.exp(np.cumsum(draw.normal(0.0, 0.05, size=seconds)))
    return RequestSeries(
        start_s=until_s - seconds,
        window_s=1.0,
        arrivals=draw.poisson(means).astype(float),
    )


def a_case(
    windows: RequestSeries | None,
    *,
    choice: TechniqueChoice | None = None,
    rates: RequestSeries | None = None,
    until_s: float = NOW_S,
) -> Case:
    return Case(
        service="chat",
        project="default",
        bursts=False,
        choice=choice or TechniqueChoice(),
        rates=rates,
        until_s=until_s,
        horizon_s=5.0,
        load=HeardLoad(
            windows=windows,
            outcomes=Outcomes(),
            percentile=0.99,
            scaling=Scaling(),
            launch_s=10.0,
        ),
    )


def test_a_service_starts_with_the_default_and_takes_what_proves_better() -> None:
    first = judge(a_case(a_walk(60)))
    assert (first.technique, first.judged_until_s) == ("burst_aware", NOW_S)
    chosen = judge(a_case(a_walk(600)))
    assert chosen.technique in {"ewma_fast", "holt_fast", "last_value"}
    assert chosen.seasons == ()
    assert chosen.margin >= 1.0
    assert {score.forecasts for score in chosen.scores.values()} == {120.0}


def test_a_service_that_nobody_heard_of_keeps_its_choice() -> None:
    old = TechniqueChoice(
        technique="holt",
        scores=judge(a_case(a_walk(300))).scores,
        judged_until_s=NOW_S - 900.0,
    )
    kept = judge(a_case(None, choice=old))
    assert kept == replace(old, judged_until_s=NOW_S, margin=kept.margin)


def test_a_seasonal_choice_carries_its_season_made_anew() -> None:
    days = RequestSeries(
        start_s=NOW_S - 10 * DAY_S,
        window_s=COARSE_S,
        arrivals=np.full(2880, 50.0 * COARSE_S),
    )
    old = TechniqueChoice(technique="seasonal_daily", judged_until_s=NOW_S - 300.0)
    steady = RequestSeries(
        start_s=NOW_S - 400.0, window_s=1.0, arrivals=np.full(400, 50.0)
    )
    made = judge(a_case(steady, choice=old, rates=days))
    assert [season.period_s for season in made.seasons] == [DAY_S]
    np.testing.assert_allclose(made.seasons[0].rates_rps, 50.0)


@dataclass
class AHistory:
    """Cases written down, and what was saved."""

    cases: tuple[Case, ...]
    asked: list[int] = field(default_factory=list)
    saved: dict[str, TechniqueChoice] = field(default_factory=dict)

    async def load_cases(self, now: datetime, limit: int) -> tuple[Case, ...]:
        self.asked.append(limit)
        return self.cases[:limit]

    async def save_choices(self, choices: Mapping[str, TechniqueChoice]) -> None:
        self.saved |= choices


def test_a_run_judges_a_bounded_number_of_services_and_saves_them() -> None:
    cases = tuple(
        replace(a_case(a_walk(100, seed=number)), service=f"s{number}")
        for number in range(MAX_SERVICES + 5)
    )
    history = AHistory(cases)
    chosen = asyncio.run(choose_forecasts(history, NOW))
    assert history.asked == [MAX_SERVICES]
    assert history.saved == dict(chosen)
    assert len(chosen) == MAX_SERVICES


def test_the_tick_applies_the_choice_and_says_so() -> None:
    windows = windows_of("chat", [100] * 25 + [180, 190, 200, 210, 220])
    state = a_state(services=(a_service(downscale_delay_s=0.0),))
    plain = a_snapshot(state=state, windows=windows)
    rates = {}
    for technique in ("burst_aware", "ewma", "last_value", "seasonal_daily"):
        snapshot = replace(
            plain,
            choices={"chat": TechniqueChoice(technique=technique, seasons=(FLAT,))},
        )
        (demand,) = make_demands(snapshot)
        assert demand.method == technique
        rates[technique] = demand.arrival_rate_rps
    assert make_demands(plain)[0].method == "burst_aware"
    assert len(set(rates.values())) == 4
    assert make_demands(a_snapshot(state=state))[0].method == KEPT


def test_the_interval_has_the_margin_and_plans_follow_the_median() -> None:
    snapshot = a_snapshot(windows=windows_of("chat", [200] * 30))
    choices = [{"chat": TechniqueChoice(margin=margin)} for margin in (1.0, 2.0)]
    ((plain,), (wide,)) = (
        make_demands(replace(snapshot, choices=each)) for each in choices
    )
    # 100 rps in windows of 2 s: √(100 / 2) = 7.07 of spread, 1.6449 times.
    highs = [each.interval_rps[1] for each in (plain, wide) if each.interval_rps]
    assert highs[1] - highs[0] == pytest.approx(1.6449 * 7.0711, abs=0.01)
    # Plans follow the median.
    assert wide.arrival_rate_rps == plain.arrival_rate_rps


def test_a_missing_window_is_no_quiet_one() -> None:
    whole = windows_of("chat", [100] * 30)
    gap = (*whole[:12], *whole[18:])
    zeros = (*whole[:12], *windows_of("chat", [0] * 18)[:6], *whole[18:])
    rate, with_gap, with_zeros = (
        make_demands(a_snapshot(windows=windows))[0].interval_rps
        for windows in (whole, gap, zeros)
    )
    assert with_gap == pytest.approx(rate, rel=0.02)
    assert with_zeros != pytest.approx(rate, rel=0.02)


def test_the_forecast_looks_as_far_ahead_as_the_next_plan() -> None:
    ramp = windows_of("chat", [100 + 10 * number for number in range(30)])
    near, far = (
        make_demands(
            a_snapshot(windows=ramp, settings=replace(SETTINGS, period_s=period_s))
        )[0].arrival_rate_rps
        for period_s in (2.0, 20.0)
    )
    # 5 rps more every 2 s: 18 s later it is 45 rps more, with some head-room.
    assert 40.0 < far - near < 60.0


def test_the_view_shows_quantiles_scores_and_silence() -> None:
    choice = judge(a_case(a_walk(300)))
    heard = view_forecast(
        a_snapshot(windows=windows_of("chat", [200] * 30)), "chat", choice
    )
    assert (heard.telemetry, heard.technique, heard.silent_for_s) == (
        "heard",
        choice.technique,
        0.0,
    )
    assert heard.horizon_s == SETTINGS.period_s
    assert list(heard.rates_rps) == sorted(heard.rates_rps)
    assert heard.rates_rps[heard.levels.index(0.5)] == pytest.approx(100.0)
    assert heard.scores == choice.scores
    quiet = view_forecast(
        a_snapshot(windows=windows_of("chat", [0] * 30)), "chat", TechniqueChoice()
    )
    assert (quiet.telemetry, set(quiet.rates_rps)) == ("heard", {0.0})
    late = SETTINGS.stale_after_s + 1.0
    stopped = view_forecast(
        a_snapshot(windows=windows_of("chat", [200] * 30, last_ended_s=late)),
        "chat",
        choice,
    )
    assert (stopped.telemetry, stopped.rates_rps, stopped.silent_for_s) == (
        "stopped",
        (),
        late,
    )
    never = view_forecast(a_snapshot(), "chat", TechniqueChoice())
    assert (never.telemetry, never.rates_rps, never.silent_for_s) == ("never", (), None)


def test_a_demand_says_between_which_rates_its_forecast_lies_and_one_without_a_forecast_does_not() -> (
    None
):
    services = (a_service("chat"), a_service("silent"))
    windows = windows_of("chat", [90, 110, 100, 95, 105] * 6)
    snapshot = a_snapshot(state=a_state(services=services), windows=windows)
    heard, silent = make_demands(snapshot)
    shown = view_forecast(snapshot, "chat", TechniqueChoice())
    assert heard.interval_rps == (
        shown.rates_rps[shown.levels.index(0.05)],
        shown.rates_rps[shown.levels.index(0.95)],
    )
    assert (
        heard.interval_rps[0] < 50.0 < heard.interval_rps[1]
    )  # 100 requests in windows of two seconds.
    assert silent.interval_rps is None


def test_each_window_is_judged_once() -> None:
    windows = a_walk(600)
    half = judge(a_case(windows.part(0, 300), until_s=NOW_S - 300.0))
    whole = judge(a_case(windows, choice=half))
    again = judge(a_case(windows, choice=whole))
    counts = [choice.scores["ewma"].forecasts for choice in (half, whole, again)]
    assert counts[0] == 120.0
    # What is five minutes old has lost a third of a percent of its weight.
    assert 239.0 < counts[1] < 240.0
    assert counts[2] == counts[1]
