"""Branching rows: how many GPUs may run patterns of some kind, and what such limits say of the modes' counts."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.columns import Pattern
from solvers.joint.patterns.tables import Tables


class BranchingRow(NamedTuple):
    """A kind of patterns: those of some modes, or only those of them that hold a candidate of a range."""

    modes: tuple[int, ...]
    """One mode, or all modes of one GPU type."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Per mode the first candidate and the one after the last, all of one service; empty for patterns of any kind."""

    def counts(self, pattern: Pattern) -> bool:
        """Whether the pattern is of the kind."""
        if pattern.mode not in self.modes:
            return False
        if not self.ranges:
            return True
        first, last = self.ranges[self.modes.index(pattern.mode)]
        return any(first <= item < last for item in pattern.items)


def type_rows(tables: Tables) -> dict[int, BranchingRow]:
    """GPU type → GPUs of the type, for types that can run anything."""
    kinds = tables.mode_types.tolist()
    return {
        one: BranchingRow(tuple(at for at, kind in enumerate(kinds) if kind == one))
        for one in sorted(set(kinds))
    }


Limits = Mapping[BranchingRow, tuple[float, float]]
"""Fewest and most GPUs of each kind."""
NO_LIMITS: Limits = {}


class Boxes(NamedTuple):
    """Limits of whole modes and types, as the rows without ranges say."""

    mode_low: Reals
    mode_high: Reals
    """(M,)"""
    type_low: Reals
    type_high: Reals
    """(G,)"""


def make_boxes(tables: Tables, stock: Reals, limits: Limits) -> Boxes:
    """The boxes of a stock of (G,) GPUs under limits."""
    modes = len(tables.modes)
    boxes = Boxes(
        np.zeros(modes),
        np.full(modes, np.inf),
        np.zeros(len(stock)),
        stock.copy(),
    )
    of_modes = ((row, ends) for row, ends in limits.items() if not row.ranges)
    for row, (low, high) in of_modes:
        # A type with a single mode has one row for both: as a limit of that mode it says the same.
        if len(row.modes) == 1:
            at = row.modes[0]
            lows = boxes.mode_low
            highs = boxes.mode_high
        else:
            at = tables.modes[row.modes[0]].gpu_type
            lows = boxes.type_low
            highs = boxes.type_high
        lows[at], highs[at] = max(lows[at], low), min(highs[at], high)
    return boxes


def min_cost(tables: Tables, boxes: Boxes, costs: Reals) -> float:
    """The least Σ costs_m · n_m over counts n within the boxes; infinite where there are none. costs: (M,)."""
    # Boxes of modes and types are nested, so that types do not depend on each other.
    types = tables.mode_types
    return sum(
        _min_cost_of_type(types == one, boxes, one, costs)
        for one in range(len(boxes.type_low))
    )


def _min_cost_of_type(
    of_type: npt.NDArray[np.bool_],
    boxes: Boxes,
    gpu_type: int,
    costs: Reals,
) -> float:
    """Greedy, which is exact: the cheapest modes first, as many as pay for themselves or must be."""
    costs, low, high = costs[of_type], boxes.mode_low[of_type], boxes.mode_high[of_type]
    min_count = float(boxes.type_low[gpu_type])
    max_count = float(boxes.type_high[gpu_type])
    count = float(low.sum())
    total = float(costs @ low)
    if count > max_count or high.sum() < min_count or (low > high).any():
        return np.inf
    for at in np.argsort(costs, kind="stable"):
        room = min(high[at] - low[at], max_count - count)
        more = room if costs[at] < 0.0 else min(room, max(0.0, min_count - count))
        if more > 0.0:
            count, total = count + more, total + costs[at] * more
    return total
