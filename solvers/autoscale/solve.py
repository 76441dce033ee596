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
from solvers.types.outcome import Budget, SolveReport, SolveStatus

Method = Literal["cp-sat", "pulp", "greedy"]


def solve(
    problem: AutoscaleProblem, budget: Budget, *, method: Method = "cp-sat"
) -> tuple[AutoscaleSolution, SolveReport]:
    """Replica counts that keep every limit, never worse than the greedy's, and how they came about.

    The report's objective and bound are level 3 of the formulation (HetSev's cost: what changes, against what runs);
    its method says which way spoke: `cp-sat`, `pulp-cbc` or `greedy`. Raises InvalidInput.
    """
    begun = budget.elapsed()
    program = make_program(problem)
    greedy = solve_greedy(program)
    if method == "greedy":
        answer = ExactAnswer(status=SolveStatus.UNKNOWN)
    elif budget.remaining_s() == 0:
        answer = ExactAnswer(
            status=SolveStatus.TIME_LIMIT,
            messages=(f"{method}: no time was left to try it",),
        )
    else:
        answer = _solve_exact(program, start=greedy, budget=budget, method=method)
    counts, objection = _accept(program, answer, greedy)
    report = SolveReport(
        technique="autoscale",
        method="greedy"
        if counts is None
        else "pulp-cbc"
        if method == "pulp"
        else method,
        status=SolveStatus.FEASIBLE if counts is None else answer.status,
        objective=score(
            program, greedy if counts is None else counts
        ).cost_usd_per_hour,
        bound=answer.bound,
        seconds=budget.elapsed() - begun,
        messages=(*answer.messages, *objection),
    )
    return decode(program, greedy if counts is None else counts), report


def _solve_exact(
    program: ScalingProgram, *, start: Counts, budget: Budget, method: Method
) -> ExactAnswer:
    # Imported here so that a greedy answer never pays for loading a solver.
    if method == "pulp":
        from solvers.autoscale.exact_pulp import solve_pulp

        return solve_pulp(program, start=start, budget=budget)
    from solvers.autoscale.exact_cp_sat import solve_cp_sat

    return solve_cp_sat(program, start=start, budget=budget)


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
