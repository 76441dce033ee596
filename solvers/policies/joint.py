"""Policy `joint`: GPU types, counts, co-location, SM percents, batches and clocks in one optimisation with a bound.

    1. joint     column generation over patterns of whole GPUs, then whole counts (`solvers.joint`)
    2. change    the running GPUs with as few more as the new rates need, less what is superfluous then
    3. keep      the running arrangement, with the new rates
    4. greedy    HetSev's greedy plan, only where the first step ran out of time or broke a rule

The best of these that the checker accepts is the plan: what serves most, then what misses the fewest replicas, then
what is cheapest with migration. Among equals the running arrangement stays.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from solvers.check import violations
from solvers.cost import cost_usd_per_hour, migration_cost_usd_per_hour, served_weight
from solvers.joint.solve import OPTIMAL_GAP, JointSolution, solve
from solvers.outcome import Budget, PlanReport, PlanStatus, SolveReport
from solvers.plan import Plan
from solvers.policies import hetsev_greedy
from solvers.policies.arrange import running_carriers
from solvers.policies.routing import route
from solvers.problem import Problem
from solvers.state import Json, Observed

NAME = "joint"
_SERVED_DIGITS = 6
"""Decimals of the served share of all weight that count."""
_COST_DIGITS = 6


class _Draft(NamedTuple):
    """One plan that might be made."""

    plan: Plan
    status: PlanStatus
    source: str


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,  # noqa: ARG001  nothing is remembered
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan and its report with proven bounds."""
    solution, step = solve(problem, budget)
    best = min(_drafts(problem, solution, observed, budget), key=lambda draft: _merit(problem, draft.plan))
    return best.plan, _report(problem, best, solution, step), None


def _drafts(problem: Problem, solution: JointSolution, observed: Observed, budget: Budget) -> Iterator[_Draft]:
    """Plans that keep every rule; of equals the first is preferred."""
    carriers = running_carriers(problem)
    if carriers:
        kept = route(problem, NAME, carriers, {entry.service: entry.reason for entry in solution.plan.unserved})
        if not violations(problem, kept):
            yield _Draft(kept, "kept", "running arrangement, with new rates")
    if solution.changed is not None:
        changed = replace(solution.changed, policy=NAME)
        if not violations(problem, changed):
            yield _Draft(changed, "feasible", "running arrangement, changed")
    fresh = replace(solution.plan, policy=NAME)
    is_valid = not violations(problem, fresh)
    if is_valid:
        yield _Draft(fresh, "feasible", "fresh arrangement")
    if not is_valid or any(entry.reason == "budget" for entry in fresh.unserved):
        greedy, _, _ = hetsev_greedy.make_plan(problem, observed, None, budget)
        yield _Draft(replace(greedy, policy=NAME), "greedy", "greedy arrangement: the optimisation found no better one")


def _merit(problem: Problem, plan: Plan) -> tuple[float, int, float]:
    """Less is better: unserved share of all weight, missing replicas, cost with migration."""
    everything = sum(service.priority * service.arrival_rate_rps for service in problem.services)
    served = served_weight(problem, plan) / everything if everything > 0.0 else 1.0
    missing = sum(entry.replicas_missing for entry in plan.unserved)
    return -round(served, _SERVED_DIGITS), missing, round(_whole_cost(problem, plan), _COST_DIGITS)


def _whole_cost(problem: Problem, plan: Plan) -> float:
    return cost_usd_per_hour(problem, plan) + migration_cost_usd_per_hour(problem, plan)


def _report(problem: Problem, draft: _Draft, solution: JointSolution, step: SolveReport) -> PlanReport:
    """The report; a plan that is proven best, migration counted, is optimal wherever it came from."""
    plan = draft.plan
    cost, weight = cost_usd_per_hour(problem, plan), served_weight(problem, plan)
    is_goodput = problem.objective == "max_goodput"
    bound, weight_bound = solution.cost_bound, max(weight, solution.served_weight_bound)
    if bound is not None:
        bound = min(bound, cost) if bound > 0.0 or cost <= 0.0 else None
    weight_gap = (weight_bound - weight) / weight_bound if weight_bound > 0.0 else 0.0
    cost_gap = _cost_gap(_whole_cost(problem, plan), bound)
    is_optimal = weight_gap <= OPTIMAL_GAP and (is_goodput or (cost_gap is not None and cost_gap <= OPTIMAL_GAP))
    gap = weight_gap if is_goodput else _cost_gap(cost, bound)
    return PlanReport(
        status="optimal" if is_optimal else draft.status,
        cost_usd_per_hour=cost,
        lower_bound_usd_per_hour=bound,
        gap_percent=None if gap is None else 100.0 * gap,
        method=f"{step.technique} {step.method}",
        messages=(draft.source, *step.messages),
        served_weight=weight if is_goodput else None,
        served_weight_upper_bound=weight_bound if is_goodput else None,
        steps=(step,),
        prices=solution.prices,
    )


def _cost_gap(cost: float, bound: float | None) -> float | None:
    """Relative; None without a bound."""
    if bound is None:
        return None
    return (cost - bound) / bound if bound > 0.0 else 0.0
