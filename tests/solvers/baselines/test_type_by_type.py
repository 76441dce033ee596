"""Several GPU types, one after the other, and when a running plan stays."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from solvers.baselines.half_slo import max_replicas
from solvers.baselines.type_by_type import TypePolicy, TypeStage, plan_type_by_type
from solvers.greedy.routing import ArrangedReplica, Carrier, true_capacities
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan, Unserved
from solvers.types.problem import Problem
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    replica_on,
)

WHOLE = a_row(100.0, 5.0)  # 100 rps


def whole_gpus(problem: Problem, stage: TypeStage) -> Sequence[Carrier]:
    """One GPU per service, and one more per 100 rps, as far as stock goes."""
    carriers = []
    for service in problem.services:
        if service.name in stage.profiles:
            needed = max(
                service.min_replicas, round(service.arrival_rate_rps / 100.0 + 0.49)
            )
            carrier = Carrier(
                gpu_type=stage.gpu_type.name,
                seats=(ArrangedReplica(service=service.name, row=WHOLE),),
            )
            carriers.extend([carrier] * min(needed, max_replicas(service, stage.room)))
    return carriers[: stage.gpu_type.count]


def plan_of(problem: Problem) -> tuple[Plan, PlanReport]:
    rules = TypePolicy(name="whole", fill=whole_gpus, capacities=true_capacities)
    return plan_type_by_type(problem, rules, Budget())


def gpus_of(plan: Plan) -> dict[str, int]:
    return {gpu.gpu_type: gpu.count for gpu in plan.gpus}


def cheap_and_dear(cheap: int | None = None, dear: int | None = None) -> list[object]:
    return [
        a_type("cheap", price_usd_per_hour=1.0, count=cheap),
        a_type("dear", price_usd_per_hour=3.0, count=dear),
    ]


def two_types(
    *services: object, cheap: int | None = None, dear: int | None = None
) -> Problem:
    return a_problem(*services, types=cheap_and_dear(cheap, dear), rows=(WHOLE,))  # type: ignore[arg-type]


def test_the_type_that_serves_all_for_the_least_money_is_taken() -> None:
    plan, report = plan_of(two_types(a_service(rate_rps=150.0)))
    assert gpus_of(plan) == {"cheap": 2}
    assert (report.status, report.cost_usd_per_hour, report.method) == (
        "greedy",
        2.0,
        "whole",
    )


def test_what_one_type_leaves_goes_to_the_next() -> None:
    plan, _ = plan_of(two_types(a_service(rate_rps=280.0), cheap=1, dear=1))
    assert gpus_of(plan) == {"cheap": 1, "dear": 1}
    assert plan.unserved == (
        Unserved(
            service="chat", rate_rps=pytest.approx(80.0, abs=1e-4), reason="stock"
        ),
    )


def test_a_service_that_may_run_on_one_type_only_runs_there() -> None:
    bound = a_service("bound", rate_rps=50.0, allowed_gpu_types=("dear",))
    plan, _ = plan_of(
        two_types(a_service(rate_rps=50.0, allowed_gpu_types=("cheap",)), bound)
    )
    assert {(gpu.gpu_type, gpu.replicas[0].service) for gpu in plan.gpus} == {
        ("cheap", "chat"),
        ("dear", "bound"),
    }


def test_most_replicas_count_over_all_types() -> None:
    service = a_service(rate_rps=500.0, max_replicas=2, min_replicas=1)
    plan, _ = plan_of(two_types(service, cheap=1, dear=1))
    assert sum(gpus_of(plan).values()) == 2
    assert [(entry.reason, entry.rate_rps) for entry in plan.unserved] == [
        ("replicas", pytest.approx(300.0, abs=1e-3))
    ]


def running(*, policy: str, gpus: int) -> Plan:
    replica = replica_on("chat", 100.0)
    return Plan(
        policy=policy,
        gpus=(gpu_plan(replica, gpu_type="dear", count=gpus),),
    )


@pytest.mark.parametrize(
    ("current", "status", "gpu_type"),
    [
        (
            running(policy="whole", gpus=1),
            "kept",
            "dear",
        ),  # as many USD as on the other type
        (running(policy="other", gpus=1), "greedy", "cheap"),
        (running(policy="whole", gpus=2), "greedy", "cheap"),  # 6 USD, and 3 suffice
    ],
)
def test_a_running_plan_stays_while_its_own_policy_made_it_and_finds_nothing_cheaper(
    current: Plan, status: str, gpu_type: str
) -> None:
    types = (
        a_type("cheap", price_usd_per_hour=3.0),
        a_type("dear", price_usd_per_hour=3.0),
    )
    problem = a_problem(
        a_service(rate_rps=90.0), types=types, rows=(WHOLE,), current=current
    )
    plan, report = plan_of(problem)
    assert (report.status, set(gpus_of(plan))) == (status, {gpu_type})
    assert plan.unserved == ()


def test_a_running_plan_that_no_longer_suffices_goes() -> None:
    problem = two_types(a_service(rate_rps=150.0), cheap=0)
    lacking = replace(problem, current=running(policy="whole", gpus=1))
    assert gpus_of(plan_of(lacking)[0]) == {"dear": 2}
    service = replace(problem.services[0], max_replicas=1)
    limited = replace(
        problem, services=(service,), current=running(policy="whole", gpus=2)
    )
    assert gpus_of(plan_of(limited)[0]) == {"dear": 1}
