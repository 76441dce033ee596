"""Random planner problems: reproducible, of the size asked for, and as hard as the shared ones."""

from dataclasses import replace

import pytest

from bench.plan_runs import known_problems, load
from bench.synthetic_problems import rate_factor, synthetic_problem
from solvers.types.documents.problem_json import problem_from_json, problem_to_json
from solvers.types.problem import Problem


def price_of_all_gpus(problem: Problem) -> float:
    return sum(one.price_usd_per_hour * (one.count or 0) for one in problem.gpu_types)


def scaled(problem: Problem, factor: float) -> Problem:
    services = (
        replace(each, arrival_rate_rps=factor * each.arrival_rate_rps)
        for each in problem.services
    )
    return replace(problem, services=tuple(services))


def test_a_seed_gives_the_same_problem_every_time_and_another_seed_another() -> None:
    assert (
        synthetic_problem(16, 12, 7)
        == synthetic_problem(16, 12, 7)
        != synthetic_problem(16, 12, 8)
    )


def test_a_problem_is_valid_under_the_contract() -> None:
    problem = synthetic_problem(4, 8, 3)
    assert problem_from_json(problem_to_json(problem)) == problem


def test_twice_the_rates_halve_the_factor_that_a_sum_of_money_allows() -> None:
    problem = synthetic_problem(16, 12, 1)
    once, twice = (rate_factor(scaled(problem, factor), 8.0) for factor in (1.0, 2.0))
    assert twice == pytest.approx(0.5 * once)


@pytest.mark.skipif(not known_problems(), reason="needs the shared problems")
@pytest.mark.parametrize(
    "size", ["16x12", pytest.param("100x30", marks=pytest.mark.thorough)]
)
def test_rates_are_as_high_as_those_of_the_shared_problems(size: str) -> None:
    gpus, services = map(int, size.split("x"))
    shared, own = load(f"synthetic_{size}_s1"), synthetic_problem(gpus, services, 1)
    half = 0.5 * price_of_all_gpus(shared)
    assert rate_factor(own, half) == pytest.approx(rate_factor(shared, half), rel=0.25)
