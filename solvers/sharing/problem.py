"""Sharing: the smallest SM percent with which each replica keeps its limit.

Sets         R replicas (each a `LimitedCurve`); K_r the SM percents that exist as rows for replica r, ascending.
Parameters   e_r(p), milliseconds of one batch at SM percent p: linear between the rows' values; limit_r ms;
             least_r ≤ most_r, the SM percents between which to look.
Variables    p_r, the SM percent of replica r.
Objective    minimise Σ_r p_r (every p_r on its own: nothing couples the replicas).
Constraints  e_r(p_r) ≤ limit_r: the batch is done in time; least_r ≤ p_r ≤ most_r; p_r ∈ K_r: only rows exist.

Without p_r ∈ K_r and with slopes that never fall, e_r is the maximum of its lines and the problem a linear
programme. Other curves are cut into convex pieces. Rounding up to K_r loses nothing: e_r first meets the limit either
at a row or on a segment that falls towards its right end, so the next row above keeps the limit too.

Source: Mudi's choice of the share on a piecewise-linear latency curve; rows instead
of two fitted segments, and the limit comes from the capacity law (`solvers.laws.colocation.max_execution_ms`).
"""

import itertools
import math
from dataclasses import dataclass

from solvers.laws.colocation import ALONE, Neighbours, executions_ms
from solvers.types.errors import InvalidInput
from solvers.types.problem import OperatingPoints
from solvers.types.state import GpuType


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCurve:
    """Execution time by SM percent; linear in between. Raises InvalidInput unless it is finite and ascending."""

    sm_percent: tuple[float, ...]
    """Ascending, within 0 to 100; the rows that exist."""
    execution_ms: tuple[float, ...]
    """One for each SM percent; > 0; need not fall."""

    def __post_init__(self) -> None:
        # Checked here, since the linear programmes would give any answer for a curve that does not ascend.
        if len(self.sm_percent) != len(self.execution_ms):
            raise InvalidInput(
                "execution_ms",
                f"has {len(self.execution_ms)} values for {len(self.sm_percent)} rows",
            )
        if any(right <= left for left, right in itertools.pairwise(self.sm_percent)):
            raise InvalidInput("sm_percent", "must ascend strictly")
        if not all(0.0 <= value <= 100.0 for value in self.sm_percent):
            raise InvalidInput("sm_percent", "must lie within 0 to 100")
        if not all(0.0 < value < math.inf for value in self.execution_ms):
            raise InvalidInput("execution_ms", "must be finite and above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedCurve:
    """One replica's curve and what it must keep."""

    name: str
    curve: ShareCurve
    limit_ms: float
    """Longest execution time allowed; ≤ 0 when nothing is fast enough, infinite when everything is."""
    min_sm_percent: float = 0.0
    max_sm_percent: float = 100.0

    def rows_in_range(self) -> ShareCurve:
        """The part of the curve within the smallest and the largest SM percent allowed; may be empty."""
        rows = [
            (sm, execution)
            for sm, execution in zip(
                self.curve.sm_percent, self.curve.execution_ms, strict=True
            )
            if self.min_sm_percent <= sm <= self.max_sm_percent
        ]
        return ShareCurve(
            sm_percent=tuple(sm for sm, _ in rows),
            execution_ms=tuple(execution for _, execution in rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingProblem:
    """The replicas to give SM percents to."""

    replicas: tuple[LimitedCurve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSolution:
    """The smallest SM percents."""

    sm_percent: tuple[float | None, ...]
    """For each of the problem's replicas, in its order: the smallest row within the limit, or None if there is none."""


def make_curve(
    points: OperatingPoints,
    *,
    batch: int,
    clock_mhz: float,
    gpu_type: GpuType,
    neighbours: Neighbours = ALONE,
) -> ShareCurve:
    """The curve of the rows with this batch and clock next to these neighbours; empty when there is no such row."""
    # Points come in any order; rows sort by SM percent first, as a curve must.
    rows = sorted(
        row for row in points.rows if row.batch == batch and row.clock_mhz == clock_mhz
    )
    executions = executions_ms(
        rows, neighbours, sensitivity=points.sensitivity, gpu_type=gpu_type
    )
    return ShareCurve(
        sm_percent=tuple(row.sm_percent for row in rows),
        execution_ms=tuple(executions.tolist()),
    )
