"""Warm state: when it serves another problem, and that tokens name it once."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.joint.problem import priced_problem
from solvers.joint.replanning.warm import HEADROOM, MOST_STATES, Warm, keep_warm, take_warm
from solvers.joint.solve import solve
from solvers.joint.tables import make_tables
from solvers.outcome import Budget
from solvers.problem import Problem
from tests.solvers.policies.instances import a_problem, a_service, random_problem, with_rates

PROBLEM = random_problem(3)


def test_a_state_serves_other_rates_within_its_headroom() -> None:
    warm = Warm(PROBLEM, headroom=HEADROOM)
    assert warm.fits(with_rates(PROBLEM, 0.5))
    assert warm.fits(with_rates(PROBLEM, HEADROOM))
    assert not warm.fits(with_rates(PROBLEM, 1.01 * HEADROOM))
    assert not Warm(PROBLEM).fits(with_rates(PROBLEM, 1.01))


def test_a_state_serves_other_stock_and_priorities() -> None:
    fewer = replace(PROBLEM, gpu_types=tuple(replace(one, count=1) for one in PROBLEM.gpu_types))
    other = replace(PROBLEM, services=tuple(replace(one, priority=7.0) for one in PROBLEM.services))
    warm = Warm(PROBLEM)
    assert warm.fits(fewer)
    assert warm.tables(fewer).stock.tolist() == [1.0, 1.0]
    assert warm.fits(other)
    assert set(warm.tables(other).priority.tolist()) == {7.0}


@pytest.mark.parametrize(
    "other",
    [
        replace(PROBLEM, services=PROBLEM.services[1:]),
        replace(PROBLEM, services=(replace(PROBLEM.services[0], slo_ms=1.0), *PROBLEM.services[1:])),
        replace(PROBLEM, points=PROBLEM.points[1:]),
        replace(PROBLEM, energy_price_usd_per_kwh=1.0),
        replace(PROBLEM, max_replicas_per_gpu=2),
        replace(PROBLEM, gpu_types=(replace(PROBLEM.gpu_types[0], price_usd_per_hour=9.0), *PROBLEM.gpu_types[1:])),
    ],
)
def test_a_state_serves_no_other_services_rows_or_prices(other: Problem) -> None:
    assert not Warm(PROBLEM).fits(other)


def test_tables_with_headroom_hold_every_candidate_of_the_exact_ones() -> None:
    exact = make_tables(priced_problem(PROBLEM))
    warm = Warm(PROBLEM, headroom=HEADROOM).tables(PROBLEM)
    assert np.array_equal(warm.rate, exact.rate)
    for mode, wider in zip(exact.modes, warm.modes, strict=True):
        kept = set(zip(wider.service.tolist(), wider.row.tolist(), strict=True))
        assert set(zip(mode.service.tolist(), mode.row.tolist(), strict=True)) <= kept


def test_a_solve_with_warm_state_finds_the_same_optimum() -> None:
    problem = a_problem(a_service("chat", rate_rps=130.0), a_service("photo", rate_rps=40.0))
    warm = Warm(problem, headroom=HEADROOM)
    solve(problem, Budget(), warm=warm)
    for factor in (0.5, 1.2):
        other = with_rates(problem, factor)
        (_, hot), (_, cold) = solve(other, Budget(), warm=warm), solve(other, Budget())
        assert hot.status == cold.status == "optimal"
        assert hot.objective == pytest.approx(cold.objective)


def test_a_token_names_a_state_once() -> None:
    warm = Warm(PROBLEM)
    token = keep_warm(warm)
    assert take_warm(token, PROBLEM) is warm
    assert take_warm(token, PROBLEM) is None
    assert take_warm(None, PROBLEM) is None


def test_a_state_that_does_not_serve_the_problem_is_dropped() -> None:
    token = keep_warm(Warm(PROBLEM))
    assert take_warm(token, with_rates(PROBLEM, 2.0)) is None
    assert take_warm(token, PROBLEM) is None


def test_only_a_few_states_are_kept_those_used_last() -> None:
    problem = a_problem(a_service("chat", rate_rps=10.0))
    tokens = [keep_warm(Warm(problem)) for _ in range(MOST_STATES + 1)]
    assert take_warm(tokens[0], problem) is None
    assert all(take_warm(token, problem) is not None for token in tokens[1:])
