"""Problems in which replicas contend for SM steps alone: bound, plans that reach it, and where it does not apply."""

import random
from dataclasses import replace

import numpy as np
import pytest

from solvers.check import violations
from solvers.joint.heuristics.fluid import FluidPlan, is_fluid, is_too_fine, solve_fluid
from solvers.joint.patterns.columns import Columns, single_patterns
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.decode import decode
from solvers.joint.patterns.formulation import cheapest_rps, make_demand
from solvers.joint.patterns.tables import make_tables
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import CapacityLaw, OperatingPoint, OperatingPoints, Problem
from tests.examples import seeds, tried
from tests.solvers.instances import a_service, a_type
from tests.solvers.joint.oracle import best_plan

ALL_OF_IT = CapacityLaw(
    percentiles=(0.95,), batches=(1,), slo_ratios=(1.0, 2.0), max_utilisation=(((1.0, 1.0),),)
)  # fmt: skip


def a_fluid_problem(
    draw: random.Random,
    *,
    services: int,
    types: int,
    step: float,
    count: int | None = None,
) -> Problem:
    """Linear rows in steps; nothing but SM steps runs out."""
    fleet = tuple(
        a_type(
            f"type{number}",
            price_usd_per_hour=draw.uniform(0.5, 4.0),
            sm_percent_step=step,
            count=count,
        )
        for number in range(types)
    )
    percents = [step * at for at in range(1, round(100.0 / step) + 1)]
    return Problem(
        max_replicas_per_gpu=services,
        capacity_law=ALL_OF_IT,
        gpu_types=fleet,
        services=tuple(
            a_service(
                f"s{number}",
                network=f"net{number}",
                rate_rps=draw.uniform(5.0, 60.0),
                slo_ms=1e9,
            )
            for number in range(services)
        ),
        points=tuple(
            OperatingPoints(
                network=f"net{number}",
                gpu_type=one.name,
                sensitivity=0.0,
                rows=tuple(
                    OperatingPoint(
                        percent,
                        1,
                        1000.0,
                        0.0,
                        0.0,
                        1000.0 / (0.01 * percent * rps),
                        0.0,
                        0.0,
                        0.0,
                    )
                    for percent in percents
                ),
            )
            for number in range(services)
            for one in fleet
            for rps in (draw.uniform(20.0, 100.0),)
        ),
    )


def solved(problem: Problem) -> tuple[Plan, FluidPlan]:
    found = attempted(problem)
    assert found is not None
    return found


def attempted(problem: Problem) -> tuple[Plan, FluidPlan] | None:
    tables = make_tables(problem)
    columns = Columns(tables)
    columns.add(single_patterns(tables, tables.rate))
    demand = make_demand(problem, tables, cheapest_rps(problem, tables, columns))
    assert is_fluid(tables, demand)
    found = solve_fluid(tables, demand, columns, is_over=never)
    return (
        None
        if found is None
        else (decode(problem, tables, columns, found.counts, policy="fluid"), found)
    )


@pytest.mark.parametrize("seed", seeds(10))
def test_plans_are_lawful_and_serve_everything_and_cost_no_less_than_the_bound(
    seed: int,
) -> None:
    draw = random.Random(seed)
    problem = a_fluid_problem(
        draw, services=draw.randint(1, 25), types=draw.randint(1, 4), step=0.5
    )
    plan, found = solved(problem)
    assert violations(problem, plan) == ()
    assert plan.unserved == ()
    cost = cost_usd_per_hour(problem, plan)
    assert found.bound <= cost + 1e-9
    # Half a percent of a GPU for each replica at most, and GPUs come whole.
    dearest = max(one.price_usd_per_hour for one in problem.gpu_types)
    assert cost <= found.bound + dearest * (1.0 + 0.005 * 2 * len(problem.services))


@pytest.mark.seeded
def test_the_bound_is_no_more_than_the_best_of_all_plans_costs() -> None:
    compared = 0
    for seed in range(tried(16)):
        problem = a_fluid_problem(
            random.Random(seed), services=3, types=2, step=50.0, count=3
        )
        best, everything = (
            best_plan(problem),
            sum(one.arrival_rate_rps for one in problem.services),
        )
        found = attempted(problem)
        if found is not None and best.weight >= everything - 1e-5:
            compared += 1
            assert found[1].bound <= best.cost + 1e-9
            assert cost_usd_per_hour(problem, found[0]) >= best.cost - 1e-9
    assert compared >= tried(16) // 4


def test_fine_steps_lose_nothing_to_rates_that_are_cut_anywhere() -> None:
    # 40 services of 0.12 GPUs each are 4.8 GPUs.
    problem = a_fluid_problem(random.Random(3), services=40, types=1, step=0.1)
    services, points = [], []
    for service, one in zip(problem.services, problem.points, strict=True):
        services.append(
            replace(service, arrival_rate_rps=0.12 * 1000.0 / one.rows[-1].run_ms)
        )
        points.append(one)
    problem = replace(problem, services=tuple(services), points=tuple(points))
    plan, found = solved(problem)
    assert sum(gpu.count for gpu in plan.gpus) == 5
    assert found.bound == pytest.approx(cost_usd_per_hour(problem, plan))


def test_the_planner_proves_such_a_plan_optimal() -> None:
    problem = a_fluid_problem(random.Random(5), services=30, types=3, step=0.1)
    solution, report = solve(problem, Budget(work=0.01))
    assert report.status == "optimal"
    assert violations(problem, solution.plan) == ()


def test_a_stock_that_is_too_small_is_left_to_the_general_search() -> None:
    problem = a_fluid_problem(random.Random(6), services=10, types=1, step=5.0, count=1)
    solution, _ = solve(problem, Budget(work=0.05))
    assert solution.plan.unserved
    assert violations(problem, solution.plan) == ()


def fluid(problem: Problem) -> bool:
    tables = make_tables(problem)
    columns = Columns(tables)
    columns.add(single_patterns(tables, tables.rate))
    return is_fluid(
        tables, make_demand(problem, tables, cheapest_rps(problem, tables, columns))
    )


def with_rows(problem: Problem, **changes: float) -> Problem:
    return replace(
        problem,
        points=tuple(
            replace(
                one,
                sensitivity=0.5,
                rows=tuple(row._replace(**changes) for row in one.rows),
            )
            for one in problem.points
        ),
    )


def test_only_problems_without_any_other_contention_are_fluid() -> None:
    problem = a_fluid_problem(random.Random(1), services=4, types=1, step=10.0)
    (gpu_type,), first = problem.gpu_types, problem.services[0]
    assert fluid(problem)
    assert fluid(with_rows(problem, launch_ms=0.1))
    assert not fluid(with_rows(problem, pressure=0.1))
    assert not fluid(with_rows(problem, memory_mib=5000.0))
    assert fluid(with_rows(problem, memory_mib=4000.0))
    assert not fluid(with_rows(problem, power_w=60.0))
    assert not fluid(replace(problem, max_replicas_per_gpu=3))
    assert not fluid(
        replace(
            problem, services=(replace(first, min_replicas=1), *problem.services[1:])
        )
    )
    assert not fluid(
        replace(
            problem, services=(replace(first, max_replicas=1), *problem.services[1:])
        )
    )
    slowed = replace(problem, gpu_types=(replace(gpu_type, launch_per_neighbour=0.1),))
    assert not fluid(with_rows(slowed, launch_ms=0.1))
    assert fluid(slowed)


def test_steps_of_a_thousandth_of_a_percent_are_too_fine_for_the_search() -> None:
    coarse = make_tables(
        a_fluid_problem(random.Random(1), services=4, types=1, step=2.5)
    )
    (mode,) = coarse.modes
    assert not is_too_fine(coarse)
    assert is_too_fine(
        coarse._replace(
            modes=(mode._replace(steps=100_000, width=np.ones_like(mode.width)),)
        )
    )
