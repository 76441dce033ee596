"""Plans under a power budget: hand-solved ones, the optimum of tiny problems by trial, bounds, and no budget at all."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.check import violations
from solvers.joint.patterns.tables import make_tables
from solvers.joint.power_budget import max_gpus
from solvers.joint.solution import OPTIMAL_GAP, JointSolution
from solvers.joint.solve import solve
from solvers.joint.trim_to_power import draws_w
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import Budget, SolveReport, SolveStatus
from solvers.types.problem import Objective, Problem
from tests.examples import IS_THOROUGH, tried
from tests.solvers.instances import a_problem, a_row, a_service, a_type, random_problem
from tests.solvers.joint.oracle import best_plan
from tests.solvers.problems import tiny_problem

BUDGET = Budget(work=1.0)
LITTLE = Budget(work=0.3, seed=3)
SEEDS = range(30 if IS_THOROUGH else 8)
PARTS = (0.9, 0.5)
"""Of the watts of the plan without a budget."""


def run(
    problem: Problem, watts: float, budget: Budget = BUDGET
) -> tuple[JointSolution, SolveReport]:
    """A solution within `watts` that keeps every rule."""
    capped = replace(problem, power_budget_w=watts)
    solution, report = solve(capped, budget)
    assert violations(replace(capped, power_budget_w=None), solution.plan) == ()
    assert draws_w(capped, solution.plan) <= watts * (1.0 + 1e-9)
    return solution, report


def unserved(solution: JointSolution) -> list[tuple[str, float, str]]:
    return [
        (each.service, round(each.rate_rps, 3), each.reason)
        for each in solution.plan.unserved
    ]


# A whole GPU draws 50 W idle and 100 W by its replica, and carries 100 rps of either service.
FRUGAL = a_type("frugal", price_usd_per_hour=3.0, idle_w=20.0)
CHEAP = a_type("cheap", price_usd_per_hour=1.0)


def test_watts_that_are_short_are_bought_with_money() -> None:
    # 200 rps take two GPUs. Two cheap ones draw 300 W for 2 USD/h, one of each 270 W for 4, two frugal 240 W for 6.
    problem = a_problem(a_service("chat", rate_rps=200.0), types=(CHEAP, FRUGAL))
    for watts, usd in (
        (300.0, 2.0),
        (299.0, 4.0),
        (270.0, 4.0),
        (269.0, 6.0),
        (240.0, 6.0),
    ):
        solution, report = run(problem, watts)
        assert (report.objective, report.status) == (
            pytest.approx(usd),
            SolveStatus.OPTIMAL,
        ), watts
        assert solution.cost_bound == pytest.approx(usd, rel=OPTIMAL_GAP)
        assert solution.plan.unserved == ()


def test_the_important_service_gets_the_watts_that_there_are() -> None:
    # 150 W feed one GPU of 100 rps; 149 W feed half a GPU's SMs: 50 W idle, 50 W for 50 rps.
    services = (
        a_service("dull", rate_rps=100.0),
        a_service("vital", rate_rps=100.0, priority=5.0),
    )
    problem = a_problem(*services, types=(CHEAP,))
    assert unserved(run(problem, 150.0)[0]) == [("dull", 100.0, "power")]
    assert unserved(run(problem, 149.0)[0]) == [
        ("dull", 100.0, "power"),
        ("vital", 50.0, "power"),
    ]
    assert unserved(run(problem, 300.0)[0]) == []


@pytest.mark.parametrize("watts", [99.9, 50.0, 10.0, 0.0])
def test_a_budget_below_the_least_gpu_serves_nothing_and_that_is_proven(
    watts: float,
) -> None:
    problem = a_problem(
        a_service("chat", rate_rps=40.0, min_replicas=1), types=(CHEAP,)
    )
    solution, report = run(problem, watts)
    assert (solution.plan.gpus, unserved(solution)) == ((), [("chat", 40.0, "power")])
    assert (report.status, solution.served_weight_bound) == (SolveStatus.OPTIMAL, 0.0)


def test_stock_that_ends_before_the_watts_is_the_reason() -> None:
    problem = a_problem(a_service("chat", rate_rps=250.0), types=(a_type(count=2),))
    assert unserved(run(problem, 1000.0)[0]) == [("chat", 50.0, "stock")]


def test_neighbours_share_idle_watts() -> None:
    # Apart they draw 2 · (50 + 50) W, on one GPU 50 + 50 + 50.
    problem = a_problem(
        a_service("chat", rate_rps=40.0),
        a_service("photo", rate_rps=50.0),
        types=(CHEAP,),
    )
    solution, _ = run(problem, 150.0)
    assert [[each.service for each in gpu.replicas] for gpu in solution.plan.gpus] == [
        ["chat", "photo"]
    ]
    assert solution.plan.unserved == ()


def test_a_slower_row_of_fewer_watts_is_taken_where_it_is_enough() -> None:
    rows = (a_row(100.0, 5.0), a_row(100.0, 8.0, power_w=40.0))
    problem = a_problem(a_service("chat", rate_rps=60.0), types=(CHEAP,), rows=rows)
    solution, _ = run(problem, 95.0)
    assert draws_w(problem, solution.plan) == pytest.approx(90.0)
    assert solution.plan.unserved == ()


def test_how_many_gpus_watts_feed() -> None:
    # The least GPU draws 50 + 50 W: 2 of 299 W; the frugal one 20 + 50: 4.
    tables = make_tables(
        a_problem(a_service("chat", rate_rps=9.0), types=(CHEAP, FRUGAL))
    )
    assert max_gpus(tables, 299.0).tolist() == [2.0, 4.0]
    assert max_gpus(tables, 300.0).tolist() == [3.0, 4.0]
    assert max_gpus(tables, 0.0).tolist() == [0.0, 0.0]


@pytest.mark.seeded
@pytest.mark.parametrize("objective", ["min_cost", "max_goodput"])
def test_optima_of_tiny_problems_are_found_and_no_bound_is_beyond_them(
    objective: Objective,
) -> None:
    unproven, short, compared = list[tuple[int, float]](), 0, 0
    for seed in SEEDS:
        problem = replace(tiny_problem(seed), objective=objective)
        watts = draws_w(problem, solve(problem, BUDGET)[0].plan)
        for part in PARTS if watts > 0.0 else ():
            solution, report = run(problem, part * watts)
            best = best_plan(replace(problem, power_budget_w=part * watts))
            weight, cost = (
                served_weight(problem, solution.plan),
                cost_usd_per_hour(problem, solution.plan),
            )
            missing = sum(entry.replicas_missing for entry in solution.plan.unserved)
            assert best.weight <= solution.served_weight_bound + 1e-3, (seed, part)
            assert weight <= best.weight + 1e-3, (seed, part)
            if missing >= best.missing and solution.cost_bound is not None:
                assert solution.cost_bound <= best.cost * (1.0 + 1e-9), (seed, part)
                compared += 1
            if report.status != SolveStatus.OPTIMAL:
                assert weight >= 0.99 * best.weight - 1e-3, (seed, part)
                unproven.append((seed, part))
                continue
            assert weight == pytest.approx(best.weight, rel=OPTIMAL_GAP, abs=1e-3), (
                seed,
                part,
            )
            if objective == "min_cost" and missing == best.missing:
                assert cost <= best.cost * (1.0 + OPTIMAL_GAP) + 1e-9, (seed, part)
            short += (
                best.weight
                < sum(one.priority * one.arrival_rate_rps for one in problem.services)
                - 1e-3
            )
    assert len(unproven) <= len(SEEDS) // 5, unproven
    assert short > 0.6 * len(SEEDS)
    assert compared > 0.6 * len(SEEDS) or objective == "max_goodput"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_fleets_that_are_not_branched_on_keep_the_budget_within_two_gpus_of_their_bound(
    seed: int,
) -> None:
    problem = random_problem(seed, services=21, gpus=12)
    free, _ = solve(problem, LITTLE)
    watts = draws_w(problem, free.plan)
    solution, _ = run(problem, 0.95 * watts, LITTLE)
    cost = cost_usd_per_hour(problem, solution.plan)
    assert solution.cost_bound is not None
    assert free.cost_bound is not None
    assert cost >= free.cost_bound
    assert (
        solution.cost_bound
        <= cost
        <= solution.cost_bound
        + 2.0 * max(one.price_usd_per_hour for one in problem.gpu_types)
    )


def test_the_bound_rises_as_the_budget_falls() -> None:
    problem = random_problem(1, services=10, gpus=8)
    free, _ = solve(problem, LITTLE)
    watts = draws_w(problem, free.plan)
    parts = (2.0, 1.0, 0.9, 0.6, 0.3)
    found = [run(problem, part * watts, LITTLE)[0] for part in parts]
    assert run(problem, 0.6 * watts, LITTLE)[0].plan == found[3].plan
    weights = [served_weight(problem, each.plan) for each in found]
    bounds = [each.served_weight_bound for each in found]
    assert (np.diff(weights) <= 1e-3 * np.array(weights[:-1])).all(), weights
    assert (np.diff(bounds) <= 1e-3 * np.array(bounds[:-1])).all(), bounds


@pytest.mark.seeded
def test_a_budget_that_nothing_reaches_leaves_the_optimum_as_it_is() -> None:
    for seed in range(tried(8)):
        problem = tiny_problem(seed)
        free, _ = solve(problem, BUDGET)
        capped, _ = run(problem, 1e6)
        assert cost_usd_per_hour(problem, capped.plan) == pytest.approx(
            cost_usd_per_hour(problem, free.plan), rel=1e-4
        )
        assert served_weight(problem, capped.plan) == pytest.approx(
            served_weight(problem, free.plan), abs=1e-3
        )
