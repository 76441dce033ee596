"""Owned and reserved GPUs: free up to what is paid for, with a bound that holds."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.joint import policy as joint
from solvers.joint.reserved import split
from solvers.joint.shortage import PAID_MOVE_WORTH, is_worth_moving
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import GpuPlan, Plan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import ALL_PAID, Observed
from tests.examples import seeds
from tests.solvers.instances import (
    a_problem,
    a_service,
    a_type,
    gpu_plan,
    random_problem,
    replica_on,
    with_types,
)
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import optimum, set_up

BUDGET = Budget(seconds=5.0, work=0.3)


def planned(problem: Problem) -> tuple[Plan, PlanReport]:
    plan, report, _ = joint.make_plan(problem, Observed(at_s=0.0), None, BUDGET)
    return plan, report


def with_paid(problem: Problem, count: int) -> Problem:
    return with_types(problem, paid_count=count)


@pytest.mark.parametrize(
    ("paid", "usd_per_hour"), [(0, 3.0), (2, 1.0), (3, 0.0), (ALL_PAID, 0.0)]
)
def test_gpus_beyond_those_that_are_paid_for_cost_their_price(
    paid: int, usd_per_hour: float
) -> None:
    """Three services that take a GPU each, at 1 USD per hour."""
    problem = a_problem(
        *(a_service(f"s{number}", rate_rps=100.0) for number in range(3)),
        types=(a_type("gpu", price_usd_per_hour=1.0, count=4),),
    )
    plan, report = planned(with_paid(problem, paid))
    assert sum(gpu.count for gpu in plan.gpus) == 3
    assert report.cost_usd_per_hour == pytest.approx(usd_per_hour)
    assert {gpu.gpu_type for gpu in plan.gpus} == {"gpu"}
    assert (report.lower_bound_usd_per_hour or 0.0) <= usd_per_hour + 1e-9


def test_a_dear_gpu_that_is_paid_for_comes_before_a_cheap_one_that_is_rented() -> None:
    types = (
        a_type("dear", price_usd_per_hour=5.0, count=2, paid_count=1),
        a_type("cheap", price_usd_per_hour=1.0, count=2),
    )
    problem = a_problem(a_service("chat", rate_rps=20.0), types=types)
    plan, report = planned(problem)
    assert [gpu.gpu_type for gpu in plan.gpus] == ["dear"]
    assert report.cost_usd_per_hour == 0.0


@pytest.mark.parametrize("seed", [0, 4])
def test_fleets_with_reserved_gpus_are_relaxed_without_shortages(seed: int) -> None:
    """Where a shortage cost a multiple of what a paid GPU does, it was cheaper than any rented one."""
    problem = with_paid(random_problem(seed, services=12, gpus=20), 1)
    plan, report = planned(problem)
    assert not plan.unserved
    assert report.prices is not None
    assert report.prices.unit == "usd_per_hour"
    # In addition to the paid GPUs one rented `type0` at 1 USD per hour is enough; energy is some cents.
    assert report.cost_usd_per_hour < 2.0
    # Both halves have a price.
    assert {one.gpu_type for one in report.prices.gpu_types} == {
        "type0",
        "type0 (paid)",
        "type1",
        "type1 (paid)",
    }


@pytest.mark.parametrize("seed", seeds(16))
def test_plans_cost_the_optimum_of_the_two_halves(seed: int) -> None:
    problem = with_paid(tiny_problem(seed), 1)
    if problem.objective != "min_cost":
        return
    halves = split(problem)
    # The oracle knows prices only: next to nothing for the half that is paid for.
    priced = replace(
        halves,
        gpu_types=tuple(
            replace(one, price_usd_per_hour=1e-9) if one.is_owned else one
            for one in halves.gpu_types
        ),
        migration_cost_usd_per_hour=0.0,
        current=None,
    )
    best = optimum(set_up(priced), serves_all=True)
    alone = replace(problem, migration_cost_usd_per_hour=0.0, current=None)
    plan, report = planned(alone)
    assert not violations(alone, plan)
    if plan.unserved or best == float("inf"):
        return
    assert cost_usd_per_hour(alone, plan) == pytest.approx(best, abs=1e-5)
    assert (report.lower_bound_usd_per_hour or 0.0) <= best + 1e-5


def on_gpu(service: str, sm_percent: float, rate_rps: float) -> GpuPlan:
    replica = replica_on(service, sm_percent, rate_rps)
    return gpu_plan(replica)


@pytest.mark.parametrize(("gain_rps", "is_worth"), [(10.0, False), (20.0, True)])
def test_a_move_on_owned_gpus_is_worth_part_of_what_stops(
    gain_rps: float, is_worth: bool
) -> None:
    # The replica that stops serves 50 rps; it must bring 0.3 times that.
    assert 10.0 < PAID_MOVE_WORTH * 50.0 < 20.0
    problem = a_problem(
        a_service("chat", rate_rps=100.0),
        types=(a_type("gpu", count=1, paid_count=1),),
        current=Plan(policy="joint", gpus=(on_gpu("chat", 50.0, 50.0),)),
    )

    def serving(sm_percent: float, rate_rps: float) -> Plan:
        left = Unserved(service="chat", rate_rps=100.0 - rate_rps, reason="stock")
        return Plan(
            policy="joint",
            gpus=(on_gpu("chat", sm_percent, rate_rps),),
            unserved=(left,),
        )

    kept, other = serving(50.0, 50.0), serving(100.0, 50.0 + gain_rps)
    assert is_worth_moving(problem, kept, other, start_price=0.01) is is_worth
    # By the hour a little more is worth it.
    rented = with_paid(problem, 0)
    assert is_worth_moving(rented, kept, other, start_price=0.01)
