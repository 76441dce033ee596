"""Seasons: found in noise, bursts and gaps, and used where the time of the day says more than the last minutes."""

import numpy as np
import pytest

from solvers.forecast import seasonal
from solvers.forecast.seasons import (
    COARSE_S,
    DAY_S,
    HOUR_S,
    coarsen,
    make_season,
    make_seasons,
)
from solvers.forecast.types import Season
from tests.solvers.forecast.histories import (
    NAN,
    Reals,
    a_history,
    a_series,
    daily_means,
    poisson_rates,
    rate_of,
)

TWO_HALVES = Season(period_s=DAY_S, rates_rps=(0.001, 200.0, 200.0, 0.001))
"""Nothing at night, 200 rps from 6 to 18 o'clock."""
SIX_S = 6 * HOUR_S


def a_day(season: Season | None) -> Reals:
    assert season is not None
    return np.array(season.rates_rps)


def test_a_daily_sine_is_found_in_poisson_noise() -> None:
    means = daily_means(7, COARSE_S)
    found = a_day(
        make_season(
            a_series(
                poisson_rates(np.random.default_rng(1), means, COARSE_S),
                window_s=COARSE_S,
            ),
            DAY_S,
        )
    )
    assert found.shape == (288,)
    np.testing.assert_allclose(found, means[:288], atol=0.8)
    # √(20 / 300) = 0.26 rps of noise in a window; the season has less of it.
    assert np.sqrt(np.mean((found - means[:288]) ** 2)) < 0.2


@pytest.mark.parametrize("days", (3, 7))
def test_one_burst_is_no_season(days: int) -> None:
    rates = daily_means(days, COARSE_S)
    rates[300:306] = 5000.0
    found = a_day(make_season(a_series(rates, window_s=COARSE_S), DAY_S))
    np.testing.assert_allclose(found, daily_means(1, COARSE_S), rtol=0.03, atol=0.1)


def test_gaps_are_no_quiet_hours() -> None:
    rates = daily_means(6, COARSE_S)
    draw = np.random.default_rng(2)
    rates[draw.random(len(rates)) < 0.3] = np.nan
    rates[2 * 288 + 100 : 2 * 288 + 240] = np.nan
    # A part that was never heard.
    rates.reshape(6, 288)[:, 50] = np.nan
    found = a_day(make_season(a_series(rates, window_s=COARSE_S), DAY_S))
    np.testing.assert_allclose(found, daily_means(1, COARSE_S), rtol=0.05, atol=0.2)


@pytest.mark.parametrize(
    ("windows", "window_s", "period_s"),
    [
        (400, COARSE_S, DAY_S),
        (0, COARSE_S, DAY_S),
        (1000, 3600.0, HOUR_S),
        (1000, 7000.0, DAY_S),
    ],
    ids=[
        "a day and a half",
        "nothing",
        "windows as long as the period",
        "windows that do not divide it",
    ],
)
def test_too_little_makes_no_season(
    windows: int, window_s: float, period_s: float
) -> None:
    assert make_season(a_series(np.ones(windows), window_s=window_s), period_s) is None


def test_silence_makes_no_season() -> None:
    assert make_seasons(a_series(np.zeros(2000), window_s=COARSE_S)) == ()
    assert make_seasons(a_series(np.full(2000, NAN), window_s=COARSE_S)) == ()


def test_coarse_windows_start_at_multiples_and_know_what_was_heard() -> None:
    rates = [2.0] * 100 + [NAN] * 40 + [2.0] * 60 + [NAN] * 90 + [3.0] * 10
    coarse = coarsen(a_series(rates, start_s=50.0), 100.0)
    # 50–100 is half heard, 100–200: 50 + 10 of 100 s (2 rps), 200–300: 50 s … 300–400: 10 s of 3 rps is too little.
    assert (coarse.start_s, coarse.window_s) == (0.0, 100.0)
    np.testing.assert_allclose(coarse.arrivals, [200.0, 200.0, 200.0, np.nan])
    assert coarsen(coarse, 50.0) is coarse


def test_the_mean_over_a_window_is_exact_across_parts_and_periods() -> None:
    season = Season(period_s=DAY_S, rates_rps=(4.0, 8.0))
    # From 11:00 for two hours: one hour of each; from 23:00 for 25 hours: (1 · 8 + 12 · 4 + 12 · 8) / 25 = 6.08.
    for start_s, window_s, rate_rps in (
        (11 * HOUR_S, 2 * HOUR_S, 6.0),
        (23 * HOUR_S, 25 * HOUR_S, 6.08),
        (20_000 * DAY_S + 12 * HOUR_S - 0.5, 1.0, 6.0),
    ):
        (found,) = seasonal.rates_at(season, np.array([start_s]), window_s)
        assert found == pytest.approx(rate_rps)


def daily(
    rates_rps: Reals, *, end_s: float, horizon_s: float, level: float = 0.5
) -> float:
    history = a_history(
        rates_rps, start_s=end_s - len(rates_rps), seasons=(TWO_HALVES,)
    )
    return rate_of(seasonal.daily, history, level=level, horizon_s=horizon_s)


def test_a_jump_at_a_known_time_is_foreseen() -> None:
    before = daily(np.zeros(60), end_s=SIX_S - 10.0, horizon_s=5.0)
    after = daily(np.zeros(60), end_s=SIX_S - 10.0, horizon_s=30.0)
    assert before < 1.0
    assert after == pytest.approx(200.0, rel=0.05)


def test_silence_at_a_busy_hour_is_a_quiet_service_and_at_night_it_is_not() -> None:
    assert daily(np.zeros(60), end_s=2 * SIX_S, horizon_s=5.0, level=0.95) == 0.0
    assert daily(np.zeros(60), end_s=SIX_S - 10.0, horizon_s=30.0, level=0.95) > 200.0
