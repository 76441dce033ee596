import pytest

from solvers.joint.patterns.columns import Columns
from solvers.joint.relaxation.column_generation import generate
from tests.solvers.instances import a_problem, a_service, random_problem
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import optimum, set_up


def test_finds_the_relaxation_over_all_patterns() -> None:
    for seed in range(100, 140):
        setting = set_up(tiny_problem(seed, services=4))
        found = setting.relaxed()
        assert found.solution.objective == pytest.approx(
            optimum(setting, is_whole=False), rel=2e-3, abs=1e-3
        ), seed


def test_bound_and_objective_meet_within_the_tolerance_of_the_last_phase() -> None:
    for seed in range(5):
        setting = set_up(random_problem(seed))
        found = setting.relaxed()
        assert found.is_exact
        assert found.bound <= found.solution.objective * (1 + 1e-9)
        assert found.bound >= found.solution.objective * (1 - 2e-3)


def test_stops_after_one_round_when_time_is_over_and_still_proves_something() -> None:
    setting = set_up(random_problem(1))
    found = generate(
        setting.tables,
        setting.demand,
        setting.pricer(),
        setting.columns,
        is_over=lambda: True,
    )
    assert found.rounds == 1
    assert not found.is_exact
    full = setting.relaxed()
    assert found.bound <= full.solution.objective * (1 + 1e-9)


def test_counts_belong_to_the_columns_in_their_order() -> None:
    setting = set_up(random_problem(2))
    found = setting.relaxed()
    assert len(found.columns) == len(found.solution.counts)
    cost = sum(
        setting.columns[number].price * count
        for number, count in zip(found.columns, found.solution.counts, strict=True)
    )
    short = setting.demand.shortage_price @ found.solution.shortage_rps
    missing = setting.demand.missing_price @ found.solution.replicas_missing
    assert cost + short + missing == pytest.approx(found.solution.objective)


def test_a_warm_start_needs_no_more_rounds_and_ends_at_the_same_value() -> None:
    setting = set_up(random_problem(3))
    cold = setting.relaxed()
    warm = generate(
        setting.tables,
        setting.demand,
        setting.pricer(),
        setting.columns,
        start=cold.columns,
    )
    assert warm.rounds <= cold.rounds
    assert warm.solution.objective == pytest.approx(cold.solution.objective, rel=2e-3)


def test_nothing_wanted_costs_nothing() -> None:
    setting = set_up(a_problem(a_service(rate_rps=0.0)))
    found = generate(
        setting.tables, setting.demand, setting.pricer(), Columns(setting.tables)
    )
    assert found.solution.objective == 0.0
    assert found.bound == pytest.approx(0.0, abs=1e-2)
