"""The partition of one GPU by the knee points of the networks that share it.

    part_i = 100 · knee_i / Σ knee     share_i = the largest allowed one that is not above part_i, else the smallest
    then, while SM percent is left, the one farthest below its part (relative to it) gets its next larger share

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
"""SM percents that differ by less are equal."""


def knee_percent(rows: Sequence[OperatingPoint]) -> float:
    """The knee of rows of one batch and clock, which differ in SM percent; at least one.

    With fewer than three shares no bend can be seen: then the widest is the knee.
    """
    shares = np.array([row.sm_percent for row in rows])
    if len(np.unique(shares)) < MIN_SHARES:
        return float(shares.max())
    return knee_point(shares, np.array([row.solo_ms for row in rows])).sm_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """What one network of a GPU would like."""

    knee_percent: float
    shares: tuple[float, ...]
    """SM percents that it may get, ascending, at least one."""

    def place_up_to(self, part: float) -> int:
        """The place of the largest share that is not above its part; else of the smallest."""
        return max(0, sum(share <= part + _TOLERANCE for share in self.shares) - 1)

    def next_share(self, place: int) -> float:
        """The next larger share; infinite where there is none."""
        return self.shares[place + 1] if place + 1 < len(self.shares) else float("inf")


def partition(requests: Sequence[ShareRequest]) -> tuple[float, ...] | None:
    """The SM percent of each, in their order, together at most 100; None where not even their least shares fit.

    Who comes first in the order gets what two want equally. Complexity: O(n · shares) steps of O(n).
    """
    total = sum(each.knee_percent for each in requests)
    # Section V-C: resources in proportion to the knee points.
    parts = [100.0 * each.knee_percent / total for each in requests]
    places = [
        each.place_up_to(part) for each, part in zip(requests, parts, strict=True)
    ]

    # A smallest share may lie above its part; then the others give way, the one farthest above its part first.
    while sum(shares := _given(requests, places)) > 100.0 + _TOLERANCE:
        able = [at for at, place in enumerate(places) if place > 0]
        if not able:
            return None
        places[max(able, key=lambda at: (shares[at] / parts[at], -at))] -= 1

    # What rounding down left over is given away: SMs that no replica holds are idle under MPS.
    while able := _able_to_grow(requests, places, shares):
        places[min(able, key=lambda at: (shares[at] / parts[at], at))] += 1
        shares = _given(requests, places)
    return tuple(shares)


def _given(requests: Sequence[ShareRequest], places: Sequence[int]) -> list[float]:
    return [each.shares[at] for each, at in zip(requests, places, strict=True)]


def _able_to_grow(
    requests: Sequence[ShareRequest],
    places: Sequence[int],
    given: Sequence[float],
) -> list[int]:
    left = 100.0 - sum(given) + _TOLERANCE
    return [
        at
        for at, each in enumerate(requests)
        if each.next_share(places[at]) - given[at] <= left
    ]


_MIN_GAIN = 0.05
"""A gain below this part of the latency at the smallest share is the noise of one measurement."""
_MIN_BEND = 0.05
"""A bend below this part of the first slope is none: a straight line fitted in floating point bends a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """A knee point; slopes in ms per SM percent, slope_before <= slope_after <= 0."""

    sm_percent: float
    latency_ms: float
    """What the fitted curve has at the knee."""
    slope_before: float
    slope_after: float


def knee_point(sm_percent: Reals, latency_ms: Reals) -> Knee:
    """The knee of a latency curve measured at shares (N,), in any order and with repetitions.

    Raises TooFewSamples when fewer than three distinct shares are measured.
    """
    # The paper reads the knee off a curve where its slope "changes significantly" (section III-C); the breakpoint of
    # two segments is a definition of it that a program can compute.
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
    # A network that more SMs do not help has its knee at the smallest share, and one that every SM helps alike at the
    # largest.
    if at_low - at_high <= _MIN_GAIN * at_low:
        return low
    bend = curve.slope_after - curve.slope_before
    return high if bend <= _MIN_BEND * -curve.slope_before else curve.breakpoint_percent
