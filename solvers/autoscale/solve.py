"""The autoscaling technique's quality chain: exact within the budget → best incumbent → greedy."""

from typing import Literal

from solvers.autoscale.greedy import solve_greedy
from solvers.autoscale.problem import AutoscaleProblem, AutoscaleSolution
from solvers.autoscale.program import (
    Counts,
    ExactAnswer,
    ScalingProgram,
    decode,
    fits,
    is_better,
    make_program,
    score,
)
from solvers.types.outcome import Budget, IntegerSolver, SolveReport, SolveStatus

Method = IntegerSolver | Literal["greedy"]


def solve(
    problem: AutoscaleProblem, budget: Budget, *, method: Method = "cp_sat"
) -> tuple[AutoscaleSolution, SolveReport]:
    """Replica counts that keep every limit, never worse than the greedy's, and how they came about.

    The report's objective and bound are level 3 of the formulation (HetSev's cost: what changes, against what runs);
    its method says which way spoke: `cp-sat`, `highs`, `cbc` or `greedy`. Raises InvalidInput.
    """
    begun = budget.elapsed()
    program = make_program(problem)
    greedy = solve_greedy(program)
    answer = _solve_exact(program, start=greedy, budget=budget, method=method)
    counts, objection = _accept(program, answer, greedy)
    answered_by = method.replace("_", "-")
    status = answer.status
    if counts is None:
        # The greedy's counts keep every limit, so that a failed solver still leaves a plan.
        counts = greedy
        answered_by = "greedy"
        status = SolveStatus.FEASIBLE
    report = SolveReport(
        technique="autoscale",
        method=answered_by,
        status=status,
        objective=score(program, counts).cost_usd_per_hour,
        bound=answer.bound,
        seconds=budget.elapsed() - begun,
        messages=(*answer.messages, *objection),
    )
    return decode(program, counts), report


def _solve_exact(
    program: ScalingProgram, *, start: Counts, budget: Budget, method: Method
) -> ExactAnswer:
    if method == "greedy":
        return ExactAnswer(status=SolveStatus.UNKNOWN)
    if budget.remaining_s() == 0:
        message = f"{method}: no time was left to try it"
        return ExactAnswer(status=SolveStatus.TIME_LIMIT, messages=(message,))
    # Imported here so that a greedy answer never pays for loading a solver.
    if method == "cp_sat":
        from solvers.autoscale.exact_cp_sat import solve_cp_sat

        return solve_cp_sat(program, start=start, budget=budget)
    from solvers.autoscale.exact_pulp import solve_pulp

    return solve_pulp(program, start=start, budget=budget, solver=method)


def _accept(
    program: ScalingProgram, answer: ExactAnswer, greedy: Counts
) -> tuple[Counts | None, tuple[str, ...]]:
    """The exact counts where they are valid and no worse than the greedy's; else None, and why."""
    if answer.counts is None:
        return None, ()
    if not fits(program, answer.counts):
        return None, ("the solver's counts broke a limit",)
    if is_better(program, score(program, greedy), score(program, answer.counts)):
        return None, ("the greedy's counts are better than the solver's",)
    return answer.counts, ()
