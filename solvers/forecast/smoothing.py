"""Exponential smoothing of the rate: EWMA (level alone) and Holt's method (level and damped trend); and the last value.

With error e = rate − (level + damping · trend) of each heard window

    level ← level + damping · trend + α · e;   trend ← damping · trend + α · β · e

(Holt 1957; Gardner and McKenzie 1985 for the damping; error-correction form of Hyndman et al., *Forecasting with
Exponential Smoothing*, 2008, table 2.1). EWMA is the same without trend, β = 0. α = 1 − exp(−elapsed / reach), so that
windows of any length and windows after a gap count as they should (Wright 1986); the first ones count as in a plain
mean. Over a gap the level goes on along the trend. The reach is 20 s, in the fast variants 4 s: which of them suits a
service is found by the back-test, that needs fewer assumptions than an estimate from a minute of windows.

The spread is the root mean square of what the recent forecasts of the same horizon missed. (The formula that makes it
from the errors of one window ahead, ibid., §6.2, holds for a level that drifts; real ones jump, and it promised too
little.)

EWMA wins on steady traffic, where a trend is only noise; Holt on ramps of minutes. Both answer a burst late.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from solvers.forecast.spread import smoothing_of, spread_rps, weights_of
from solvers.forecast.types import (
    ExpectedRate,
    ForecastTechnique,
    History,
    Reals,
    RequestSeries,
    windows_ahead,
)

EWMA_NAME, FAST_EWMA_NAME = "ewma", "ewma_fast"
HOLT_NAME, FAST_HOLT_NAME = "holt", "holt_fast"

REACH_S = 20.0
"""Seconds in which the level takes up 63 % of a step; three windows where that is longer."""
FAST_SHARE = 0.2
"""A fast variant's reach over that of the other one."""
_REACH_WINDOWS = 3.0
TREND_SHARE = 0.2
"""β: part of the level's correction that goes to the trend."""
DAMPING = 0.98
"""Per window: a trend is not trusted for longer than some fifty of them."""


def _forecast(
    history: History,
    horizon_s: float,
    *,
    trend_share: float = 0.0,
    reach_share: float = 1.0,
) -> ExpectedRate | None:
    series = history.recent
    ahead = windows_ahead(series, horizon_s)
    window_s = series.window_s
    decay = window_s / (reach_share * max(REACH_S, _REACH_WINDOWS * window_s))
    trend_windows = DAMPING * (1.0 - DAMPING**ahead) / (1.0 - DAMPING)
    rates = series.rates_rps
    expected = _expected(rates.tolist(), decay, trend_share, trend_windows)
    # Nothing was heard in any window, or there is none.
    if len(expected) == 0 or math.isnan(expected[-1]):
        return None
    errors = rates[ahead:] - expected[:-ahead]
    return _with_spread(float(expected[-1]), errors, series)


def _with_spread(
    median_rps: float, errors: Reals, series: RequestSeries
) -> ExpectedRate:
    """The rate with the spread that past errors show: (T − h,) those of the windows from h on; NaN is unknown."""
    first = len(series.arrivals) - len(errors)
    known = np.flatnonzero(~np.isnan(errors))
    ages_s = series.ages_s(known + first)
    spread = spread_rps(
        errors[known],
        weights_of(ages_s, smoothing_of(series.window_s)),
        expected_rps=median_rps,
        window_s=series.window_s,
    )
    return ExpectedRate(median_rps, spread)


ewma: ForecastTechnique = _forecast
"""Level alone."""
fast_ewma: ForecastTechnique = partial(_forecast, reach_share=FAST_SHARE)
"""Level alone, of the last seconds."""
holt: ForecastTechnique = partial(_forecast, trend_share=TREND_SHARE)
"""Level and damped trend."""
fast_holt: ForecastTechnique = partial(
    _forecast, trend_share=TREND_SHARE, reach_share=FAST_SHARE
)
"""Level and damped trend of the last seconds."""


def _expected(
    rates: Sequence[float], decay: float, trend_share: float, trend_windows: float
) -> Reals:
    """(T,) after each window, the rate that is expected at the horizon; NaN before the first heard window.

    rates: (T,), NaN where nothing was heard. decay: length of a window over the reach. trend_windows: Σ dampingⁱ.
    """
    level = 0.0
    trend = 0.0
    gap = 0
    heard = 0
    expected = []
    for rate in rates:
        # A rate cannot become negative, however long a falling trend goes on without a reading.
        trend *= DAMPING
        level = max(0.0, level + trend)
        gap += 1
        if not math.isnan(rate):
            if heard:
                error = rate - level
                # The first windows count as in a plain mean, until that weighs less than the reach does.
                alpha = max(1.0 - math.exp(-gap * decay), 1.0 / (heard + 1))
                level += alpha * error
                trend += alpha * trend_share * error
            else:
                level = rate
            heard, gap = heard + 1, 0
        expected.append(max(0.0, level + trend * trend_windows) if heard else math.nan)
    return np.array(expected)


LAST_VALUE_NAME = "last_value"


def last_value(history: History, horizon_s: float) -> ExpectedRate | None:
    """The newest rate, spread as far as rates changed over the horizon. See `ForecastTechnique`."""
    series = history.recent
    ahead = windows_ahead(series, horizon_s)
    heard = series.heard
    if len(heard) == 0:
        return None
    rates = series.rates_rps
    changes = rates[ahead:] - rates[:-ahead]
    return _with_spread(float(rates[heard[-1]]), changes, series)
