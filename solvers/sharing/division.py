"""Division: the SM percents of all replicas of one GPU at once, for the most that they do together.

Sets         R replicas; K_r the rows that replica r may run at, all at the GPU's clock.
Parameters   p_rk SM percent, v_rk worth (requests per second by priority), w_rk watts of row k; W watts for all.
Variables    k_r, the row of each replica.
Objective    maximise Σ_r v_{r k_r}.
Constraints  Σ_r p_{r k_r} ≤ 100; Σ_r w_{r k_r} ≤ W.

Both sums couple the replicas, so that no scan of single curves answers it. Method: replica by replica, all ways that no
other one beats in SM percent, watts and worth (dynamic programming over undominated sums): exact. Worth may have any
shape. `bench.sharing` compares it with the linear programme over mixtures of rows, in CVXPY: that bounds it from
above, and rounded down loses some per cent in more time.

Source: multiple-choice knapsack with two budgets (Kellerer, Pferschy, Pisinger, "Knapsack Problems", 2004, chapter 11).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE

_ROUNDING_W = 1e-7


class DividedRow(NamedTuple):
    """A row that a replica may run at."""

    sm_percent: float
    worth: float
    power_w: float


class Division(NamedTuple):
    """One division."""

    places: tuple[int, ...]
    """Each replica's row, by its place among its own."""
    is_power_bound: bool
    """Whether more could be done with more watts."""


def divide(
    replicas: Sequence[Sequence[DividedRow]], *, power_w: float
) -> Division | None:
    """The division of most worth; None where no rows fit. Of equals the fewest SMs.

    O(replicas · sums · rows) with sums the undominated ones: one per SM percent where watts do not bind, else some
    hundred for six replicas of ten rows.
    """
    limit_w = power_w * (1.0 + _ROUNDING_W)
    # Without watts there are few sums; where what they leave draws little enough, that was all.
    best = _best(replicas, math.inf)
    if best is None:
        return None
    draw_w = sum(
        rows[place].power_w for rows, place in zip(replicas, best.rows, strict=True)
    )
    if draw_w <= limit_w:
        return Division(best.rows, is_power_bound=False)
    best = _best(replicas, limit_w)
    return None if best is None else Division(best.rows, is_power_bound=True)


class _Sum(NamedTuple):
    """What the replicas so far come to, and their rows."""

    sm_percent: float
    power_w: float
    """0 where there is no limit."""
    worth: float
    rows: tuple[int, ...]


def _best(replicas: Sequence[Sequence[DividedRow]], limit_w: float) -> _Sum | None:
    sums = [_Sum(0.0, 0.0, 0.0, ())]
    for rows in replicas:
        # Ascending in SM percent, so that the first row that does not fit ends the search for wider ones.
        ascending = sorted(enumerate(rows), key=lambda each: each[1])
        sums = _undominated(
            grown for one in sums for grown in _grown(one, ascending, limit_w)
        )
    return max(
        sums,
        key=lambda one: (one.worth, -one.sm_percent, -one.power_w),
        default=None,
    )


def _grown(
    one: _Sum, ascending: Sequence[tuple[int, DividedRow]], limit_w: float
) -> Iterator[_Sum]:
    """The sum with each of the next replica's rows that fits."""
    for place, row in ascending:
        sm_percent = one.sm_percent + row.sm_percent
        if sm_percent > 100.0 + SM_PERCENT_TOLERANCE:
            break
        watts = one.power_w + (row.power_w if limit_w < math.inf else 0.0)
        if watts <= limit_w:
            yield _Sum(sm_percent, watts, one.worth + row.worth, (*one.rows, place))


def _undominated(sums: Iterable[_Sum]) -> list[_Sum]:
    """Those that no other one beats in all three."""
    kept: list[_Sum] = []
    # By falling worth, only earlier ones can beat a later one.
    for one in sorted(sums, key=lambda one: (-one.worth, one.sm_percent, one.power_w)):
        for other in kept:
            if other.sm_percent <= one.sm_percent and other.power_w <= one.power_w:
                break
        else:
            kept.append(one)
    return kept
