"""Self-tuning shares: what readings do to them, and where replicas go."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from solvers.baselines.gslice import make_plan
from solvers.check import violations
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import Json, Observed, ServiceObservation
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    assert_unserved,
    gpu_plan,
    replica_on,
    unserved_cases,
)

# 20, 50, 80, 90 and 100 rps: the knee is 40 %.
ROWS = (
    a_row(20.0, 50.0),
    a_row(30.0, 20.0),
    a_row(40.0, 12.5),
    a_row(60.0, 1000 / 90),
    a_row(100.0, 10.0),
)
GPU = a_type(sm_percent_step=10.0)


def problem_of(*services: ServiceDemand, count: int | None = None) -> Problem:
    return a_problem(*services, types=(replace(GPU, count=count),), rows=ROWS)


def reading(
    service: str = "chat", *, latency_ms: float | None, rate: float = 10.0
) -> ServiceObservation:
    return ServiceObservation(
        service=service,
        arrival_rate_rps=rate,
        served_rps=rate,
        latency_ms=latency_ms,
        attainment=None,
        age_s=1.0,
    )


def run(
    problem: Problem, periods: Iterable[tuple[ServiceObservation, ...]]
) -> list[Plan]:
    """The plans of periods of two minutes; each becomes the current one, and the memory passes through JSON."""
    plans: list[Plan] = []
    memory: Json = None
    for period, readings in enumerate(periods):
        problem = replace(problem, current=plans[-1] if plans else problem.current)
        plan, _, memory = make_plan(
            problem, Observed(at_s=120.0 * period, readings=readings), memory, Budget()
        )
        memory = json.loads(json.dumps(memory))
        assert {entry.severity for entry in violations(problem, plan)} <= {"promise"}
        plans.append(plan)
    return plans


def late(periods: int) -> list[tuple[ServiceObservation, ...]]:
    return [(), *[(reading(latency_ms=150.0),)] * periods]


def shares(plan: Plan, service: str = "chat") -> list[float]:
    return sorted(
        replica.sm_percent
        for gpu in plan.gpus
        for replica in gpu.replicas
        if replica.service == service
        for _ in range(gpu.count)
    )


def test_a_service_starts_at_the_knee_with_the_replicas_that_its_rate_needs() -> None:
    (plan,) = run(problem_of(a_service(rate_rps=10.0)), [()])
    assert shares(plan) == [40.0]
    (plan,) = run(problem_of(a_service(rate_rps=170.0)), [()])
    assert shares(plan) == [40.0, 40.0, 40.0]


def test_misses_widen_step_by_step_and_then_add_replicas_up_to_twice_as_many() -> None:
    plans = run(problem_of(a_service(rate_rps=10.0)), late(5))
    assert [shares(plan) for plan in plans] == [
        [40.0],
        [60.0],
        [100.0],
        [100.0, 100.0],
        [100.0, 100.0],
        [100.0, 100.0],
    ]


def test_slack_narrows_as_far_as_the_profile_carries_the_rate() -> None:
    fast = [(), *[(reading(latency_ms=20.0, rate=30.0),)] * 3]
    plans = run(problem_of(a_service(rate_rps=30.0)), fast)
    # 30 % serve 50 rps and 20 % only 20.
    assert [shares(plan) for plan in plans] == [[40.0], [30.0], [30.0], [30.0]]


def test_slack_takes_an_extra_replica_back() -> None:
    quiet = (reading(latency_ms=20.0, rate=5.0),)
    plans = run(problem_of(a_service(rate_rps=10.0)), [*late(3), quiet, quiet])
    assert [len(shares(plan)) for plan in plans] == [1, 1, 1, 2, 1, 1]


def test_a_replica_that_outgrows_its_gpu_moves_and_its_neighbour_stays() -> None:
    problem = problem_of(
        a_service("chat", rate_rps=10.0), a_service("photo", rate_rps=10.0)
    )
    plans = run(problem, late(2))
    neighbour_sets = [
        [{one.service: one.sm_percent for one in gpu.replicas} for gpu in plan.gpus]
        for plan in plans
    ]
    assert neighbour_sets == [
        [{"chat": 40.0, "photo": 40.0}],
        [{"chat": 60.0, "photo": 40.0}],
        [{"chat": 100.0}, {"photo": 40.0}],
    ]


def test_a_replica_that_finds_no_gpu_for_its_new_share_keeps_the_old_one() -> None:
    problem = problem_of(
        a_service("chat", rate_rps=10.0), a_service("photo", rate_rps=10.0), count=1
    )
    plans = run(problem, late(3))
    assert [(shares(plan), shares(plan, "photo")) for plan in plans] == [
        ([40.0], [40.0]),
        ([60.0], [40.0]),
        ([60.0], [40.0]),
        ([60.0], [40.0]),
    ]


def test_after_the_loss_of_a_gpu_what_is_missing_starts_on_another() -> None:
    service = a_service(rate_rps=150.0)
    (before,) = run(problem_of(service, count=3), [()])
    (after,) = run(replace(problem_of(service, count=2), current=before), [()])
    assert shares(after) == [40.0, 40.0]
    (short,) = run(replace(problem_of(service, count=1), current=before), [()])
    assert [(entry.reason, entry.rate_rps) for entry in short.unserved] == [
        ("stock", pytest.approx(70.0))
    ]


def test_what_another_policy_left_is_brought_to_the_services_own_share() -> None:
    whole = replica_on("chat", 100.0, 10.0)
    current = Plan(
        policy="k8s_hpa",
        gpus=(gpu_plan(whole, count=3),),
    )
    (plan,) = run(replace(problem_of(a_service(rate_rps=100.0)), current=current), [()])
    assert shares(plan) == [40.0, 40.0]


@pytest.mark.parametrize("case", unserved_cases(140.0, 140.0, 300.0))
def test_what_cannot_be_served_names_its_rule(case: tuple[Any, ...]) -> None:
    service, count, *expected = case
    plan = run(problem_of(service, count=count), [()])[0]
    assert_unserved(plan, *expected)
