"""What one solve answers: a plan, what is proven of all others, and how it came about."""

from dataclasses import dataclass

from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import Prices, SolveReport, SolveStatus
from solvers.types.plan import Plan
from solvers.types.problem import Problem

TECHNIQUE = "joint"
OPTIMAL_GAP = 1e-4
"""Relative gap from which a plan counts as optimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSolution:
    """The plan and what is proven about all others."""

    plan: Plan
    cost_bound: float | None
    """USD per hour without migration: no plan that serves as much, and misses no more replicas, costs less."""
    served_weight_bound: float
    """No plan's Σ priority · served rps is more."""
    found_s: float = 0.0
    """Seconds into the budget at which the plan was found; 0 where no time passes."""
    prices: Prices | None = None
    """Prices from the relaxation; None where there is nothing to serve."""


def state_solution(
    problem: Problem,
    plan: Plan,
    cost_bound: float,
    *,
    served_bound: float,
    method: str = "nothing to serve",
    messages: tuple[str, ...] = (),
) -> tuple[JointSolution, SolveReport]:
    """The solution with bounds no tighter than the plan itself shows to be possible, and its report."""
    cost = cost_usd_per_hour(problem, plan)
    weight = served_weight(problem, plan)
    is_goodput = problem.objective == "max_goodput"
    # Rounding may leave a bound on the wrong side of a plan that reaches it.
    served_bound = max(float(served_bound), weight)
    cost_bound = min(max(0.0, float(cost_bound)), cost)
    serves_most = served_bound - weight <= OPTIMAL_GAP * weight
    is_cheapest = cost - cost_bound <= OPTIMAL_GAP * cost_bound
    is_optimal = serves_most and (is_goodput or is_cheapest)
    report = SolveReport(
        technique=TECHNIQUE,
        method=method,
        status=SolveStatus.OPTIMAL if is_optimal else SolveStatus.FEASIBLE,
        objective=weight if is_goodput else cost,
        bound=served_bound if is_goodput else cost_bound,
        messages=messages,
    )
    solution = JointSolution(
        plan=plan,
        cost_bound=None if is_goodput else cost_bound,
        served_weight_bound=served_bound,
    )
    return solution, report
