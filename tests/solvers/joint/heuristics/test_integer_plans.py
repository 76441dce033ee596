"""Whole plans from the relaxation."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from solvers.joint.heuristics.diving import complete_greedily, floors
from solvers.joint.heuristics.integer_plans import IntegerPlan, IntegerPlans
from solvers.joint.patterns.carried import carried, is_met, rest_of
from solvers.joint.relaxation.column_generation import Relaxation
from solvers.types.problem import Problem
from tests.examples import seeds, tried
from tests.solvers.instances import a_problem, a_service, a_type, random_problem
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import Setting, after, optimum, set_up


def solved(
    problem: Problem, *, calls: int = 40, seed: int = 0
) -> tuple[Setting, Relaxation, IntegerPlan]:
    setting = set_up(problem)
    pricer = setting.pricer()
    relaxation = setting.relaxed(pricer)
    tools = setting.tools(pricer)
    return (
        setting,
        relaxation,
        run(IntegerPlans(tools, setting.demand, seed=seed), relaxation, calls),
    )


def run(whole: IntegerPlans, relaxation: Relaxation, calls: int) -> IntegerPlan:
    is_over = after(calls)
    whole.sketch(relaxation)
    whole.dive(relaxation, is_over)
    whole.improve(relaxation, is_over)
    return whole.best


def value(setting: Setting, plan: IntegerPlan) -> float:
    """Its cost with shortages at their prices."""
    demand = setting.demand
    unserved = (
        plan.shortage_rps @ demand.shortage_price
        + plan.replicas_missing @ demand.missing_price
    )
    return plan.cost_usd_per_hour + float(unserved)


@pytest.mark.parametrize("calls", [0, 1, 30])
@pytest.mark.parametrize("seed", seeds(6))
def test_plans_keep_stock_and_limits_and_state_what_they_leave(
    seed: int, calls: int
) -> None:
    setting, relaxation, plan = solved(tiny_problem(seed, services=4), calls=calls)
    demand = setting.demand
    assert all(isinstance(count, int) and count > 0 for count in plan.counts.values())
    taken = carried(setting.tables, setting.columns, plan.counts)
    assert (taken.gpus <= demand.stock).all()
    assert (taken.replicas <= demand.most).all()
    assert plan.shortage_rps == pytest.approx(np.maximum(demand.rate - taken.rps, 0.0))
    assert plan.replicas_missing == pytest.approx(
        np.maximum(demand.fewest - taken.replicas, 0.0)
    )
    cost = sum(
        setting.columns[number].price * count for number, count in plan.counts.items()
    )
    assert plan.cost_usd_per_hour == pytest.approx(cost)
    assert value(setting, plan) >= relaxation.bound - 1e-9


@pytest.mark.seeded
def test_tiny_plans_are_optimal_and_never_better_than_that() -> None:
    for seed in range(tried(20)):
        setting, _, plan = solved(tiny_problem(seed))
        # To serve comes before to save, whatever the shortage prices of this relaxation.
        best = optimum(setting, serves_all=True)
        assert value(setting, plan) >= optimum(setting) - 1e-6, seed
        if np.isfinite(best):
            assert not plan.shortage_rps.any(), seed
            assert plan.cost_usd_per_hour == pytest.approx(best, rel=1e-3), seed


@pytest.mark.parametrize("seed", range(3))
def test_searching_is_never_worse_than_rounding_down_and_completing_greedily(
    seed: int,
) -> None:
    setting, relaxation, plan = solved(random_problem(seed))
    tools = setting.tools()
    whole = floors(relaxation.solution.counts, relaxation.columns)
    greedy = complete_greedily(tools, setting.demand, relaxation.solution.duals, whole)
    taken = carried(setting.tables, setting.columns, greedy)
    if (taken.rps >= setting.demand.rate).all():
        assert not plan.shortage_rps.any()
        assert plan.cost_usd_per_hour <= taken.cost + 1e-9


def test_completing_greedily_is_as_if_gpu_by_gpu() -> None:
    repeated = 0
    for seed in range(6):
        setting, relaxation, _ = solved(random_problem(seed), calls=0)
        tools = setting.tools()
        duals, one_by_one = relaxation.solution.duals, Counter[int]()
        many = np.full_like(setting.demand.stock, 100.0)
        demand = replace(setting.demand, rate=5.0 * setting.demand.rate, stock=many)
        while True:
            rest = rest_of(
                demand,
                setting.tables,
                carried(setting.tables, setting.columns, one_by_one),
            )
            rps = np.maximum(duals.rps, 1e-6 * rest.shortage_price)
            best = tools.pool.best_value(
                rest, rps, np.where(rest.fewest > 0.0, rest.missing_price, 0.0)
            )
            if is_met(rest) or best < 0:
                break
            one_by_one[best] += 1
        assert complete_greedily(tools, demand, duals, {}) == one_by_one, seed
        repeated += sum(one_by_one.values()) - len(one_by_one)
    assert repeated > 0


def test_every_better_plan_is_reported_and_the_last_one_returned() -> None:
    setting = set_up(random_problem(5))
    pricer = setting.pricer()
    relaxation = setting.relaxed(pricer)
    reported: list[IntegerPlan] = []
    tools = setting.tools(pricer)
    plan = run(
        IntegerPlans(tools, setting.demand, seed=0, on_better=reported.append),
        relaxation,
        60,
    )
    values = [value(setting, each) for each in reported]
    assert values == sorted(values, reverse=True)
    assert reported[-1] is plan


def test_too_few_gpus_serve_what_counts_most() -> None:
    # One GPU carries 100 rps; the service of greater priority gets it all.
    services = (
        a_service("chat", rate_rps=100.0),
        a_service("vital", rate_rps=100.0, priority=3.0),
    )
    _, _, plan = solved(a_problem(*services, types=(a_type(count=1),)))
    assert sum(plan.counts.values()) == 1
    assert plan.shortage_rps == pytest.approx([100.0, 0.0])


def test_fewest_replicas_stand_though_nothing_is_asked_of_them() -> None:
    setting, _, plan = solved(
        a_problem(a_service("idle", rate_rps=0.0, min_replicas=2))
    )
    assert carried(setting.tables, setting.columns, plan.counts).replicas.tolist() == [
        2.0
    ]
    assert not plan.replicas_missing.any()
