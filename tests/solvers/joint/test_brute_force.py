"""Against the optimum of tiny problems, found by trying every plan.

Optimal is what is proven to 0.01 %; nearly all of these problems are small enough to be solved exactly.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from solvers.check import RowLookup, violations
from solvers.joint.solution import OPTIMAL_GAP, JointSolution
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import Budget, SolveStatus
from solvers.types.plan import GpuPlan
from solvers.types.problem import Objective, Problem
from tests.examples import IS_THOROUGH, tried
from tests.solvers.joint.oracle import Best, best_plan
from tests.solvers.problems import tiny_problem, uncapped

SEEDS = 200 if IS_THOROUGH else 30
FEWER_SEEDS = 80 if IS_THOROUGH else 12
BUDGET = Budget(work=5.0)
EXACT = 1e-6
MAX_UNPROVEN = max(2, SEEDS // 50)
MAX_INEXACT = max(2, SEEDS // 50)
"""Proven, but to the gap only."""


class Case(NamedTuple):
    """What was found for one problem, and what is best."""

    seed: int
    problem: Problem
    best: Best
    solution: JointSolution
    is_proven: bool

    @property
    def weight(self) -> float:
        return served_weight(self.problem, self.solution.plan)

    @property
    def cost(self) -> float:
        return cost_usd_per_hour(self.problem, self.solution.plan)

    @property
    def missing(self) -> int:
        return sum(entry.replicas_missing for entry in self.solution.plan.unserved)


def cases(objective: Objective, budget: Budget = BUDGET) -> Iterator[Case]:
    for seed in range(SEEDS):
        problem = replace(tiny_problem(seed), objective=objective)
        solution, report = solve(problem, budget)
        assert violations(problem, solution.plan) == (), seed
        yield Case(
            seed,
            problem,
            best_of(seed),
            solution,
            report.status == SolveStatus.OPTIMAL,
        )


@cache
def best_of(seed: int) -> Best:
    """Of the problem as it is drawn, which no objective changes."""
    return best_plan(tiny_problem(seed))


@pytest.mark.seeded
def test_least_cost_is_proven_for_what_can_be_served() -> None:
    unproven, inexact = list[int](), list[int]()
    for case in cases("min_cost"):
        assert_bounds_hold(case)
        if not case.is_proven:
            unproven.append(case.seed)
            continue
        assert case.weight == pytest.approx(
            case.best.weight, rel=OPTIMAL_GAP, abs=1e-5
        ), case.seed
        assert case.missing == case.best.missing, case.seed
        assert case.cost <= case.best.cost * (1.0 + OPTIMAL_GAP) + 1e-9, case.seed
        is_exact = abs(case.cost - case.best.cost) <= EXACT * case.best.cost
        if not is_exact or case.weight < case.best.weight - 1e-5:
            inexact.append(case.seed)
    assert len(unproven) <= MAX_UNPROVEN, unproven
    assert len(inexact) <= MAX_INEXACT, inexact


@pytest.mark.seeded
def test_most_served_weight_is_proven_for_gpus_that_are_paid_for() -> None:
    for case in cases("max_goodput"):
        assert case.solution.cost_bound is None
        assert case.is_proven, case.seed
        assert case.solution.served_weight_bound >= case.best.weight - 1e-5, case.seed
        assert case.weight == pytest.approx(case.best.weight, rel=EXACT, abs=1e-5), (
            case.seed
        )
        assert case.missing == case.best.missing, case.seed


@pytest.mark.seeded
def test_bounds_hold_however_early_the_search_ends() -> None:
    hasty = cases("min_cost", Budget(work=0.02))
    assert sum(assert_bounds_hold(case) for case in hasty) > 0


def assert_bounds_hold(case: Case) -> bool:
    """No plan is better than the best one, and no bound is beyond it; whether the bound on cost could be compared."""
    assert case.weight <= case.best.weight + 1e-5, case.seed
    assert case.solution.served_weight_bound >= case.best.weight - 1e-5, case.seed
    if case.weight >= case.best.weight - 1e-5 and case.missing <= case.best.missing:
        assert case.cost >= case.best.cost - 1e-9, case.seed
    if case.solution.cost_bound is None or case.missing < case.best.missing:
        return False
    # The best plan serves as much as this one and misses no more.
    assert case.solution.cost_bound <= case.best.cost * (1.0 + 1e-9), case.seed
    return True


@pytest.mark.seeded
def test_services_with_a_common_label_are_kept_apart_at_least_cost() -> None:
    unproven, dearer = list[int](), 0
    for seed in range(FEWER_SEEDS):
        problem = with_labels(tiny_problem(seed), seed)
        solution, report = solve(problem, BUDGET)
        assert violations(problem, solution.plan) == (), seed
        best, cost = best_plan(problem), cost_usd_per_hour(problem, solution.plan)
        weight = served_weight(problem, solution.plan)
        assert weight <= best.weight + 1e-5, seed
        dearer += best != best_of(seed)
        if report.status != SolveStatus.OPTIMAL:
            unproven.append(seed)
            continue
        assert weight == pytest.approx(best.weight, rel=OPTIMAL_GAP, abs=1e-5), seed
        assert cost <= best.cost * (1.0 + OPTIMAL_GAP) + 1e-9, seed
    assert len(unproven) <= MAX_UNPROVEN, unproven
    # Else the labels of these problems would mean nothing.
    assert dearer >= 1


def with_labels(problem: Problem, seed: int) -> Problem:
    """The problem whose services have none, one or both of two labels."""
    draw = random.Random(seed)
    services = (
        replace(
            each,
            anti_affinity=frozenset(
                label for label in ("x", "y") if draw.random() < 0.6
            ),
        )
        for each in problem.services
    )
    return replace(problem, services=tuple(services))


@pytest.mark.seeded
def test_gpus_without_sm_limits_are_shared_at_least_cost() -> None:
    unproven, overloaded = list[int](), 0
    for seed in range(FEWER_SEEDS):
        problem = uncapped(tiny_problem(seed), seed)
        solution, report = solve(problem, BUDGET)
        assert violations(problem, solution.plan) == (), seed
        case = Case(
            seed,
            problem,
            best_plan(problem),
            solution,
            report.status == SolveStatus.OPTIMAL,
        )
        assert_bounds_hold(case)
        shared = [gpu for gpu in solution.plan.gpus if len(gpu.replicas) > 1]
        overloaded += any(pressure_of(problem, gpu) > 1.0 for gpu in shared)
        if not case.is_proven:
            unproven.append(seed)
            continue
        assert case.weight == pytest.approx(
            case.best.weight, rel=OPTIMAL_GAP, abs=1e-5
        ), seed
        assert case.missing == case.best.missing, seed
        assert case.cost <= case.best.cost * (1.0 + OPTIMAL_GAP) + 1e-9, seed
    assert len(unproven) <= MAX_UNPROVEN, unproven
    # Else the law's second segment would decide nothing.
    assert overloaded >= 1


def pressure_of(problem: Problem, gpu: GpuPlan) -> float:
    """That of all its replicas."""
    lookup = RowLookup(problem)
    rows = [lookup.row(gpu, replica) for replica in gpu.replicas]
    return sum(row.pressure for row in rows if row)


@pytest.mark.seeded
def test_problems_of_all_kinds_are_among_them() -> None:
    short = missing = 0
    for seed in range(SEEDS):
        problem = tiny_problem(seed)
        best = best_of(seed)
        wanted = sum(one.priority * one.arrival_rate_rps for one in problem.services)
        short += best.weight < wanted - 1e-3
        missing += best.missing > 0
    assert short >= SEEDS // 20
    assert missing >= SEEDS // 40


@pytest.mark.seeded
def test_nearly_all_problems_of_four_services_on_six_gpus_are_proven_too() -> None:
    unproven = 0
    for seed in range(0, 4 * tried(8), 4):
        problem = tiny_problem(seed, services=4, gpus=3)
        solution, report = solve(problem, BUDGET)
        best = best_plan(problem)
        assert violations(problem, solution.plan) == (), seed
        assert cost_usd_per_hour(problem, solution.plan) == pytest.approx(
            best.cost, rel=OPTIMAL_GAP
        ), seed
        assert served_weight(problem, solution.plan) == pytest.approx(
            best.weight, rel=OPTIMAL_GAP, abs=1e-5
        ), seed
        unproven += report.status != SolveStatus.OPTIMAL
    assert unproven <= 1
