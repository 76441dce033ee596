"""The knee point: the SM share beyond which more SMs bring a network little.

The share where the slope of the latency curve changes most, for one network, GPU type and batch: the breakpoint of
the two segments that fit the curve best (least squares of the plain errors, so that the steep part counts).

Source: Morak, section III-C, conclusion 3 and figure 3, which gives knees of 20-30 % and no rule to find them; the
breakpoint is ours, and so are the two curves without a knee:

    flat       the whole range brings less than 5 % of the latency (host-bound networks): the least measured share
    straight   the second segment is as steep as the first: the largest measured share
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.predict.samples import Reals, Samples
from solvers.predict.two_segments import LEAST_SHARES, TwoSegments, fit_two_segments

_LEAST_GAIN = 0.05  # Of the latency at the least share: the noise of one measurement, so not a gain.
_LEAST_BEND = 0.05  # Of the first slope; a straight line fitted in floating point bends a little.


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """A knee point; slopes in ms per SM percent, slope_before <= slope_after <= 0."""

    sm_percent: float
    latency_ms: float
    """Of the fitted curve, at the knee."""
    slope_before: float
    slope_after: float


def knee_point(sm_percent: Reals, latency_ms: Reals) -> Knee:
    """The knee of a latency curve measured at shares (N,), in any order and with repetitions.

    Raises TooFewSamples when fewer than three distinct shares are measured.
    """
    curve = fit_two_segments(sm_percent, latency_ms, weight=np.ones_like(latency_ms))
    share = _knee_percent(curve, low=float(sm_percent.min()), high=float(sm_percent.max()))
    return Knee(
        sm_percent=share,
        latency_ms=float(curve.latency_ms(share)),
        slope_before=curve.slope_before,
        slope_after=curve.slope_after,
    )


def knee_points(samples: Samples) -> Mapping[float, Knee]:
    """The knee at every batch that was measured at three shares or more; samples of one group, clock and quota."""
    knees: dict[float, Knee] = {}
    for batch in np.unique(samples.at.batch):
        rows = np.flatnonzero(samples.at.batch == batch)
        if len(np.unique(samples.at.sm_percent[rows])) >= LEAST_SHARES:
            knees[float(batch)] = knee_point(samples.at.sm_percent[rows], samples.latency_ms[rows])
    return knees


def _knee_percent(curve: TwoSegments, *, low: float, high: float) -> float:
    at_low, at_high = curve.latency_ms([low, high])
    if at_low - at_high <= _LEAST_GAIN * at_low:
        return low
    bend = curve.slope_after - curve.slope_before
    return high if bend <= _LEAST_BEND * -curve.slope_before else curve.breakpoint_percent
