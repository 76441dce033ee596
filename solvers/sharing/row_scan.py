"""The smallest SM percent by a scan of the rows: the fallback of `exact`, and the check on it.

Exact as well, and without a solver: microseconds for a curve. No bound but itself.
"""

from solvers.sharing.problem import (
    LimitedCurve,
    ShareCurve,
    SharingProblem,
    SharingSolution,
)


def smallest_rows(problem: SharingProblem) -> SharingSolution:
    """For each replica the first row in range whose execution time is within the limit."""
    return SharingSolution(sm_percent=tuple(map(smallest_row, problem.replicas)))


def smallest_row(replica: LimitedCurve) -> float | None:
    """The first row in range whose execution time is within the limit, or None."""
    rows = replica.rows_in_range()
    return next(
        (
            sm
            for sm, execution in zip(rows.sm_percent, rows.execution_ms, strict=True)
            if execution <= replica.limit_ms
        ),
        None,
    )


def crossing_sm_percent(curve: ShareCurve, limit_ms: float) -> float | None:
    """The smallest SM percent, on a row or between two, at which the piecewise-linear curve is within the limit."""
    previous: tuple[float, float] | None = None
    for sm, execution in zip(curve.sm_percent, curve.execution_ms, strict=True):
        if execution <= limit_ms:
            if previous is None:
                return sm
            # The curve is linear between two rows, and the limit lies between their times.
            before, slower = previous
            return before + (sm - before) * (slower - limit_ms) / (slower - execution)
        previous = (sm, execution)
    return None
