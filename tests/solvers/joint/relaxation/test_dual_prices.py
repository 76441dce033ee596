"""Prices of the relaxation, against what the linear program over every pattern says when something changes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from solvers.joint.relaxation.column_generation import generate
from solvers.joint.relaxation.dual_prices import Relaxed, relax
from solvers.joint.solve import solve
from solvers.types.outcome import Budget
from solvers.types.problem import Problem
from tests.examples import tried
from tests.solvers.instances import a_problem, a_service, a_type
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import optimum, set_up

STEP = 1e-4
"""Relative change of a rate: small enough that the same patterns stay the best."""
SEEDS = range(tried(30))


def relaxed(problem: Problem) -> Relaxed:
    found = relax(problem)
    assert found is not None
    return found


@cache
def payable(seed: int) -> Problem | None:
    """A tiny problem in which fractions of GPUs serve everything."""
    problem = tiny_problem(seed)
    found = relax(problem)
    is_paid = (
        found is not None
        and found.prices().unit == "usd_per_hour"
        and np.isfinite(min_cost(problem))
    )
    return problem if is_paid else None


@cache
def min_cost(problem: Problem) -> float:
    """Of fractions of GPUs that serve everything; infinite where none can."""
    return optimum(set_up(problem), is_whole=False, serves_all=True)


def with_rate(problem: Problem, number: int, rate_rps: float) -> Problem:
    services = list(problem.services)
    services[number] = replace(services[number], arrival_rate_rps=rate_rps)
    return replace(problem, services=tuple(services))


def with_count(problem: Problem, number: int, more: int) -> Problem:
    types = list(problem.gpu_types)
    types[number] = replace(types[number], count=(types[number].count or 0) + more)
    return replace(problem, gpu_types=tuple(types))


@pytest.mark.seeded
def test_one_more_request_costs_what_the_linear_program_says() -> None:
    compared = 0
    for seed in SEEDS:
        problem = payable(seed)
        if problem is None:
            continue
        prices = relaxed(problem).prices()
        here = min_cost(problem)
        for number, service in enumerate(problem.services):
            if service.arrival_rate_rps == 0.0:
                continue
            step = STEP * service.arrival_rate_rps
            up = (
                min_cost(with_rate(problem, number, service.arrival_rate_rps + step))
                - here
            ) / step
            down = (
                here
                - min_cost(with_rate(problem, number, service.arrival_rate_rps - step))
            ) / step
            price = prices.of_service(service.name)
            assert price is not None
            # At a kink any price between the two slopes is a right one.
            assert min(up, down) - 1e-5 <= price.per_rps_more <= max(up, down) + 1e-5, (
                seed,
                service.name,
            )
            assert price.per_rps >= price.per_rps_more
            compared += 1
    assert compared > 0.6 * len(SEEDS)


@pytest.mark.seeded
def test_further_gpus_save_at_most_their_price_and_fewer_cost_at_least_it() -> None:
    scarce = 0
    for seed in SEEDS:
        problem = payable(seed)
        if problem is None:
            continue
        prices, here = relaxed(problem).prices(), min_cost(problem)
        for number, gpu_type in enumerate(problem.gpu_types):
            worth = prices.of_gpu_type(gpu_type.name)
            assert (
                here - min_cost(with_count(problem, number, 1)) <= worth + 1e-3 * here
            ), (seed, gpu_type.name)
            assert (
                min_cost(with_count(problem, number, -1)) - here >= worth - 1e-3 * here
            ), (seed, gpu_type.name)
            scarce += worth > 0.0
    assert scarce > 0.1 * len(SEEDS)


def test_the_price_of_a_gpu_is_the_slope_of_the_cost_over_the_stock() -> None:
    # A whole GPU carries 100 rps: 200 by its time, half of that by the law at batch 1.
    types = (
        a_type("cheap", price_usd_per_hour=1.0, count=1),
        a_type("dear", price_usd_per_hour=3.0),
    )
    problem = a_problem(a_service(rate_rps=150.0), types=types)
    found = relaxed(problem)
    # 100 by the cheap one, 50 by half of a dear one.
    assert found.cost_usd_per_hour == pytest.approx(1.0 + 1.5)
    assert found.prices().of_gpu_type("cheap") == pytest.approx(2.0)
    less = replace(found.demand, stock=found.demand.stock - [0.1, 0.0])
    poorer = generate(found.tables, less, set_up(problem).pricer(), found.columns)
    assert poorer.solution.objective - found.cost_usd_per_hour == pytest.approx(
        0.1 * 2.0
    )


def test_one_more_request_is_free_where_the_replica_that_carries_all_has_room() -> None:
    price = relaxed(a_problem(a_service(rate_rps=10.0))).prices().of_service("chat")
    assert price is not None
    # One GPU at 1 USD/h serves the 10 rps, and would serve more.
    assert price.per_rps == pytest.approx(0.1)
    assert price.per_rps_more == 0.0


def test_a_replica_that_must_run_has_a_price_and_one_that_may_saves() -> None:
    forced = (
        relaxed(a_problem(a_service(rate_rps=10.0, min_replicas=3)))
        .prices()
        .of_service("chat")
    )
    assert forced is not None and forced.per_replica > 0.0
    # Two small GPUs would be cheaper than the one big one that alone carries everything.
    types = (
        a_type("small", price_usd_per_hour=0.5),
        a_type("big", price_usd_per_hour=4.0),
    )
    problem = a_problem(a_service(rate_rps=150.0, max_replicas=1), types=types)
    small, big = problem.points
    points = (
        small,
        replace(
            big, rows=tuple(row._replace(run_ms=row.run_ms / 4.0) for row in big.rows)
        ),
    )
    capped = relaxed(replace(problem, points=points)).prices().of_service("chat")
    assert capped is not None and capped.per_replica < 0.0


def test_where_something_stays_short_prices_are_weighted_requests() -> None:
    # Two GPUs of 100 rps for 350: one more serves 100 rps more, which at priority 2 weigh 200.
    problem = a_problem(
        a_service(rate_rps=350.0, priority=2.0), types=(a_type(count=2),)
    )
    prices = relaxed(problem).prices()
    assert (prices.unit, prices.short, prices.relaxation_usd_per_hour) == (
        "weighted_rps",
        ("chat",),
        None,
    )
    assert prices.of_gpu_type("gpu") == pytest.approx(200.0, rel=1e-3)
    price = prices.of_service("chat")
    assert price is not None and price.per_rps == pytest.approx(2.0)


def test_under_max_goodput_a_gpu_is_worth_what_it_serves() -> None:
    problem = a_problem(
        a_service(rate_rps=350.0), types=(a_type(count=2),), objective="max_goodput"
    )
    prices = relaxed(problem).prices()
    assert prices.unit == "weighted_rps"
    assert prices.of_gpu_type("gpu") == pytest.approx(100.0, rel=1e-3)


def test_a_solve_reports_the_prices_of_its_relaxation() -> None:
    problem = tiny_problem(3)
    solution, _ = solve(problem, Budget(seconds=10.0, work=1.0))
    assert solution.prices == relaxed(problem).prices()


def test_nothing_wanted_has_no_prices() -> None:
    problem = a_problem(a_service(rate_rps=0.0))
    assert relax(problem) is None
    assert solve(problem, Budget())[0].prices is None


def test_prices_do_not_depend_on_the_order_of_services() -> None:
    problem = tiny_problem(5)
    there = relaxed(problem).prices()
    back = relaxed(replace(problem, services=problem.services[::-1])).prices()
    for price in there.services:
        other = back.of_service(price.service)
        assert other is not None and other.per_rps == pytest.approx(
            price.per_rps, rel=2e-3, abs=1e-5
        )
