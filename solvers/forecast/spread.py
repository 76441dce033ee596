"""How far a window's rate lies from its forecast: what the recent windows showed, at least Poisson's noise."""

import numpy as np

from solvers.forecast.types import Reals

SURPRISE_DEVIATIONS = 3.0
SMOOTHING_S = 60.0
_SMOOTHING_WINDOWS = 6.0
# Standard deviation of a normal variable over the median of its absolute value.
NORMAL_PER_MEDIAN = 1.4826


def median_of(values: Reals) -> float:
    """The median, of an even number the larger of the two in the middle; a fifth of the time that `np.median` takes."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def smoothing_of(window_s: float) -> float:
    """Seconds in which a window's weight falls to 1/e: a minute, or six windows where windows are long."""
    return max(SMOOTHING_S, _SMOOTHING_WINDOWS * window_s)


def weights_of(ages_s: Reals, smoothing_s: float) -> Reals:
    """Weights that sum to 1 and fall with age, exp(−age / smoothing_s). ages_s: (T,), newest last."""
    weights: Reals = np.exp((ages_s[-1:] - ages_s) / smoothing_s)
    weights /= weights.sum()
    return weights


def poisson_rps(expected_rps: float, window_s: float) -> float:
    """Standard deviation of one window's rate when requests come independently."""
    return float((max(0.0, expected_rps) / window_s) ** 0.5)


def scatter_rps(residuals: Reals, weights: Reals, noise_rps: float) -> float:
    """Weighted root mean square of the residuals, each counted up to three times their usual size.

    Without that limit one odd window (an agent that was held up, a retry storm) would rule the margin for minutes.
    """
    sizes = np.abs(residuals)
    usual = max(noise_rps, NORMAL_PER_MEDIAN * median_of(sizes))
    limited = np.minimum(sizes, SURPRISE_DEVIATIONS * usual)
    return float((weights @ limited**2) ** 0.5)


def spread_rps(
    residuals: Reals, weights: Reals, *, expected_rps: float, window_s: float
) -> float:
    """Standard deviation to plan with: the scatter of the residuals, at least Poisson's noise.

    residuals, weights: (T,); without any, Poisson's noise alone.
    """
    noise = poisson_rps(expected_rps, window_s)
    if len(residuals) == 0:
        return noise
    return max(noise, scatter_rps(residuals, weights, noise))
