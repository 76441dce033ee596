"""Sharing's quality chain: linear programmes within the budget, else the scan of the rows, which is exact too."""

from solvers.sharing.problem import SharingProblem, SharingSolution
from solvers.sharing.row_scan import smallest_rows
from solvers.types.outcome import Budget, SolveReport, SolveStatus


def solve(
    problem: SharingProblem, budget: Budget
) -> tuple[SharingSolution, SolveReport]:
    """The smallest row within the limit for every replica.

    Status OPTIMAL, or INFEASIBLE when some replica has no such row: it gets None and a message, and the answers of
    the others stand. Objective and bound are the sum of the SM percents.
    """
    started = budget.elapsed()
    solution, method, messages = _within_budget(problem, budget)
    missing = [
        replica.name
        for replica, sm in zip(problem.replicas, solution.sm_percent, strict=True)
        if sm is None
    ]
    total = sum(sm for sm in solution.sm_percent if sm is not None)
    report = SolveReport(
        technique="sharing",
        method=method,
        status=SolveStatus.INFEASIBLE if missing else SolveStatus.OPTIMAL,
        objective=total,
        bound=total,
        seconds=budget.elapsed() - started,
        messages=(
            *messages,
            *(f"{name}: no SM percent is fast enough" for name in missing),
        ),
    )
    return solution, report


def _within_budget(
    problem: SharingProblem, budget: Budget
) -> tuple[SharingSolution, str, tuple[str, ...]]:
    scanned = smallest_rows(problem)
    if budget.remaining_s() <= 0.0:
        return scanned, "closed-form", ("no time left for CVXPY",)
    # Here, because it imports CVXPY, which a caller without time must not pay for.
    from solvers.sharing.exact import solve_exact

    solution, status = solve_exact(problem, seconds=budget.remaining_s())
    if solution is None:
        return scanned, "closed-form", (f"CVXPY gave no answer: {status}",)
    # The scan is exact: an answer that differs from it was spoiled by the solver's tolerance.
    if solution != scanned:
        message = "CVXPY's answer differs from the scan of the rows, which is exact"
        return scanned, "closed-form", (message,)
    return solution, "cvxpy-clarabel", ()
