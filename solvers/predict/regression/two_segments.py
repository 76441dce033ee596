"""Two straight lines that meet: latency over SM share, as Mudi fits it and as Morak looks for its knee.

    latency_ms(p) = latency_ms_at_breakpoint + slope · (p - breakpoint_percent),
    slope = slope_before for p <= breakpoint_percent, else slope_after

fitted by least squares over breakpoint, level and both slopes. The lines never rise with the share, and the second is
no steeper than the first: more SMs do not slow a network down, and each further one brings less.

For a given breakpoint x and largest share t the curve is a sum of 1, t - p and max(x - p, 0) with coefficients >= 0,
so a non-negative least-squares problem in three unknowns; the breakpoint is searched between the second and the last
but one distinct share, so that both lines have a sample of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar, nnls

from solvers.predict.data.fit import TooFewSamples

Reals = npt.NDArray[np.float64]

MIN_SHARES = 3
"""Distinct shares that determine the two lines: with three, the breakpoint is the one in the middle."""
# Of the first, even grid: every second percent when shares run from 5 to 100.
_BREAKPOINTS = 49
# In SM percent; far less than one SM of any GPU.
_BREAKPOINT_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSegments:
    """A latency curve over the SM share; slopes in ms per SM percent, slope_before <= slope_after <= 0."""

    breakpoint_percent: float
    latency_ms_at_breakpoint: float
    slope_before: float
    slope_after: float

    def latency_ms(self, sm_percent: npt.ArrayLike) -> Reals:
        """The curve at these shares, of their shape; outside the samples' shares the lines go on."""
        beyond = np.asarray(sm_percent, dtype=np.float64) - self.breakpoint_percent
        slope = np.where(beyond <= 0.0, self.slope_before, self.slope_after)
        return np.asarray(self.latency_ms_at_breakpoint + slope * beyond)


def fit_two_segments(
    sm_percent: Reals, latency_ms: Reals, *, weight: Reals
) -> TwoSegments:
    """The curve with the smallest Σ (weight · error)²; all three arrays are (N,), in any order.

    Raises TooFewSamples when fewer than three distinct shares are measured.
    """
    shares = np.unique(sm_percent)
    if len(shares) < MIN_SHARES:
        raise TooFewSamples(
            f"two segments need {MIN_SHARES} distinct SM shares, not {len(shares)}"
        )

    # Per share (N, 3) the functions that the module's docstring names; only the last depends on the breakpoint.
    basis = np.stack([weight, weight * (shares[-1] - sm_percent), weight], axis=1)
    weighted_ms = latency_ms * weight

    def solve(breakpoint_percent: float) -> tuple[Reals, float]:
        before = np.maximum(breakpoint_percent - sm_percent, 0.0)
        np.multiply(weight, before, out=basis[:, 2])
        return nnls(basis, weighted_ms)

    at = _minimum(
        lambda share: solve(share)[1], low=float(shares[1]), high=float(shares[-2])
    )
    level, fall, extra_fall = solve(at)[0]
    return TwoSegments(
        breakpoint_percent=at,
        latency_ms_at_breakpoint=float(level + fall * (shares[-1] - at)),
        slope_before=float(-fall - extra_fall),
        slope_after=float(-fall),
    )


def _minimum(misfit: Callable[[float], float], *, low: float, high: float) -> float:
    """Where the misfit is smallest; it has several local minima, so a grid comes before the descent."""
    if low == high:
        return low
    grid = np.linspace(low, high, _BREAKPOINTS)
    best = float(grid[int(np.argmin([misfit(float(share)) for share in grid]))])
    step = (high - low) / (_BREAKPOINTS - 1)
    descent = minimize_scalar(
        misfit,
        bounds=(max(low, best - step), min(high, best + step)),
        method="bounded",
        options={"xatol": _BREAKPOINT_TOLERANCE},
    )
    # The descent never tries the ends of its bounds, and the best may be one.
    found = float(descent.x)
    return found if misfit(found) < misfit(best) else best
