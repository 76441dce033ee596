"""Plans fleet by fleet: fleets in the order of what they promise, plans that serve everything for less."""

from collections.abc import Callable

import numpy as np
import pytest

from solvers.joint.heuristics.integer_plans import state_plan
from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.heuristics.small_fleets import (
    list_fleets,
    mild_prices,
    plan_on_fleets,
)
from solvers.joint.patterns.carried import carried
from solvers.joint.patterns.deadline import never
from solvers.joint.relaxation.column_generation import Relaxation
from tests.examples import seeds
from tests.solvers.instances import a_problem, a_service, a_type, random_problem
from tests.solvers.whole_program import Setting, optimum, set_up

DEAR = 1e3


def prepared(
    seed: int, *, services: int = 3, gpus: int = 2
) -> tuple[Setting, SearchContext, Relaxation]:
    setting = set_up(random_problem(seed, services=services, types=2, gpus=gpus))
    tools = setting.tools()
    return (
        setting,
        tools,
        setting.relaxed(tools.pricer),
    )


def found(
    seed: int, *, below: float = DEAR, is_over: Callable[[], bool] = never
) -> dict[object, int] | None:
    setting, tools, relaxation = prepared(seed)
    plan = plan_on_fleets(
        tools, setting.demand, relaxation, below=below, seed=0, is_over=is_over
    )
    return (
        None
        if plan is None
        else {tools.columns[number].pattern: count for number, count in plan.items()}
    )


# Seed 0 takes as long as all others.
@pytest.mark.parametrize(
    "seed", [*seeds(5, first=1), pytest.param(0, marks=pytest.mark.thorough)]
)
def test_tiny_problems_are_solved_to_the_optimum(seed: int) -> None:
    setting, tools, relaxation = prepared(seed)
    best = optimum(setting, serves_all=True)
    plan = plan_on_fleets(
        tools, setting.demand, relaxation, below=DEAR, seed=0, is_over=never
    )
    if np.isinf(best):
        assert plan is None
        return
    assert plan is not None
    stated = state_plan(tools, setting.demand, plan)
    assert not stated.shortage_rps.any() and not stated.replicas_missing.any()
    taken = carried(tools.tables, tools.columns, plan)
    assert (taken.gpus <= setting.demand.stock).all() and (
        taken.replicas <= setting.demand.most
    ).all()
    assert stated.cost_usd_per_hour == pytest.approx(best, rel=1e-6)


def test_fleets_come_in_the_order_of_their_relaxations() -> None:
    setting, tools, relaxation = prepared(4, services=5, gpus=4)
    fleets = list_fleets(tools, setting.demand, relaxation, below=DEAR, is_over=never)
    values = [fleet.value for fleet in fleets]
    assert values == sorted(values)
    assert len({fleet.gpus for fleet in fleets}) == len(fleets) > 1
    for fleet in fleets:
        assert sum(fleet.gpus) > 0
        assert (np.array(fleet.gpus) <= setting.demand.stock).all()
        assert np.array(fleet.gpus) @ tools.tables.price <= fleet.value + 1e-6


def test_fleets_that_cost_more_than_is_wanted_are_left_out() -> None:
    setting, tools, relaxation = prepared(4, services=5, gpus=4)
    fleets = list_fleets(tools, setting.demand, relaxation, below=DEAR, is_over=never)
    below = fleets[1].value
    cheap = list_fleets(tools, setting.demand, relaxation, below=below, is_over=never)
    assert cheap
    assert all(fleet.value < below for fleet in cheap)
    assert not list_fleets(
        tools, setting.demand, relaxation, below=0.5 * fleets[0].value, is_over=never
    )


def test_fleets_are_counted_where_there_are_as_many_gpus_as_wanted() -> None:
    setting = set_up(a_problem(a_service("chat", rate_rps=250.0), types=(a_type(),)))
    tools = setting.tools()
    relaxation = setting.relaxed(tools.pricer)
    # A GPU carries 100 rps.
    fleets = list_fleets(tools, setting.demand, relaxation, below=5.5, is_over=never)
    assert [fleet.gpus for fleet in fleets] == [(3,), (4,), (5,)]


def test_only_cheaper_plans_are_returned() -> None:
    best = optimum(prepared(1)[0], serves_all=True)
    assert np.isfinite(best)
    assert found(1, below=best * (1.0 - 1e-6)) is None
    assert found(1, below=best * (1.0 + 1e-6)) is not None


def test_nothing_is_found_when_time_is_over() -> None:
    assert found(1, is_over=lambda: True) is None


def test_mild_prices_are_above_the_duals_and_no_service_is_worth_nothing() -> None:
    setting, _, relaxation = prepared(4, services=5, gpus=4)
    duals, demand = relaxation.solution.duals, setting.demand
    prices = mild_prices(demand, duals)
    assert (prices >= duals.rps).all()
    assert (prices[demand.rate > 0.0] > 0.0).all()
    assert (prices <= demand.shortage_price).all()
