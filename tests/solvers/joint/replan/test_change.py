"""Changing the running plan: few starts, counted as the contract counts them, whatever has changed around it."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.joint.replan.change import change
from solvers.joint.replan.warm_start import WarmStart
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour, served_weight, started
from solvers.types.outcome import Budget
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem
from tests.examples import seeds
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    random_problem,
    replica_on,
    with_rates,
)

PRESSED = (
    a_row(50.0, 10.0, pressure=0.5),
    a_row(100.0, 5.0),
    a_row(50.0, 16.0, batch=4, pressure=0.5),
)


def never() -> bool:
    return False


def changed(
    problem: Problem,
    *,
    start_usd_per_hour: float | None = None,
    may_rearrange: bool = False,
) -> Plan:
    """The better of the two, which the checker accepts."""
    found = change(
        problem,
        WarmStart(problem),
        None,
        start_usd_per_hour=start_usd_per_hour,
        may_rearrange=may_rearrange,
        is_over=never,
    )
    plan = found.changed or found.kept
    assert plan is not None
    assert violations(problem, plan) == ()
    return plan


def halves(
    *services: str, count: int = 1, gpu_type: str = "gpu", batch: int = 1
) -> GpuPlan:
    replicas = (replica_on(name, 50.0, 1.0, batch=batch) for name in services)
    return gpu_plan(*replicas, gpu_type=gpu_type, count=count)


def running(*gpus: GpuPlan) -> Plan:
    return Plan(policy="before", gpus=gpus)


def test_what_still_carries_the_rates_goes_on_without_a_start() -> None:
    # Two halves carry 50 rps each.
    problem = a_problem(
        a_service("chat", rate_rps=50.0), a_service("photo", rate_rps=45.0)
    )
    problem = replace(problem, current=running(halves("chat", "photo")))
    plan = changed(problem)
    assert started(problem, plan) == 0
    assert [gpu.count for gpu in plan.gpus] == [1]


def test_superfluous_gpus_go_without_a_start() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=60.0), current=running(halves("chat", count=4))
    )
    plan = changed(problem)
    assert (started(problem, plan), sum(gpu.count for gpu in plan.gpus)) == (0, 2)


def test_growth_of_one_service_starts_one_replica() -> None:
    services = (a_service("chat", rate_rps=140.0), a_service("photo", rate_rps=90.0))
    problem = a_problem(*services, current=running(halves("chat", "photo", count=2)))
    plan = changed(problem)
    assert plan.unserved == ()
    assert started(problem, plan) == 1


def test_a_larger_batch_is_no_start() -> None:
    # Batch 4 in 16 ms at 80 % carries 200 rps where batch 1 carries 50.
    problem = a_problem(
        a_service("chat", rate_rps=150.0), rows=PRESSED, current=running(halves("chat"))
    )
    plan = changed(problem)
    assert (plan.unserved, started(problem, plan)) == ((), 0)
    assert [each.batch for gpu in plan.gpus for each in gpu.replicas] == [4]


def test_another_neighbour_is_no_start() -> None:
    # Next to its neighbour chat takes 10 · (1 + 0.5) ms and carries 33 rps; alone on a GPU it carries 50.
    services = (a_service("chat", rate_rps=50.0), a_service("photo", rate_rps=50.0))
    problem = a_problem(
        *services,
        rows=PRESSED[:2],
        sensitivity=1.0,
        current=running(halves("chat", "photo")),
    )
    plan = changed(problem)
    assert (plan.unserved, started(problem, plan)) == ((), 0)


def test_gpus_that_are_lost_are_made_good_where_there_are_others() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=150.0),
        types=(a_type(count=1), a_type("spare", price_usd_per_hour=2.0)),
        current=running(halves("chat", count=3)),
    )
    plan = changed(problem)
    assert plan.unserved == ()
    assert {gpu.gpu_type for gpu in plan.gpus} == {"gpu", "spare"}
    assert started(problem, plan) <= 2


def test_gpus_that_are_lost_without_others_leave_rates_unserved() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=150.0),
        types=(a_type(count=1),),
        rows=PRESSED[:2],
        current=running(halves("chat", count=3)),
    )
    plan = changed(problem)
    assert sum(gpu.count for gpu in plan.gpus) == 1
    assert [each.service for each in plan.unserved] == ["chat"]


def test_a_new_service_joins_and_the_others_stay() -> None:
    services = (a_service("chat", rate_rps=45.0), a_service("new", rate_rps=45.0))
    problem = a_problem(*services, current=running(halves("chat")))
    plan = changed(problem)
    assert (plan.unserved, started(problem, plan)) == ((), 1)


def test_a_service_that_left_takes_its_replicas_along() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=45.0),
        current=running(halves("chat"), halves("gone", count=2)),
    )
    plan = changed(problem)
    assert [
        (gpu.count, [each.service for each in gpu.replicas]) for gpu in plan.gpus
    ] == [(1, ["chat"])]
    assert started(problem, plan) == 0


def test_rates_times_ten_are_served() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=450.0), a_service("photo", rate_rps=450.0)
    )
    problem = replace(problem, current=running(halves("chat", "photo")))
    plan = changed(problem)
    assert plan.unserved == ()
    assert cost_usd_per_hour(problem, plan) == pytest.approx(9.0)


@pytest.mark.parametrize("seed", seeds(8))
def test_changed_plans_serve_what_fresh_ones_do_with_fewer_starts(seed: int) -> None:
    problem = random_problem(seed)
    before, _ = solve(problem, Budget(work=0.2))
    for factor in (0.9, 1.05, 1.1):
        other = with_rates(replace(problem, current=before.plan), factor)
        plan = changed(other)
        fresh, _ = solve(other, Budget(work=0.2))
        assert started(other, plan) <= 2 + started(other, fresh.plan)
        assert served_weight(other, plan) >= 0.97 * served_weight(other, fresh.plan)


def test_a_price_of_starts_decides_between_few_starts_and_few_gpus() -> None:
    # Whole GPUs for halves: two starts save one GPU at 1 USD per hour.
    whole = gpu_plan(replica_on("chat", 100.0, 40.0))
    other = replace(whole, replicas=(replace(whole.replicas[0], service="photo"),))
    services = (a_service("chat", rate_rps=40.0), a_service("photo", rate_rps=40.0))
    problem = a_problem(*services, current=running(whole, other))
    for start, gpus in ((0.3, 1), (0.45, 1), (0.55, 2), (3.0, 2)):
        plan = changed(problem, start_usd_per_hour=start, may_rearrange=True)
        assert sum(gpu.count for gpu in plan.gpus) == gpus
