"""What holds replicas back, on GPUs small enough to see it."""

from dataclasses import replace

import pytest

from solvers.explain.neighbours import NeighbourReader
from solvers.types.plan import Plan, ReplicaPlan
from solvers.types.problem import OperatingPoint, Problem
from tests.solvers.instances import (
    HALVES,
    LAW,
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    replica_on,
)
from tests.solvers.small_plans import capacity_rps, example


def a_replica(
    service: str = "chat", sm_percent: float = 50.0, rate_rps: float = 40.0
) -> ReplicaPlan:
    return replica_on(service, sm_percent, rate_rps)


def a_plan(*replicas: ReplicaPlan, count: int = 1) -> Plan:
    return Plan(
        policy="test",
        gpus=(gpu_plan(*replicas, count=count),),
    )


def rules(problem: Problem, plan: Plan, service: str = "chat") -> list[str]:
    return [
        binding.rule for binding in NeighbourReader(problem).bindings(plan, service)
    ]


def test_capacities_and_times_are_the_contract_s() -> None:
    problem, plan, _ = example()
    for gpu in plan.gpus:
        seats = NeighbourReader(problem).seats(gpu)
        assert seats is not None
        for index, seat in enumerate(seats):
            assert seat.capacity_rps == pytest.approx(capacity_rps(problem, gpu, index))


def test_two_halves_hold_each_other_back_by_their_shares() -> None:
    problem = a_problem(a_service(rate_rps=40.0), a_service("search", rate_rps=40.0))
    assert rules(problem, a_plan(a_replica(), a_replica("search"))) == ["sm"]


@pytest.mark.parametrize(
    ("larger", "rule"),
    [
        (HALVES[1]._replace(memory_mib=20_000.0), "memory"),
        (HALVES[1]._replace(power_w=170.0), "power"),
    ],
    ids=["memory", "power"],
)
def test_the_resource_that_a_larger_share_lacks_is_named(
    larger: OperatingPoint, rule: str
) -> None:
    problem = a_problem(
        a_service(rate_rps=40.0),
        rows=(HALVES[0], larger),
        types=(a_type(power_cap_w=200.0),),
    )
    assert rules(problem, a_plan(a_replica())) == [rule]


def test_an_slo_that_costs_utilisation_is_named() -> None:
    law = replace(LAW, max_utilisation=(((0.1, 0.5), (0.8, 0.8)),))
    # 10 ms of 30: a ratio of 3, where the law allows less than at 9.
    problem = a_problem(
        a_service(rate_rps=4.0, slo_ms=30.0),
        capacity_law=law,
        rows=(a_row(100.0, 10.0),),
    )
    assert rules(problem, a_plan(a_replica(sm_percent=100.0, rate_rps=4.0))) == ["slo"]


def test_limits_of_the_service_and_the_stock_are_named() -> None:
    service = a_service(rate_rps=80.0, min_replicas=2, max_replicas=2)
    problem = a_problem(service, types=(a_type(count=2),))
    found = NeighbourReader(problem).bindings(a_plan(a_replica(), count=2), "chat")
    assert [(binding.rule, binding.detail) for binding in found] == [
        ("max_replicas", "no more than 2 may run"),
        ("min_replicas", "no fewer than 2 may run"),
        ("stock", "all 2 gpu are in use"),
    ]


def test_a_replica_without_a_row_has_no_seat() -> None:
    reader = NeighbourReader(a_problem(a_service(rate_rps=40.0)))
    (odd,) = a_plan(a_replica(sm_percent=33.0)).gpus
    (foreign,) = a_plan(a_replica("nobody")).gpus
    assert reader.seats(odd) is None and reader.seats(foreign) is None
    assert reader.bindings(Plan(policy="test", gpus=(odd,)), "chat") == ()
