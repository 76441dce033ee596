"""The report of a plan that comes with no bound, as all policies but `joint` make it."""

from collections.abc import Iterable

from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import PlanReport, PlanStatus, SolveReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem


def heuristic_report(
    problem: Problem,
    plan: Plan,
    *,
    method: str,
    status: PlanStatus = "greedy",
    seconds: float = 0.0,
    messages: Iterable[str] = (),
    steps: tuple[SolveReport, ...] = (),
) -> PlanReport:
    """What the plan costs and, where goodput is the objective, what it serves."""
    is_goodput = problem.objective == "max_goodput"
    return PlanReport(
        status=status,
        cost_usd_per_hour=cost_usd_per_hour(problem, plan),
        seconds=seconds,
        method=method,
        messages=tuple(messages),
        # The contract has no served weight under the other objective, where all that can be served must be.
        served_weight=served_weight(problem, plan) if is_goodput else None,
        steps=steps,
    )
