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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE

_ROUNDING_W = 1e-7


class DividedRow(NamedTuple):
    """A row that a replica may run at."""

    sm_percent: float
    worth: float
    power_w: float


class _Sum(NamedTuple):
    """What the replicas so far come to, and their rows."""

    sm_percent: float
    power_w: float
    worth: float
    rows: tuple[int, ...]


def divide(
    replicas: Sequence[Sequence[DividedRow]], *, power_w: float
) -> tuple[int, ...] | None:
    """Each replica's row, by its place among its own; None where no rows fit. Of equals the fewest SMs, then watts.

    O(replicas · sums · rows) with sums the undominated ones: some hundred for six replicas of ten rows.
    """
    sums = [_Sum(0.0, 0.0, 0.0, ())]
    for rows in replicas:
        grown = (
            _Sum(
                one.sm_percent + row.sm_percent,
                one.power_w + row.power_w,
                one.worth + row.worth,
                (*one.rows, place),
            )
            for one in sums
            for place, row in enumerate(rows)
        )
        sums = _undominated(
            one
            for one in grown
            if one.sm_percent <= 100.0 + SM_PERCENT_TOLERANCE
            and one.power_w <= power_w * (1.0 + _ROUNDING_W)
        )
    best = max(
        sums,
        key=lambda one: (one.worth, -one.sm_percent, -one.power_w),
        default=None,
    )
    return best.rows if best else None


def _undominated(sums: Iterable[_Sum]) -> list[_Sum]:
    """Those that no other one beats in all three."""
    kept: list[_Sum] = []
    # By falling worth, only earlier ones can beat a later one.
    for one in sorted(sums, key=lambda one: (-one.worth, one.sm_percent, one.power_w)):
        if not any(
            other.sm_percent <= one.sm_percent and other.power_w <= one.power_w
            for other in kept
        ):
            kept.append(one)
    return kept
