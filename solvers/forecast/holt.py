"""Exponential smoothing of the rate: EWMA (level alone) and Holt's method (level and damped trend).

With error e = rate − (level + damping · trend) of each heard window

    level ← level + damping · trend + α · e;   trend ← damping · trend + α · β · e

(Holt 1957; Gardner and McKenzie 1985 for the damping; error-correction form of Hyndman et al., *Forecasting with
Exponential Smoothing*, 2008, table 2.1). EWMA is the same without trend, β = 0. α = 1 − exp(−elapsed / reach), so that
windows of any length and windows after a gap count as they should (Wright 1986); the first ones count as in a plain
mean. Over a gap the level goes on along the trend. The reach is 20 s, in the fast variants 4 s: which of them suits a
service is found by the back-test, that needs fewer assumptions than an estimate from a minute of windows.

h windows ahead the variance of one error grows to 1 + Σⱼ₌₁..ₕ₋₁ cⱼ², with cⱼ = α · (1 + β · Σᵢ₌₁..ⱼ dampingⁱ) (ibid.,
§6.2).

EWMA wins on steady traffic, where a trend is only noise; Holt on ramps of minutes. Both answer a burst late.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from solvers.forecast.forecast import Forecast, History, Technique, make_forecast, windows_ahead
from solvers.forecast.spread import smoothing_of, spread_rps, weights_of

EWMA_NAME, FAST_EWMA_NAME = "ewma", "ewma-fast"
HOLT_NAME, FAST_HOLT_NAME = "holt", "holt-fast"

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
    *,
    horizon_s: float,
    levels: Sequence[float],
    technique: str,
    trend_share: float = 0.0,
    reach_share: float = 1.0,
) -> Forecast | None:
    series = history.recent
    ahead, window_s = windows_ahead(series, horizon_s), series.window_s
    decay = window_s / (reach_share * max(REACH_S, _REACH_WINDOWS * window_s))
    level, trend, numbers, errors = _smoothed(series.rates_rps.tolist(), decay, trend_share)
    if math.isnan(level):
        return None
    expected = max(0.0, level + trend * _damped(ahead))
    weights = weights_of(series.ages_s(np.array(numbers, dtype=np.intp)), smoothing_of(window_s))
    spread = spread_rps(np.array(errors), weights, expected_rps=expected, window_s=window_s)
    spread *= _growth(ahead, 1.0 - math.exp(-decay), trend_share)
    return make_forecast(technique, expected_rps=expected, spread_rps=spread, horizon_s=horizon_s, levels=levels)


ewma: Technique = partial(_forecast, technique=EWMA_NAME)
"""Level alone. See `forecast.Technique`."""
fast_ewma: Technique = partial(_forecast, technique=FAST_EWMA_NAME, reach_share=FAST_SHARE)
"""Level alone, of the last seconds."""
holt: Technique = partial(_forecast, technique=HOLT_NAME, trend_share=TREND_SHARE)
"""Level and damped trend."""
fast_holt: Technique = partial(_forecast, technique=FAST_HOLT_NAME, trend_share=TREND_SHARE, reach_share=FAST_SHARE)
"""Level and damped trend of the last seconds."""


def _smoothed(rates: Sequence[float], decay: float, trend_share: float) -> tuple[float, float, list[int], list[float]]:
    """Level and trend after the last window, and the error of every heard window but the first, with its number.

    decay: length of a window over the reach. Level NaN: nothing was heard.
    """
    level, trend, gap, heard = math.nan, 0.0, 0, 0
    numbers: list[int] = []
    errors: list[float] = []
    for number, rate in enumerate(rates):
        if heard:
            trend *= DAMPING
            level = max(0.0, level + trend)
        gap += 1
        if math.isnan(rate):
            continue
        if not heard:
            level = rate
        else:
            error = rate - level
            alpha = max(1.0 - math.exp(-gap * decay), 1.0 / (heard + 1))
            level += alpha * error
            trend += alpha * trend_share * error
            numbers.append(number)
            errors.append(error)
        heard, gap = heard + 1, 0
    return level, trend, numbers, errors


def _damped(ahead: int) -> float:
    """Σ damping^i, i = 1 .. ahead."""
    return DAMPING * (1.0 - DAMPING**ahead) / (1.0 - DAMPING)


def _growth(ahead: int, alpha: float, trend_share: float) -> float:
    """Standard deviation of the error `ahead` windows away over that of the next window."""
    steps = np.arange(1, ahead)
    parts = alpha * (1.0 + trend_share * DAMPING * (1.0 - DAMPING**steps) / (1.0 - DAMPING))
    return float((1.0 + parts @ parts) ** 0.5)
