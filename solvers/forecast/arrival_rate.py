"""The arrival rate of the next period from the counts of the last ones: level, trend, and a margin above both.

Discounted least squares, which is what double exponential smoothing computes, but in one step and for windows of
unequal length: a line through the windows' rates, weighted by length · exp(−age / smoothing_s), read off in the middle
of the next period.

* The trend counts only as far as it stands out from Poisson noise (it is shrunk by the variance that noise alone gives
  it), so that steady traffic makes a steady forecast.
* The margin is the normal quantile of `percentile` times the spread of one window's rate: at least Poisson's
  √(rate / window), more where the recent windows scattered more, so that bursts are remembered.
* A newest window above the line by more than noise explains (three standard deviations) is a step or a spike, and the
  line is lifted to it: too many replicas for a minute cost less than missed SLOs.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.errors import InvalidInput

Reals = npt.NDArray[np.float64]

DEFAULT_SMOOTHING_S = 60.0
# exp(-8) = 0.0003: what is older has no say, and after that long a silence the forecast is exactly 0.
_REMEMBERED_SMOOTHINGS = 8.0
_FEWEST_FOR_TREND = 3
_SURPRISE_DEVIATIONS = 3.0
# Standard deviation of a normal variable over the median of its absolute value.
_NORMAL_PER_MEDIAN = 1.4826


def forecast_rate(
    arrivals: Reals,
    window_s: Reals,
    *,
    headroom: float = 1.0,
    percentile: float = 0.95,
    smoothing_s: float = DEFAULT_SMOOTHING_S,
) -> float | None:
    """The rate in rps that the next period, as long as the newest window, exceeds with chance 1 − `percentile` only.

    arrivals: (T,) requests counted in each window, oldest first, the windows following each other. window_s: (T,) their
    lengths, > 0. headroom: factor on the forecast, ≥ 1. percentile: 0.5 <= percentile < 1.
    Without any window there is nothing to say: None. Windows without any request say 0. Raises InvalidInput.
    """
    _check(arrivals, window_s)
    if not (1.0 <= headroom < np.inf and 0.5 <= percentile < 1.0 and 0.0 < smoothing_s < np.inf):
        raise InvalidInput(
            "", f"headroom {headroom}, percentile {percentile} or smoothing_s {smoothing_s} out of range"
        )
    if len(arrivals) == 0:
        return None
    ages_s = np.cumsum(window_s[::-1])[::-1] - window_s / 2
    kept = ages_s <= max(_REMEMBERED_SMOOTHINGS * smoothing_s, ages_s[-1])
    arrivals, window_s, ages_s = arrivals[kept], window_s[kept], ages_s[kept]
    if not arrivals.any():
        return 0.0
    line = _fit(arrivals, window_s, ages_s, smoothing_s)
    rates = arrivals / window_s
    expected = max(0.0, line.rate_rps(-float(window_s[-1]) / 2))
    if _is_surprise(arrivals, window_s, ages_s, smoothing_s):
        expected = max(expected, float(rates[-1]))
    noise = float(np.sqrt(expected / window_s[-1]))
    scatter = _scatter_rps(rates - line.rates_rps(ages_s), _weights(window_s, ages_s, smoothing_s), noise)
    return headroom * (expected + NormalDist().inv_cdf(percentile) * max(noise, scatter))


def _scatter_rps(residuals: Reals, weights: Reals, noise_rps: float) -> float:
    """Weighted root mean square of the residuals, each counted up to three times their usual size.

    Without that limit one odd window (an agent that was held up, a retry storm) would rule the margin for minutes.
    """
    usual = max(noise_rps, _NORMAL_PER_MEDIAN * float(np.median(np.abs(residuals))))
    limited = np.minimum(np.abs(residuals), _SURPRISE_DEVIATIONS * usual)
    return float(np.sqrt(weights @ limited**2))


class _Line(NamedTuple):
    """A rate that changes evenly with time; an age is seconds before now, negative in the future."""

    level_rps: float
    """At `centre_s`."""
    slope_rps_per_s: float
    centre_s: float

    def rate_rps(self, age_s: float) -> float:
        return self.level_rps + self.slope_rps_per_s * (self.centre_s - age_s)

    def rates_rps(self, ages_s: Reals) -> Reals:
        return self.level_rps + self.slope_rps_per_s * (self.centre_s - ages_s)


def _weights(window_s: Reals, ages_s: Reals, smoothing_s: float) -> Reals:
    weights: Reals = window_s * np.exp(-(ages_s - ages_s[-1]) / smoothing_s)
    weights /= weights.sum()
    return weights


def _fit(arrivals: Reals, window_s: Reals, ages_s: Reals, smoothing_s: float) -> _Line:
    """The line through the windows, its slope shrunk by what Poisson noise alone would make of it."""
    weights = _weights(window_s, ages_s, smoothing_s)
    rates = arrivals / window_s
    level, centre_s = float(weights @ rates), float(weights @ ages_s)
    if len(rates) < _FEWEST_FOR_TREND:
        return _Line(level, 0.0, centre_s)
    lever = weights * (centre_s - ages_s)
    spread = float(lever @ (centre_s - ages_s))
    slope = float(lever @ rates) / spread
    variance = float(lever**2 @ (level / window_s)) / spread**2
    # The positive-part shrinkage of James and Stein; 0 where the slope is 0.
    kept = max(0.0, 1.0 - variance / slope**2) if slope else 0.0
    return _Line(level, kept * slope, centre_s)


def _is_surprise(arrivals: Reals, window_s: Reals, ages_s: Reals, smoothing_s: float) -> bool:
    """Whether the newest window counts more than the line through the others and Poisson noise explain."""
    if len(arrivals) == 1:
        return False
    line = _fit(arrivals[:-1], window_s[:-1], ages_s[:-1], smoothing_s)
    # Poisson's variance is the mean; at least one request, so that after a silence not every request is a surprise.
    foreseen = max(0.0, line.rate_rps(ages_s[-1])) * window_s[-1]
    return bool(arrivals[-1] > foreseen + _SURPRISE_DEVIATIONS * np.sqrt(max(foreseen, 1.0)))


def _check(arrivals: Reals, window_s: Reals) -> None:
    if arrivals.ndim != 1 or arrivals.shape != window_s.shape:
        raise InvalidInput(
            "window_s", f"must have the shape of arrivals, (T,), not {window_s.shape} to {arrivals.shape}"
        )
    if not (np.isfinite(arrivals).all() and (arrivals >= 0).all()):
        raise InvalidInput("arrivals", "must be finite and not negative")
    if not (np.isfinite(window_s).all() and (window_s > 0).all()):
        raise InvalidInput("window_s", "must be finite and above 0")
