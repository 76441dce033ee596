"""The partition of one GPU by the knee points of the networks that share it.

    wish_i = 100 · knee_i / Σ knee     share_i = the largest allowed one that is not above wish_i, at least the least
    then, while SM percent is left, the one farthest below its wish (relative to it) gets its next larger share

Knees are SM percents beyond which more brings a network little (`predict.knee_point`), so that a GPU is full of
networks before any gets more than its knee, and what is left over is shared in proportion.

Source: Morak, section V-C ("allocate resources in proportion to the knee point"). Ours: the grid of shares that a GPU
type or a profile allows, and that nothing is left unused that somebody could take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.predict.knee_point import knee_point
from solvers.predict.two_segments import LEAST_SHARES
from solvers.problem import OperatingPoint

_TOLERANCE = 1e-6
"""Of SM percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one network of a GPU would like."""

    knee_percent: float
    shares: tuple[float, ...]
    """SM percents that it may get, ascending, at least one."""


def knee_percent(rows: Sequence[OperatingPoint]) -> float:
    """The knee of rows of one batch and clock, which differ in SM percent; at least one.

    With fewer than three shares no bend can be seen: then the widest is the knee.
    """
    shares, times_ms = np.array([row.sm_percent for row in rows]), np.array([row.solo_ms for row in rows])
    if len(np.unique(shares)) < LEAST_SHARES:
        return float(shares.max())
    return knee_point(shares, times_ms).sm_percent


def partition(wishes: Sequence[Wish]) -> tuple[float, ...] | None:
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
        able = [at for at, wish in enumerate(wishes) if _next(wish, places[at]) - given[at] <= left]
        if not able:
            return tuple(given)
        at = min(able, key=lambda at: (given[at] / wanted[at], at))
        places[at] += 1
        given[at] = wishes[at].shares[places[at]]


def _next(wish: Wish, place: int) -> float:
    return wish.shares[place + 1] if place + 1 < len(wish.shares) else float("inf")
