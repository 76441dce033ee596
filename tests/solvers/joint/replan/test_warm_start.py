"""Warm state: when it serves another problem, and that tokens name it once."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.joint.patterns.formulation import priced_problem
from solvers.joint.patterns.tables import make_tables
from solvers.joint.replan.warm_start import (
    HEADROOM,
    MAX_STATES,
    WIDE_HEADROOM,
    WarmStart,
    load_warm_start,
    store_warm_start,
)
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import Budget
from solvers.types.problem import Problem
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    random_problem,
    with_rates,
    with_services,
    with_types,
)

PROBLEM = random_problem(3)


def test_a_state_serves_other_rates_within_its_headroom() -> None:
    warm = WarmStart(PROBLEM, has_headroom=True)
    assert warm.fits(with_rates(PROBLEM, 0.5))
    assert warm.headroom >= HEADROOM
    assert warm.fits(with_rates(PROBLEM, warm.headroom))
    assert not warm.fits(with_rates(PROBLEM, 1.01 * warm.headroom))
    assert not WarmStart(PROBLEM).fits(with_rates(PROBLEM, 1.01))


def test_headroom_is_wide_where_that_takes_few_more_candidates() -> None:
    # One batch carries 50 or 100 rps: higher rates need no other candidates.
    assert (
        WarmStart(
            a_problem(a_service("chat", rate_rps=60.0)), has_headroom=True
        ).headroom
        == WIDE_HEADROOM
    )
    # Shares carry ever more, from half of the rate to five times as much.
    rows = tuple(a_row(10.0 * share, 100.0 / share) for share in range(1, 11))
    small = a_problem(
        a_service("chat", rate_rps=10.0, slo_ms=1000.0),
        rows=rows,
        types=(a_type(sm_percent_step=10.0),),
    )
    assert WarmStart(small, has_headroom=True).headroom == HEADROOM


def test_a_state_with_too_many_columns_goes_on_with_the_cheapest() -> None:
    problem = random_problem(5)
    warm = WarmStart(problem, has_headroom=True)
    before, _ = solve(problem, Budget(), warm=warm)
    running = warm.running(replace(problem, current=before.plan))
    patterns = {
        warm.columns[number].pattern: count for number, count in running.items()
    }
    many = len(warm.columns)
    warm.trim(problem, most=many, kept=1)
    assert len(warm.columns) == many
    warm.trim(problem, most=many - 1, kept=1)
    assert len(warm.columns) == len(warm.singles) + 1 < many
    after = warm.running(replace(problem, current=before.plan))
    assert {
        warm.columns[number].pattern: count for number, count in after.items()
    } == patterns
    again, report = solve(problem, Budget(), warm=warm)
    assert report.status == "optimal"
    assert cost_usd_per_hour(problem, again.plan) == pytest.approx(
        cost_usd_per_hour(problem, before.plan)
    )


def test_a_state_serves_other_stock_and_priorities() -> None:
    fewer = with_types(PROBLEM, count=1)
    other = with_services(PROBLEM, priority=7.0)
    warm = WarmStart(PROBLEM)
    assert warm.fits(fewer)
    assert warm.tables(fewer).stock.tolist() == [1.0, 1.0]
    assert warm.fits(other)
    assert set(warm.tables(other).priority.tolist()) == {7.0}


@pytest.mark.parametrize(
    "other",
    [
        replace(PROBLEM, services=PROBLEM.services[1:]),
        replace(
            PROBLEM,
            services=(replace(PROBLEM.services[0], slo_ms=1.0), *PROBLEM.services[1:]),
        ),
        replace(PROBLEM, points=PROBLEM.points[1:]),
        replace(PROBLEM, energy_price_usd_per_kwh=1.0),
        replace(PROBLEM, max_replicas_per_gpu=2),
        replace(
            PROBLEM,
            gpu_types=(
                replace(PROBLEM.gpu_types[0], price_usd_per_hour=9.0),
                *PROBLEM.gpu_types[1:],
            ),
        ),
    ],
)
def test_a_state_serves_no_other_services_rows_or_prices(other: Problem) -> None:
    assert not WarmStart(PROBLEM).fits(other)


def test_tables_with_headroom_hold_every_candidate_of_the_exact_ones() -> None:
    exact = make_tables(priced_problem(PROBLEM))
    warm = WarmStart(PROBLEM, has_headroom=True).tables(PROBLEM)
    assert np.array_equal(warm.rate, exact.rate)
    for mode, wider in zip(exact.modes, warm.modes, strict=True):
        kept = set(zip(wider.service.tolist(), wider.row.tolist(), strict=True))
        assert set(zip(mode.service.tolist(), mode.row.tolist(), strict=True)) <= kept


def test_a_solve_with_warm_state_finds_the_same_optimum() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=130.0), a_service("photo", rate_rps=40.0)
    )
    warm = WarmStart(problem, has_headroom=True)
    solve(problem, Budget(), warm=warm)
    for factor in (0.5, 1.2):
        other = with_rates(problem, factor)
        (_, hot), (_, cold) = solve(other, Budget(), warm=warm), solve(other, Budget())
        assert hot.status == cold.status == "optimal"
        assert hot.objective == pytest.approx(cold.objective)


def test_a_token_names_a_state_once() -> None:
    warm = WarmStart(PROBLEM)
    token = store_warm_start(warm)
    assert load_warm_start(token, PROBLEM) is warm
    assert load_warm_start(token, PROBLEM) is None
    assert load_warm_start(None, PROBLEM) is None


def test_a_state_that_does_not_serve_the_problem_is_dropped() -> None:
    token = store_warm_start(WarmStart(PROBLEM))
    assert load_warm_start(token, with_rates(PROBLEM, 2.0)) is None
    assert load_warm_start(token, PROBLEM) is None


def test_only_a_few_states_are_kept_those_used_last() -> None:
    problem = a_problem(a_service("chat", rate_rps=10.0))
    tokens = [store_warm_start(WarmStart(problem)) for _ in range(MAX_STATES + 1)]
    assert load_warm_start(tokens[0], problem) is None
    assert all(load_warm_start(token, problem) is not None for token in tokens[1:])
