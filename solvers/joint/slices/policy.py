"""A plan where GPUs may be cut into slices: what serves most, then costs least, with a bound."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.optimize import OptimizeResult

from solvers.joint.slices.plan import plan_of
from solvers.joint.slices.program import (
    SliceProgram,
    costs,
    make_program,
    weights,
    whole_types,
)
from solvers.joint.slices.solve import Constraint, solve_whole
from solvers.joint.slices.whole_gpus import WholeBound, WholeGpus
from solvers.joint.solution import OPTIMAL_GAP
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem

METHOD = "integer program over MIG layouts and slices (HiGHS)"
METHOD_BESIDE = f"{METHOD}, whole GPUs by column generation"
_OPTIMAL = 0
"""SciPy's status of a program that was solved to the end."""
_ROUNDING = 1e-7


def make_slice_plan(problem: Problem, budget: Budget) -> tuple[Plan, PlanReport]:
    """The plan that serves most, then costs least, with a proven bound."""
    program, whole = make_program(problem), None
    if whole_types(problem):
        program, whole = WholeGpus(problem, budget).added_to(program)
    # First all of it; only where that cannot be, what serves most.
    found = solve_whole(program, costs(program), budget, is_all_served=True)
    if found.x is not None:
        return _answer(program, found, whole, is_most=True)
    most = solve_whole(program, weights(program), budget)
    if most.x is None:
        return _answer(program, most, whole, is_most=False)
    is_most = most.status == _OPTIMAL and whole is None
    found = solve_whole(program, costs(program), budget, _no_less(program, most))
    if found.x is None:
        return _answer(program, most, whole, is_most=False)
    return _answer(program, found, whole, is_most=is_most)


def _no_less(program: SliceProgram, most: OptimizeResult) -> Constraint:
    """That as much is served as in a solution."""
    factors = weights(program)
    entries = [(at, float(factors[at])) for at in np.flatnonzero(factors).tolist()]
    return Constraint(entries, -np.inf, (1.0 - _ROUNDING) * float(most.fun))


def _answer(
    program: SliceProgram,
    found: OptimizeResult,
    whole: WholeBound | None,
    *,
    is_most: bool,
) -> tuple[Plan, PlanReport]:
    """The plan of a solution, and its report. `is_most`: whether no plan is proven to serve more."""
    problem = program.problem
    plan = plan_of(program, found.x)
    cost = cost_usd_per_hour(problem, plan)
    bound = _bound(program, found, whole, cost) if is_most else None
    gap = None if bound is None else (cost - bound) / bound if bound > 0.0 else 0.0
    is_optimal = gap is not None and gap <= OPTIMAL_GAP
    report = PlanReport(
        status="optimal" if is_optimal else "feasible",
        cost_usd_per_hour=cost,
        lower_bound_usd_per_hour=bound,
        gap_percent=None if gap is None else 100.0 * gap,
        method=METHOD if whole is None else METHOD_BESIDE,
        messages=tuple(_messages(program)),
    )
    if problem.objective == "min_cost":
        return plan, report
    weight = served_weight(problem, plan)
    # All GPUs are paid for: there is no cost to bound, and the weight is proven or not.
    is_proven = is_most and (program.is_exact or not plan.unserved)
    return plan, replace(
        report,
        status="optimal" if is_proven else "feasible",
        lower_bound_usd_per_hour=None,
        served_weight=weight,
        served_weight_upper_bound=weight if is_proven else None,
        gap_percent=0.0 if is_proven else None,
    )


def _bound(
    program: SliceProgram,
    found: OptimizeResult,
    whole: WholeBound | None,
    cost: float,
) -> float | None:
    """USD per hour that no plan undercuts which serves as much; None where nothing is proven."""
    if not program.is_exact or found.mip_dual_bound is None:
        return None
    proven = (
        found.mip_dual_bound if whole is None else whole.least(program.problem, cost)
    )
    # Of a plan that costs something, a bound of 0 proves nothing; rounding alone could put a bound above the cost.
    return min(cost, float(proven)) if proven > 0.0 or cost == 0.0 else None


def _messages(program: SliceProgram) -> Iterator[str]:
    if not program.is_exact:
        yield "a slice has at most its part of a GPU's watts, so that nothing bounds the cost"
    if program.problem.migration_cost_usd_per_hour:
        yield "migration_cost_usd_per_hour does not count where GPUs may be cut into slices"
