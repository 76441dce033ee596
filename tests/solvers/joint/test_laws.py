"""What must hold of every planner, whatever the problem: more to choose from never costs more, names say nothing."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.joint.policy import make_plan
from solvers.joint.solution import OPTIMAL_GAP
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import Budget
from solvers.types.problem import Objective, Problem
from solvers.types.state import GpuType, Observed
from tests.examples import tried
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    random_problem,
    with_rates,
    with_services,
)
from tests.solvers.problems import tiny_problem

BUDGET = Budget(work=0.5)
SLACK = 1.0 + 2.0 * OPTIMAL_GAP
BOTH: tuple[Objective, ...] = ("min_cost", "max_goodput")
MESSAGE = "the bound on cost counts plans that miss no more replicas of min_replicas"


class Worth(NamedTuple):
    """What a plan is worth: least first."""

    unserved: float
    missing: int
    cost: float


def worth(problem: Problem, budget: Budget = BUDGET) -> Worth:
    """Of the plan that is found, which keeps every rule."""
    plan = solve(problem, budget)[0].plan
    assert violations(problem, plan) == ()
    wanted = sum(
        service.priority * service.arrival_rate_rps for service in problem.services
    )
    missing = sum(entry.replicas_missing for entry in plan.unserved)
    return Worth(
        wanted - served_weight(problem, plan), missing, cost_usd_per_hour(problem, plan)
    )


def is_no_worse(one: Worth, other: Worth) -> bool:
    """In the order of what counts, within the gap."""
    if abs(one.unserved - other.unserved) > 1e-4:
        return one.unserved < other.unserved
    return one.missing < other.missing or (
        one.missing == other.missing and one.cost <= other.cost * SLACK + 1e-9
    )


def with_types(problem: Problem, changed: Callable[[GpuType], GpuType]) -> Problem:
    return replace(problem, gpu_types=tuple(changed(one) for one in problem.gpu_types))


def one_more_gpu(problem: Problem) -> Problem:
    return with_types(problem, lambda one: replace(one, count=(one.count or 0) + 1))


def as_many_as_wanted(problem: Problem) -> Problem:
    return with_types(problem, lambda one: replace(one, count=None))


def looser_slos(problem: Problem) -> Problem:
    return replace(
        problem,
        services=tuple(
            replace(one, slo_ms=1.5 * one.slo_ms) for one in problem.services
        ),
    )


def lower_rates(problem: Problem) -> Problem:
    services = (
        replace(one, arrival_rate_rps=0.7 * one.arrival_rate_rps)
        for one in problem.services
    )
    return replace(problem, services=tuple(services))


def fewer_replicas_wanted(problem: Problem) -> Problem:
    return with_services(problem, min_replicas=0, max_replicas=None)


def all_types_allowed(problem: Problem) -> Problem:
    return with_services(problem, allowed_gpu_types=None)


def cheaper_energy(problem: Problem) -> Problem:
    return replace(
        problem, energy_price_usd_per_kwh=0.5 * problem.energy_price_usd_per_kwh
    )


@pytest.mark.seeded
@pytest.mark.parametrize(
    "easier",
    [
        one_more_gpu,
        pytest.param(as_many_as_wanted, marks=pytest.mark.thorough),
        looser_slos,
        pytest.param(lower_rates, marks=pytest.mark.thorough),
        pytest.param(fewer_replicas_wanted, marks=pytest.mark.thorough),
        all_types_allowed,
        cheaper_energy,
    ],
)
def test_an_easier_problem_has_no_worse_a_plan(
    easier: Callable[[Problem], Problem],
) -> None:
    better = 0
    for seed in range(tried(18)):
        problem = tiny_problem(seed)
        here, there = worth(problem), worth(easier(problem))
        assert is_no_worse(there, here), seed
        better += not is_no_worse(here, there)
    assert better > 0, "what is easier changed nothing"


@pytest.mark.seeded
@pytest.mark.parametrize("easier", [one_more_gpu, looser_slos, all_types_allowed])
def test_an_easier_problem_serves_no_less_where_gpus_are_paid_for(
    easier: Callable[[Problem], Problem],
) -> None:
    better = 0
    for seed in range(34, 34 + tried(20)):
        problem = replace(with_rates(tiny_problem(seed), 2.0), objective="max_goodput")
        here, there = worth(problem).unserved, worth(easier(problem)).unserved
        assert there <= here + 1e-4, seed
        better += there < here - 1e-4
    assert better > 0, "what is easier changed nothing"


@pytest.mark.seeded
@pytest.mark.parametrize("objective", BOTH)
def test_neither_order_nor_names_change_what_a_plan_is_worth(
    objective: Objective,
) -> None:
    for seed in range(12, 12 + tried(12)):
        problem, draw = (
            replace(tiny_problem(seed), objective=objective),
            random.Random(seed),
        )
        services = [
            replace(each, name=f"x{draw.random()}") for each in problem.services
        ]
        types, points = list(problem.gpu_types), list(problem.points)
        for each in (services, types, points):
            draw.shuffle(each)
        mixed = replace(
            problem,
            services=tuple(services),
            gpu_types=tuple(types),
            points=tuple(points),
        )
        here, there = worth(problem), worth(mixed)
        if objective == "max_goodput":
            # All GPUs are paid for, so that what those in use cost says nothing.
            here, there = here._replace(cost=0.0), there._replace(cost=0.0)
        assert is_no_worse(here, there), seed
        assert is_no_worse(there, here), seed


@pytest.mark.seeded
def test_only_the_proportion_of_priorities_counts() -> None:
    for seed in range(tried(12)):
        problem = tiny_problem(seed)
        services = tuple(
            replace(one, priority=1e3 * one.priority) for one in problem.services
        )
        scaled, here = worth(replace(problem, services=services)), worth(problem)
        assert scaled.unserved == pytest.approx(1e3 * here.unserved, abs=0.1), seed
        assert scaled.missing == here.missing, seed
        assert scaled.cost == pytest.approx(here.cost, rel=2.0 * OPTIMAL_GAP), seed


def test_equal_services_on_equal_gpus_fill_them() -> None:
    # Four halves: two GPUs, whichever two are together.
    services = [a_service(f"s{number}", rate_rps=45.0) for number in range(4)]
    solution, report = solve(a_problem(*services), BUDGET)
    assert report.status == "optimal"
    assert report.objective == pytest.approx(2.0)
    assert solution.plan.unserved == ()


@pytest.mark.parametrize("objective", BOTH)
def test_of_one_gpu_the_best_use_is_proven(objective: Objective) -> None:
    # Alone on the GPU `vital` serves 100 rps, with another 50: with weight 3 it is worth more than half of each.
    services = (
        a_service("dull", rate_rps=60.0),
        a_service("vital", rate_rps=100.0, priority=3.0),
    )
    problem = a_problem(*services, types=(a_type(count=1),), objective=objective)
    solution, report = solve(problem, BUDGET)
    assert report.status == "optimal"
    assert served_weight(problem, solution.plan) == pytest.approx(300.0, rel=1e-6)
    assert solution.served_weight_bound == pytest.approx(300.0, rel=OPTIMAL_GAP)
    assert [(each.service, each.reason) for each in solution.plan.unserved] == [
        ("dull", "stock")
    ]


def test_what_is_served_comes_before_least_replicas_where_gpus_are_paid_for() -> None:
    # One GPU: either 100 rps, or 50 and the replica that gets no request.
    services = (a_service("chat", rate_rps=100.0), a_service("idle", min_replicas=1))
    for objective in BOTH:
        found = worth(
            a_problem(*services, types=(a_type(count=1),), objective=objective)
        )
        assert found == pytest.approx((0.0, 1, 1.0), abs=1e-4)


def test_least_replicas_come_before_cost() -> None:
    problem = a_problem(a_service("chat", rate_rps=10.0, min_replicas=3))
    assert worth(problem) == pytest.approx((0.0, 0, 3.0), abs=1e-4)


def test_cost_is_proven_beside_what_cannot_be_served() -> None:
    # 50 of 150 rps cannot be served: `chat` may run once. One cheap GPU is enough for what can.
    types = (
        a_type("cheap", price_usd_per_hour=1.0, count=1),
        a_type("dear", price_usd_per_hour=3.0, count=3),
    )
    services = (
        a_service("chat", rate_rps=150.0, max_replicas=1),
        a_service("photo", rate_rps=40.0),
    )
    solution, report = solve(a_problem(*services, types=types), BUDGET)
    assert report.status == "optimal"
    assert report.objective == pytest.approx(4.0)
    assert solution.cost_bound == pytest.approx(4.0, rel=OPTIMAL_GAP)
    assert [(each.service, each.reason) for each in solution.plan.unserved] == [
        ("chat", "replicas")
    ]


def test_a_report_says_where_its_bound_counts_least_replicas() -> None:
    rows = (a_row(100.0, 5.0),)
    for fewest, rate_rps, is_said in (
        (0, 10.0, False),
        (1, 10.0, False),
        (2, 10.0, True),
        (1, 0.0, True),
    ):
        problem = a_problem(
            a_service("chat", rate_rps=rate_rps, min_replicas=fewest), rows=rows
        )
        plan, report, _ = make_plan(problem, Observed(at_s=0.0), None, BUDGET)
        assert report_violations(problem, plan, report) == ()
        assert report.status == "optimal"
        assert (MESSAGE in report.messages) == is_said


def clock(per_look_s: float) -> Callable[[], float]:
    """One that goes on by so much whenever it is looked at."""
    looks = itertools.count(1)
    return lambda: per_look_s * next(looks)


@pytest.mark.seeded
@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize("per_look_s", [0.01, 2.0])
def test_a_plan_that_time_cut_short_keeps_every_rule_and_claims_no_more_than_it_knows(
    objective: Objective, per_look_s: float
) -> None:
    for seed in range(tried(5)):
        problem = replace(random_problem(seed, gpus=1 + seed), objective=objective)
        budget = Budget(seconds=1.0, elapsed=clock(per_look_s))
        plan, report, _ = make_plan(problem, Observed(at_s=0.0), None, budget)
        assert violations(problem, plan) == ()
        assert report_violations(problem, plan, report) == ()


def test_many_services_that_cannot_all_be_served_have_a_bound_on_cost() -> None:
    problem = with_rates(random_problem(1, services=24, gpus=2), 20.0)
    solution, report = solve(problem, Budget(work=2.0))
    assert solution.plan.unserved
    assert solution.cost_bound is not None
    assert report.objective is not None
    assert 0.8 * report.objective <= solution.cost_bound <= report.objective
