"""The partition of one GPU by the knee points of the networks that share it.

    wish_i = 100 · knee_i / Σ knee     share_i = the largest allowed one that is not above wish_i, at least the least
    then, while SM percent is left, the one farthest below its wish (relative to it) gets its next larger share

Knees are SM percents beyond which more brings a network little (`knee_point`), so that a GPU is full of
networks before any gets more than its knee, and what is left over is shared in proportion.

Source: Morak, section V-C ("allocate resources in proportion to the knee point"). Ours: the grid of shares that a GPU
type or a profile allows, and that nothing is left unused that somebody could take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.predict.data.samples import Reals
from solvers.predict.regression.two_segments import (
    MIN_SHARES,
    TwoSegments,
    fit_two_segments,
)
from solvers.types.problem import OperatingPoint

_TOLERANCE = 1e-6
"""Of SM percent."""


def knee_percent(rows: Sequence[OperatingPoint]) -> float:
    """The knee of rows of one batch and clock, which differ in SM percent; at least one.

    With fewer than three shares no bend can be seen: then the widest is the knee.
    """
    shares, times_ms = (
        np.array([row.sm_percent for row in rows]),
        np.array([row.solo_ms for row in rows]),
    )
    if len(np.unique(shares)) < MIN_SHARES:
        return float(shares.max())
    return knee_point(shares, times_ms).sm_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """What one network of a GPU would like."""

    knee_percent: float
    shares: tuple[float, ...]
    """SM percents that it may get, ascending, at least one."""


def partition(wishes: Sequence[ShareRequest]) -> tuple[float, ...] | None:
    """The SM percent of each, in their order, together at most 100; None where not even their least shares fit.

    Who comes first in the order gets what two want equally. Complexity: O(n · shares) steps of O(n).
    """
    total = sum(wish.knee_percent for wish in wishes)
    wanted = [100.0 * wish.knee_percent / total for wish in wishes]
    places = [
        max(0, sum(share <= want + _TOLERANCE for share in wish.shares) - 1)
        for wish, want in zip(wishes, wanted, strict=True)
    ]
    given = [wish.shares[place] for wish, place in zip(wishes, places, strict=True)]
    while sum(given) > 100.0 + _TOLERANCE:
        # A least share may lie above its wish; then the others give way, who is farthest above its wish first.
        able = [at for at, place in enumerate(places) if place > 0]
        if not able:
            return None
        at = max(able, key=lambda at: (given[at] / wanted[at], -at))
        places[at] -= 1
        given[at] = wishes[at].shares[places[at]]
    while True:
        left = 100.0 - sum(given) + _TOLERANCE
        able = [
            at
            for at, wish in enumerate(wishes)
            if _next(wish, places[at]) - given[at] <= left
        ]
        if not able:
            return tuple(given)
        at = min(able, key=lambda at: (given[at] / wanted[at], at))
        places[at] += 1
        given[at] = wishes[at].shares[places[at]]


def _next(wish: ShareRequest, place: int) -> float:
    return wish.shares[place + 1] if place + 1 < len(wish.shares) else float("inf")


_MIN_GAIN = 0.05  # Of the latency at the least share: the noise of one measurement, so not a gain.
_MIN_BEND = (
    0.05  # Of the first slope; a straight line fitted in floating point bends a little.
)


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
    share = _knee_percent(
        curve, low=float(sm_percent.min()), high=float(sm_percent.max())
    )
    return Knee(
        sm_percent=share,
        latency_ms=float(curve.latency_ms(share)),
        slope_before=curve.slope_before,
        slope_after=curve.slope_after,
    )


def _knee_percent(curve: TwoSegments, *, low: float, high: float) -> float:
    at_low, at_high = curve.latency_ms([low, high])
    if at_low - at_high <= _MIN_GAIN * at_low:
        return low
    bend = curve.slope_after - curve.slope_before
    return high if bend <= _MIN_BEND * -curve.slope_before else curve.breakpoint_percent
