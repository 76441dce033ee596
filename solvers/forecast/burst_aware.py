"""Level, trend, and a margin above both that remembers bursts: the technique that is used until another proves better.

Discounted least squares (Brown, *Smoothing, Forecasting and Prediction of Discrete Time Series*, 1963, ch. 11), which
is what double exponential smoothing computes, but in one step and with gaps: a line through the windows' rates,
weighted by exp(−age / smoothing), read off in the middle of the window asked for.

* A change of level begins the line again: the newest point where the windows after it lie so far from those before it
  that noise does not explain it (the likelihood ratio test for one change of a mean; Page, *Biometrika* 41, 1954).
  Without that a crowd that is over would be planned for as long as the line remembers it.
* The trend counts only as far as it stands out from Poisson noise (it is shrunk by the variance that noise alone gives
  it), so that steady traffic makes a steady forecast; and it is followed ahead for at most half the time that it was
  seen, so that the first step of a new service is not taken for a climb.
* The margin is the normal quantile times the spread of one window's rate: at least Poisson's √(rate / window), more
  where the recent windows scattered more, also before the change of level, as far as the level itself went with it.
* A newest window above the line by more than noise explains (three standard deviations) is a step or a spike, and the
  line is lifted to it: too many replicas for a minute cost less than missed SLOs.

It wins on traffic with steps and spikes at a horizon of seconds; it knows nothing of the time of day.
"""

import math
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from solvers.forecast.spread import (
    NORMAL_PER_MEDIAN,
    SURPRISE_DEVIATIONS,
    median_of,
    poisson_rps,
    smoothing_of,
    spread_rps,
    weights_of,
)
from solvers.forecast.types import ExpectedRate, History, Reals, windows_ahead

Ages = TypeVar("Ages", float, Reals)

NAME = "burst_aware"

# exp(-8) = 0.0003: what is older has no say, and after that long a silence the forecast is exactly 0.
_REMEMBERED_SMOOTHINGS = 8.0
# Where an agent reports every other second the windows come in pairs: six are three readings.
_MIN_FOR_TREND = 6
# Noise of real services lasts for some windows: their calm stretches differ by several deviations of independent ones.
_CHANGE_DEVIATIONS = 10.0
_MAX_CHANGES = 3
# Newest windows in which reports that come late may still be missing.
_INCOMPLETE = 2


def forecast(history: History, horizon_s: float) -> ExpectedRate | None:
    """The rate from level, trend and surprise. See `ForecastTechnique`."""
    series = history.recent
    ahead = windows_ahead(series, horizon_s)
    window_s = series.window_s
    heard = series.heard
    if len(heard) == 0:
        return None
    rates = series.arrivals[heard] / window_s
    ages_s = series.ages_s(heard)
    smoothing_s = smoothing_of(window_s)
    # The newest window stays however old it is: a forecast from it is better than none.
    remembered = ages_s <= max(_REMEMBERED_SMOOTHINGS * smoothing_s, ages_s[-1])
    rates, ages_s = rates[remembered], ages_s[remembered]
    if not rates.any():
        return ExpectedRate(0.0, 0.0)

    jitter = _jitter_rps(rates, window_s)
    usual_rps = float(rates.mean())
    since = _newest_change(rates, jitter)
    rates, ages_s = rates[since:], ages_s[since:]
    weights = weights_of(ages_s, smoothing_s)
    line = _fit(rates, ages_s, weights, window_s)
    # A line that was seen for four seconds says nothing of five seconds ahead.
    reach_s = min((ahead - 0.5) * window_s, float(ages_s[0] - ages_s[-1]) / 2)
    expected = max(0.0, line.rate_rps(-reach_s))
    if _is_surprise(rates, ages_s, weights, window_s):
        expected = max(expected, float(rates[-1]))
    residuals = rates - line.rate_rps(ages_s)
    spread = spread_rps(residuals, weights, expected_rps=expected, window_s=window_s)
    # A level of a few windows has shown nothing of its noise; that of the time before is in proportion to the rate.
    usual_spread = jitter * min(1.0, expected / usual_rps) if since else 0.0
    return ExpectedRate(expected, max(spread, usual_spread))


def _jitter_rps(rates: Reals, window_s: float) -> float:
    """Standard deviation of one window's rate next to its neighbours, which no change of level widens."""
    noise = poisson_rps(float(rates.mean()), window_s)
    if len(rates) < _MIN_FOR_TREND:
        return noise
    # The median, so that a jump counts no more than any other step; a difference holds the noise of two windows.
    between_rps = median_of(np.abs(rates[1:] - rates[:-1])) / math.sqrt(2.0)
    return max(noise, NORMAL_PER_MEDIAN * between_rps)


def _newest_change(rates: Reals, jitter_rps: float) -> int:
    """How many windows lie before the newest clear change of level; 0 where there is none."""
    judged = rates.copy()
    # Not every node may have reported of the newest windows yet: of a fall they are no proof.
    if len(rates) > _INCOMPLETE:
        before = rates[-_INCOMPLETE - 1]
        judged[-_INCOMPLETE:] = np.maximum(rates[-_INCOMPLETE:], before)
    first = 0
    # The clearest change of all is looked for first; what came after it may have changed again.
    for _ in range(_MAX_CHANGES):
        found = _clearest_change(judged[first:], jitter_rps)
        if found == 0:
            break
        first += found
    return first


def _clearest_change(rates: Reals, jitter_rps: float) -> int:
    """How many windows lie before the place where what is left of an even trend differs most; 0: not clearly."""
    if len(rates) < _MIN_FOR_TREND:
        return 0
    places = _places(len(rates))
    # Without the trend a ramp would be cut again and again.
    slope = float(places.times @ rates) / places.lever
    beside = rates - rates.mean() - slope * places.times
    # All of it sums to 0, so that what comes after a place sums to the opposite of what lies before.
    clarity = np.abs(np.cumsum(beside)[:-1]) * places.weights
    found = int(clarity.argmax())
    is_clear = clarity[found] > _CHANGE_DEVIATIONS * jitter_rps
    return found + 1 if is_clear else 0


class _Places(NamedTuple):
    """Where a number of windows may be cut in two."""

    times: Reals
    """(T,) of the windows, from their middle."""
    lever: float
    """Σ times²."""
    weights: Reals
    """(T − 1,) makes of what sums up before a place the step there, over its standard deviation for windows of 1."""


@lru_cache(maxsize=1024)
def _places(total: int) -> _Places:
    times: Reals = np.arange(total, dtype=np.float64) - (total - 1) / 2.0
    before = np.arange(1, total)
    weights: Reals = np.sqrt(1.0 / before + 1.0 / (total - before))
    return _Places(times, float(times @ times), weights)


class _Line(NamedTuple):
    """A rate that changes evenly with time; an age is seconds before now, negative in the future."""

    level_rps: float
    """The rate at `centre_s`."""
    slope_rps_per_s: float
    centre_s: float

    def rate_rps(self, age_s: Ages) -> Ages:
        return self.level_rps + self.slope_rps_per_s * (self.centre_s - age_s)


def _fit(rates: Reals, ages_s: Reals, weights: Reals, window_s: float) -> _Line:
    """The line through the windows, its slope shrunk by what Poisson noise alone would make of it."""
    level = float(weights @ rates)
    centre_s = float(weights @ ages_s)
    if len(rates) < _MIN_FOR_TREND:
        return _Line(level, 0.0, centre_s)
    distances = centre_s - ages_s
    lever = weights * distances
    spread = float(lever @ distances)
    slope = float(lever @ rates) / spread
    variance = float(lever @ lever) * level / window_s / spread**2
    # The positive-part shrinkage of James and Stein; 0 where the slope is 0.
    kept = max(0.0, 1.0 - variance / slope**2) if slope else 0.0
    return _Line(level, kept * slope, centre_s)


def _is_surprise(rates: Reals, ages_s: Reals, weights: Reals, window_s: float) -> bool:
    """Whether the newest window counts more than the line through the others and Poisson noise explain."""
    if len(rates) == 1:
        return False
    older = weights[:-1] / weights[:-1].sum()
    line = _fit(rates[:-1], ages_s[:-1], older, window_s)
    # Poisson's variance is the mean; at least one request, so that after a silence not every request is a surprise.
    foreseen = max(0.0, line.rate_rps(float(ages_s[-1]))) * window_s
    return bool(
        rates[-1] * window_s
        > foreseen + SURPRISE_DEVIATIONS * max(foreseen, 1.0) ** 0.5
    )
