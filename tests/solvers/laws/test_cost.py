"""Costs and served weight, by hand on the contract's example and against the checker on random plans."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from solvers.check_report import report_violations
from solvers.laws.cost import (
    at_ordinary_prices,
    cost_usd_per_hour,
    gpu_power_w,
    in_usd,
    launched,
    migration_cost_usd_per_hour,
    served_weight,
    started,
)
from solvers.types.errors import InvalidInput
from solvers.types.outcome import PlanReport
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem
from tests.examples import examples
from tests.solvers.instances import gpu_plan, replica_on
from tests.solvers.small_plans import example, planned_problems


def goodput_problem() -> Problem:
    """The example with 2 `small` and 3 `big` GPUs that are paid for anyway."""
    problem, _, _ = example()
    types = tuple(replace(each, count=each.count or 3) for each in problem.gpu_types)
    return replace(problem, objective="max_goodput", gpu_types=types)


def test_the_example_draws_the_watts_and_costs_the_money_of_the_contract() -> None:
    problem, plan, _ = example()
    assert gpu_power_w(problem, plan.gpus[0]) == 20 + 36
    assert gpu_power_w(problem, plan.gpus[1]) == 50 + 90 + 125
    # 0.5 + 0.2 · 0.056 = 0.5112 and 1.2 + 0.2 · 0.265 = 1.253
    assert cost_usd_per_hour(problem, plan) == pytest.approx(1.7642, abs=1e-12)


def test_every_gpu_of_a_count_costs() -> None:
    problem, plan, _ = example()
    tripled = replace(plan, gpus=(replace(plan.gpus[1], count=3),))
    assert cost_usd_per_hour(problem, tripled) == pytest.approx(3 * 1.253, abs=1e-12)


def test_an_empty_plan_costs_nothing_or_every_idle_gpu_by_objective() -> None:
    problem, _, _ = example()
    assert cost_usd_per_hour(problem, Plan(policy="none")) == 0.0
    # 2 · (0.5 + 0.2 · 0.020) + 3 · (1.2 + 0.2 · 0.050)
    assert cost_usd_per_hour(goodput_problem(), Plan(policy="none")) == pytest.approx(
        1.008 + 3.63, abs=1e-12
    )


def test_a_used_gpu_is_not_paid_for_twice_under_max_goodput() -> None:
    _, plan, _ = example()
    # 1.7642 in use, one `small` (0.504) and two `big` (1.21) idle.
    assert cost_usd_per_hour(goodput_problem(), plan) == pytest.approx(
        1.7642 + 0.504 + 2.42, abs=1e-12
    )


@pytest.mark.parametrize("change", [{"gpu_type": "abacus"}, {"clock_mhz": 1.0}])
def test_a_plan_that_the_problem_does_not_know_has_no_cost(
    change: dict[str, str],
) -> None:
    problem, plan, _ = example()
    with pytest.raises(InvalidInput, match=r"abacus|no row for .* 1 MHz"):
        cost_usd_per_hour(
            problem, replace(plan, gpus=(replace(plan.gpus[0], **change),))
        )


def test_a_plan_of_an_unknown_service_has_no_cost() -> None:
    problem, plan, _ = example()
    stranger = replace(plan.gpus[0].replicas[0], service="nobody")
    with pytest.raises(InvalidInput, match="nobody"):
        cost_usd_per_hour(
            problem, replace(plan, gpus=(replace(plan.gpus[0], replicas=(stranger,)),))
        )


def test_migration_charges_only_replicas_that_start() -> None:
    problem, plan, _ = example()
    current = replace(plan, gpus=(replace(plan.gpus[0], count=2), plan.gpus[1]))
    moving = replace(problem, current=current, migration_cost_usd_per_hour=0.01)
    assert migration_cost_usd_per_hour(moving, current) == 0.0
    assert migration_cost_usd_per_hour(moving, plan) == 0.0
    # Two more `big`: one camera and one chat replica each.
    grown = replace(current, gpus=(current.gpus[0], replace(plan.gpus[1], count=3)))
    assert migration_cost_usd_per_hour(moving, grown) == pytest.approx(4 * 0.01)
    # Batch and clock change in place; another SM percent or GPU type is another replica.
    camera = replica_on("camera", 50.0, 1.0, batch=4)
    slower = replace(plan, gpus=(gpu_plan(camera, gpu_type="big"),))
    assert migration_cost_usd_per_hour(moving, slower) == 0.0
    wider = replace(
        slower,
        gpus=(replace(slower.gpus[0], replicas=(replace(camera, sm_percent=100.0),)),),
    )
    assert migration_cost_usd_per_hour(moving, wider) == pytest.approx(0.01)
    elsewhere = replace(slower, gpus=(replace(slower.gpus[0], gpu_type="small"),))
    assert migration_cost_usd_per_hour(moving, elsewhere) == pytest.approx(0.01)


def test_nothing_migrates_when_nothing_runs() -> None:
    problem, plan, _ = example()
    dear = replace(problem, migration_cost_usd_per_hour=5.0)
    assert migration_cost_usd_per_hour(dear, plan) == 0.0


def test_a_replica_that_moves_to_another_gpu_is_launched_but_not_charged() -> None:
    problem, plan, _ = example()
    ours, theirs = replica_on("camera", 50.0), replica_on("chat", 50.0)
    apart = (gpu_plan(ours, gpu_type="big"), gpu_plan(theirs, gpu_type="big"))
    together = (gpu_plan(ours, theirs, gpu_type="big"),)
    running = replace(problem, current=replace(plan, gpus=(*apart, *together * 2)))

    def counts(*gpus: GpuPlan) -> tuple[int, int]:
        wanted = replace(plan, gpus=gpus)
        return started(running, wanted), launched(running, wanted)

    assert counts(*apart, *together * 2) == (0, 0)
    # As many of each as before: one of them moves to where the other one goes on.
    assert counts(*together * 3) == (0, 1)
    # Two more GPUs with one of them: one is what is left of a GPU with both, the other one is new.
    assert counts(*apart[:1] * 3, *together) == (1, 1)
    # One more GPU with both.
    assert counts(*apart, *together * 3) == (2, 2)
    assert launched(replace(running, current=None), plan) == 0


def test_served_weight_counts_priority_and_no_more_than_arrives() -> None:
    problem, plan, _ = example()
    services = tuple(
        replace(each, priority=3.0) if each.name == "photo" else each
        for each in problem.services
    )
    weighted = replace(problem, services=services)
    assert served_weight(weighted, plan) == 150.0 + 3.0 * 120.0 + 130.0
    assert (
        served_weight(weighted, replace(plan, gpus=(replace(plan.gpus[0], count=2),)))
        == 3.0 * 120.0
    )
    assert served_weight(weighted, Plan(policy="none")) == 0.0


@given(case=planned_problems())
@settings(max_examples=examples(60), derandomize=True)
def test_the_checker_recomputes_the_same_cost_and_weight(
    case: tuple[Problem, Plan],
) -> None:
    for objective in ("min_cost", "max_goodput"):
        problem, plan = replace(case[0], objective=objective), case[1]
        report = PlanReport(
            status="greedy",
            cost_usd_per_hour=cost_usd_per_hour(problem, plan),
            served_weight=served_weight(problem, plan),
        )
        assert report_violations(problem, plan, report) == ()
        assert report_violations(
            problem,
            plan,
            replace(report, cost_usd_per_hour=report.cost_usd_per_hour * 1.001),
        )


@pytest.mark.parametrize("price", [1e-9, 1e-300, 1e6, 1e300])
def test_extreme_prices_become_ordinary_and_a_report_is_in_usd_again(
    price: float,
) -> None:
    problem, _, report = example()
    types = tuple(replace(each, price_usd_per_hour=price) for each in problem.gpu_types)
    dear = replace(problem, gpu_types=types, energy_price_usd_per_kwh=0.0)
    scaled, unit = at_ordinary_prices(dear)
    assert all(1.0 <= each.price_usd_per_hour < 10.01 for each in scaled.gpu_types)
    again = in_usd(dear, replace(report, cost_usd_per_hour=price / unit), unit)
    assert again.cost_usd_per_hour == pytest.approx(price)


def test_ordinary_prices_stay_as_they_are() -> None:
    problem, _, report = example()
    assert at_ordinary_prices(problem) == (problem, 1.0)
    assert in_usd(problem, report, 1.0) is report
