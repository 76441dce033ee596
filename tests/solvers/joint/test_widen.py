"""What is left on a plan's GPUs goes to replicas that start, and costs nothing."""

import math
from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.joint.policy import make_plan
from solvers.joint.widen import narrowed, widened
from solvers.laws.cost import served_weight
from solvers.types.outcome import Budget, LeftSms
from solvers.types.plan import GpuPlan, Plan, used_gpus
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.examples import seeds
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    gpu_plan,
    random_problem,
    replica_on,
    with_rates,
)

QUARTERS = tuple(a_row(width, 500.0 / width) for width in (25.0, 50.0, 75.0, 100.0))
"""A quarter of a GPU serves 25 rps, and so on."""


def wide(problem: Problem, *gpus: GpuPlan) -> tuple[GpuPlan, ...]:
    plan = widened(problem, Plan(policy="joint", gpus=gpus))
    assert not violations(problem, plan)
    return plan.gpus


def percents(*gpus: GpuPlan) -> list[dict[str, float]]:
    return [{one.service: one.sm_percent for one in gpu.replicas} for gpu in gpus]


def test_a_first_replica_gets_the_whole_gpu() -> None:
    problem = a_problem(a_service("a", rate_rps=20.0), rows=QUARTERS)
    (gpu,) = wide(problem, gpu_plan(replica_on("a", 25.0, 20.0)))
    assert percents(gpu) == [{"a": 100.0}]
    assert gpu.replicas[0].arrival_rate_rps == pytest.approx(20.0)


def test_the_one_that_carries_least_for_what_it_is_asked_comes_first() -> None:
    # 25 / 10 and 25 / 20: b grows to half, where both carry 2.5 times what they are asked, and a wins the tie.
    problem = a_problem(
        a_service("a", rate_rps=10.0), a_service("b", rate_rps=20.0), rows=QUARTERS
    )
    narrow = gpu_plan(replica_on("a", 25.0, 10.0), replica_on("b", 25.0, 20.0))
    assert percents(*wide(problem, narrow)) == [{"a": 50.0, "b": 50.0}]


def test_what_runs_is_not_started_anew() -> None:
    running = gpu_plan(replica_on("a", 25.0, 10.0))
    problem = a_problem(
        a_service("a", rate_rps=20.0),
        a_service("b", rate_rps=1.0),
        rows=QUARTERS,
        current=Plan(policy="joint", gpus=(running,)),
    )
    both = gpu_plan(replica_on("a", 25.0, 20.0), replica_on("b", 25.0, 1.0))
    assert percents(*wide(problem, both)) == [{"a": 25.0, "b": 75.0}]
    alone = Plan(policy="joint", gpus=(gpu_plan(replica_on("a", 25.0, 20.0)),))
    assert widened(problem, alone) is alone


def test_batches_go_up_in_place_within_the_memory_that_is_held() -> None:
    # Four at a time take 10 ms, so that 0.8 · 400 = 320 rps are carried in place of 50.
    large = a_row(50.0, 10.0, batch=4, memory_mib=5000.0)
    for held, batch in ((4, 4), (1, 1)):
        problem = a_problem(
            a_service("a", rate_rps=10.0),
            a_service("b", rate_rps=10.0),
            rows=(a_row(50.0, 10.0), large),
            current=Plan(
                policy="joint",
                gpus=(gpu_plan(replica_on("a", 50.0, 10.0, batch=held)),),
            ),
        )
        both = gpu_plan(replica_on("a", 50.0, 10.0), replica_on("b", 50.0, 10.0))
        (gpu,) = wide(problem, both)
        # What starts has the larger one in any case.
        assert [each.batch for each in gpu.replicas] == [batch, 4]


def test_a_gpu_that_stays_as_it_is_is_left_alone() -> None:
    running = gpu_plan(replica_on("a", 25.0, 10.0))
    problem = a_problem(
        a_service("a", rate_rps=10.0),
        rows=QUARTERS,
        current=Plan(policy="joint", gpus=(running,)),
    )
    plan = Plan(policy="joint", gpus=(running,))
    assert widened(problem, plan) is plan


def test_a_neighbour_keeps_what_its_service_needs() -> None:
    # b presses on a, the more the wider it is; a carries 50 rps alone, and less with b there.
    rows = tuple(row._replace(pressure=row.sm_percent / 100.0) for row in QUARTERS)

    def grown(a_rps: float) -> list[dict[str, float]]:
        running = gpu_plan(replica_on("a", 50.0, a_rps))
        problem = a_problem(
            a_service("a", rate_rps=a_rps),
            a_service("b", rate_rps=1.0),
            rows=rows,
            sensitivity=1.0,
            current=Plan(policy="joint", gpus=(running,)),
        )
        both = gpu_plan(replica_on("a", 50.0, a_rps), replica_on("b", 25.0, 1.0))
        return percents(*wide(problem, both))

    # With a quarter of pressure 50 / 1.25 = 40 rps, with a half 33.3.
    assert grown(33.0) == [{"a": 50.0, "b": 50.0}]
    assert grown(34.0) == [{"a": 50.0, "b": 25.0}]


def sizes(plan: Plan) -> list[tuple[str, float, int]]:
    """Service, SM percent and batch of each replica, in order."""
    return sorted(
        (each.service, each.sm_percent, each.batch)
        for gpu in plan.gpus
        for each in gpu.replicas
        for _ in range(gpu.count)
    )


def test_gpus_take_turns() -> None:
    problem = a_problem(a_service("a", rate_rps=60.0), rows=QUARTERS)
    narrow = gpu_plan(replica_on("a", 50.0, 30.0))
    (gpus,) = wide(problem, replace(narrow, count=2))
    assert (gpus.count, percents(gpus)) == (2, [{"a": 100.0}])


def test_what_a_loss_may_take_of_a_service_limits_each_replica() -> None:
    problem = a_problem(
        a_service("a", rate_rps=80.0, max_replica_rps=40.0), rows=QUARTERS
    )
    narrow = gpu_plan(replica_on("a", 50.0, 40.0))
    gpus = wide(problem, replace(narrow, count=2))
    assert all(each.arrival_rate_rps <= 40.0 for gpu in gpus for each in gpu.replicas)


@pytest.mark.parametrize("seed", seeds(12))
def test_no_gpu_more_nothing_less_served_and_the_checker_agrees(seed: int) -> None:
    first = random_problem(seed)
    plan, _, _ = make_plan(
        first, Observed(at_s=0.0), None, Budget(seconds=math.inf, work=0.1)
    )
    second = replace(with_rates(first, 0.7), current=plan)
    for problem in (first, second):
        narrow, _, _ = make_plan(
            problem, Observed(at_s=0.0), None, Budget(seconds=math.inf, work=0.1)
        )
        result = widened(problem, narrow)
        assert not violations(problem, result)
        assert used_gpus(result) == used_gpus(narrow)
        assert served_weight(problem, result) >= served_weight(problem, narrow) - 1e-6
        assert widened(problem, result) == result or problem is second
        # No replica ever shrinks, so that neighbours cannot answer each other's steps without an end.
        pairs = zip(sizes(narrow), sizes(result), strict=True)
        assert all(before <= after for before, after in pairs)


def test_what_is_left_is_given_away_and_given_back_when_tasks_wait() -> None:
    problem = a_problem(a_service("a", rate_rps=20.0), rows=QUARTERS)
    running = None

    def planned(left_sms: LeftSms) -> Plan:
        now = replace(problem, current=running)
        budget = Budget(seconds=30.0, left_sms=left_sms)
        return make_plan(now, Observed(at_s=0.0), None, budget)[0]

    assert percents(*planned("free").gpus) == [{"a": 25.0}]
    running = planned("services")
    assert percents(*running.gpus) == [{"a": 100.0}]
    # What runs then stays, though a fourth of it would do, unless tasks want the rest.
    assert percents(*planned("free").gpus) == [{"a": 100.0}]
    assert percents(*planned("tasks").gpus) == [{"a": 25.0}]


def test_only_who_would_do_with_half_gives_back() -> None:
    running = gpu_plan(replica_on("a", 50.0, 26.0), replica_on("b", 50.0, 20.0))
    problem = a_problem(
        a_service("a", rate_rps=26.0),
        a_service("b", rate_rps=20.0),
        rows=QUARTERS,
        current=Plan(policy="joint", gpus=(running,)),
    )
    current = narrowed(problem).current
    assert current is not None
    assert percents(*current.gpus) == [{"a": 50.0}]
