"""A plan where GPUs may be cut into slices: what serves most, then costs least, with a bound."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult

from solvers.joint.drafts import make_draft
from solvers.joint.replan.warm_start import WarmStart
from solvers.joint.slices.plan import plan_of
from solvers.joint.slices.program import (
    SliceProgram,
    costs,
    make_program,
    uncut_types,
    weights,
    within_watts,
)
from solvers.joint.slices.solve import Constraint, PartBound, relax, solve_integers
from solvers.joint.slices.uncut_gpus import UncutGpus
from solvers.joint.solution import OPTIMAL_GAP, TECHNIQUE
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem

METHOD = "integer program over MIG layouts and slices (HiGHS)"
METHOD_BESIDE = f"{METHOD}, whole GPUs by column generation"
_OPTIMAL = 0
"""SciPy's status of a program that was solved to the end."""
_ROUNDING = 1e-7
_ALONE_SHARE = 0.3
"""Part of the budget in which GPUs that stay whole are planned alone."""
_NO_MIGRATION = (
    "migration_cost_usd_per_hour does not count where GPUs may be cut into slices",
)


class _Found(NamedTuple):
    """A solution of the program, and what is proven with it."""

    plan: Plan
    bound: float | None
    """USD per hour that no plan undercuts which serves as much."""
    is_most: bool
    """Whether no plan is proven to serve more."""


def make_slice_plan(problem: Problem, budget: Budget) -> tuple[Plan, PlanReport]:
    """The plan that serves most, then costs least, with a proven bound."""
    wide = make_program(problem)
    program = within_watts(wide)
    if not uncut_types(problem):
        found = _solved(program, budget)
        if program is not wide:
            found = _bounded(problem, found, relax(wide)[0])
        return found.plan, _report(problem, found, METHOD)

    return _beside_uncut(problem, wide, budget)


def _beside_uncut(
    problem: Problem, wide: SliceProgram, budget: Budget
) -> tuple[Plan, PlanReport]:
    """The plan where some GPUs may stay whole; `wide`: the program of slices, rows above their watts too."""
    # What runs now would only make candidates of rows that nothing needs.
    uncut = replace(problem, gpu_types=uncut_types(problem), current=None)
    warm = WarmStart(uncut)
    # Their patterns also give the relaxation a good start.
    part = replace(budget, seconds=_ALONE_SHARE * budget.seconds)
    alone = replace(solve(uncut, part, warm=warm)[0].plan, policy=TECHNIQUE)
    wide, bound = UncutGpus(uncut, warm, budget).added_to(wide, alone)
    found = _solved(within_watts(wide), budget)
    # In little time the integers of the program may be worse than those of the search that knows whole GPUs only.
    best = min(found.plan, alone, key=partial(_merit, problem))
    bounded = _bounded(problem, found._replace(plan=best), bound)
    return best, _report(problem, bounded, METHOD_BESIDE)


def _solved(program: SliceProgram, budget: Budget) -> _Found:
    """First all is to be served; only where that cannot be, as much as can be."""
    cheapest = solve_integers(program, costs(program), budget, is_all_served=True)
    if cheapest.x is not None:
        return _found(program, cheapest, is_most=True)
    fullest = solve_integers(program, weights(program), budget)
    if fullest.x is None:
        return _Found(plan_of(program, np.zeros(program.size)), None, is_most=False)
    cheapest = solve_integers(
        program, costs(program), budget, _no_less(program, fullest)
    )
    if cheapest.x is None:
        return _found(program, fullest, is_most=False)
    return _found(program, cheapest, is_most=fullest.status == _OPTIMAL)


def _found(program: SliceProgram, solution: OptimizeResult, *, is_most: bool) -> _Found:
    plan = plan_of(program, np.rint(solution.x))
    return _Found(plan, solution.mip_dual_bound if is_most else None, is_most)


def _bounded(problem: Problem, found: _Found, bound: PartBound) -> _Found:
    """What a relaxation proves, where the program's own bound is of some ways only."""
    if found.plan.unserved:
        return found._replace(bound=None, is_most=False)
    proven = bound.lower_bound(problem, cost_usd_per_hour(problem, found.plan))
    return found._replace(bound=proven)


def _merit(problem: Problem, plan: Plan) -> tuple[float, int, float]:
    return make_draft(problem, plan, "feasible", "").merit


def _no_less(program: SliceProgram, fullest: OptimizeResult) -> Constraint:
    """That as much is served as in a solution."""
    factors = weights(program)
    entries = [(at, float(factors[at])) for at in np.flatnonzero(factors).tolist()]
    return Constraint(entries, -np.inf, (1.0 - _ROUNDING) * float(fullest.fun))


def _report(problem: Problem, found: _Found, method: str) -> PlanReport:
    cost = cost_usd_per_hour(problem, found.plan)
    bound = found.bound
    # Of a plan that costs something, a bound of 0 proves nothing; rounding could put a bound above the cost.
    if bound is not None:
        bound = min(cost, bound) if bound > 0.0 or cost == 0.0 else None
    gap = None if bound is None else (cost - bound) / bound if bound > 0.0 else 0.0
    report = PlanReport(
        status="optimal" if gap is not None and gap <= OPTIMAL_GAP else "feasible",
        cost_usd_per_hour=cost,
        lower_bound_usd_per_hour=bound,
        gap_percent=None if gap is None else 100.0 * gap,
        method=method,
        messages=_NO_MIGRATION if problem.migration_cost_usd_per_hour else (),
    )
    return (
        report if problem.objective == "min_cost" else _goodput(problem, found, report)
    )


def _goodput(problem: Problem, found: _Found, report: PlanReport) -> PlanReport:
    """All GPUs are paid for: there is no cost to bound, and the weight is proven or not."""
    weight, is_proven = served_weight(problem, found.plan), found.is_most
    return replace(
        report,
        status="optimal" if is_proven else "feasible",
        lower_bound_usd_per_hour=None,
        served_weight=weight,
        served_weight_upper_bound=weight if is_proven else None,
        gap_percent=0.0 if is_proven else None,
    )
