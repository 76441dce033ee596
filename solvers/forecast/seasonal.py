"""The usual rate at that time of the day, or of the hour, times how much more or less is asked for now than usual.

    forecast = factor · season(then) + rest;   factor = (Σ w · arrivals + κ) / (Σ w · season · window + κ)

over the recent heard windows, w = exp(−age / smoothing). κ is the belief in the usual level (the posterior mean of a
Gamma prior under Poisson counts): as many requests as the season's mean brings in one window, at least 4. So a night in
which nothing is expected says little about the morning. The rest is what the factor leaves unexplained, as a rate.
Silence in which many requests were expected is a quiet service: the forecast is 0.

It wins where rates jump at known times (working hours, batch runs at the full hour) or the horizon is minutes; it
needs two days (or two hours) of history, and on a day that is like no other it only has its factor.
"""

from functools import partial

import numpy as np

from solvers.forecast.seasons import DAY_S, HOUR_S
from solvers.forecast.spread import smoothing_of, spread_rps, weights_of
from solvers.forecast.types import (
    ExpectedRate,
    ForecastTechnique,
    History,
    Reals,
    Season,
    windows_ahead,
)

DAILY_NAME = "seasonal_daily"
HOURLY_NAME = "seasonal_hourly"
PERIODS_S = {DAILY_NAME: DAY_S, HOURLY_NAME: HOUR_S}
"""Period of the season that each of them needs."""

MIN_PRIOR_REQUESTS = 4.0
QUIET_REQUESTS = 10.0
"""With this number expected, chance leaves none in one of 20,000 cases (exp(−10))."""
_RATE_FLOOR = 1e-9
_SMOOTHINGS = 5.0
"""The factor changes slower than the level of a technique that knows no season."""


def _forecast(
    history: History, horizon_s: float, *, period_s: float
) -> ExpectedRate | None:
    of_period = (each for each in history.seasons if each.period_s == period_s)
    season = next(of_period, None)
    series = history.recent
    ahead = windows_ahead(series, horizon_s)
    window_s = series.window_s
    heard = series.heard
    if season is None or len(heard) == 0:
        return None

    arrivals = series.arrivals[heard]
    usual = rates_at(season, series.starts_s(heard), window_s)
    target_s = series.starts_s(np.array([len(series.arrivals) + ahead - 1]))
    then = float(rates_at(season, target_s, window_s)[0])
    # Silence tells only where requests were expected; before a busy hour it is the season that counts.
    is_silence_odd = usual.sum() * window_s >= QUIET_REQUESTS
    if not arrivals.any() and (is_silence_odd or then <= _RATE_FLOOR):
        return ExpectedRate(0.0, 0.0)

    ages_s = series.ages_s(heard)
    weights = weights_of(ages_s, _SMOOTHINGS * smoothing_of(window_s))
    factor = _factor(season, arrivals, usual, weights, window_s)
    residuals = arrivals / window_s - factor * usual
    rest = float(weights @ residuals)
    expected = max(0.0, factor * then + rest)

    # The margin remembers no longer than that of the other techniques; only the factor is slow.
    newest = weights_of(ages_s, smoothing_of(window_s))
    spread = spread_rps(
        residuals - rest, newest, expected_rps=expected, window_s=window_s
    )
    return ExpectedRate(expected, spread)


def _factor(
    season: Season, arrivals: Reals, usual: Reals, weights: Reals, window_s: float
) -> float:
    """How many times as much as usual is asked for now."""
    # The newest window counts as 1, so that the sums are requests, which the prior is, too.
    counted = weights / weights[-1]
    usual_requests = window_s * sum(season.rates_rps) / len(season.rates_rps)
    prior = max(MIN_PRIOR_REQUESTS, usual_requests)
    return float((counted @ arrivals + prior) / (counted @ usual * window_s + prior))


daily: ForecastTechnique = partial(_forecast, period_s=DAY_S)
"""By the time of the day (UTC)."""
hourly: ForecastTechnique = partial(_forecast, period_s=HOUR_S)
"""By the minutes past the hour."""


def rates_at(season: Season, starts_s: Reals, window_s: float) -> Reals:
    """(T,) the season's mean rate in rps over each window. starts_s: (T,) seconds since 1970; exact for any length."""
    part_s = season.period_s / len(season.rates_rps)
    sums = np.concatenate([[0.0], np.cumsum(season.rates_rps)]) * part_s
    edges = np.arange(len(sums)) * part_s

    def until(times_s: Reals) -> Reals:
        """Requests from the beginning of the period in which 1970 began, up to each time."""
        periods, rest = np.divmod(times_s, season.period_s)
        requests: Reals = periods * sums[-1] + np.interp(rest, edges, sums)
        return requests

    # Counted from the first window's period: the counts since 1970 would eat up the digits.
    base_s = np.floor(starts_s[:1] / season.period_s) * season.period_s
    requests = until(starts_s + window_s - base_s) - until(starts_s - base_s)
    means: Reals = requests / window_s
    return means
