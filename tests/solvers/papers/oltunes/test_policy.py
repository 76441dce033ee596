"""OLTunes for services: the tuning score chooses, affinity decides who shares, promises are kept."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.papers.oltunes.affinity import pressure_affinity
from solvers.papers.oltunes.parameters import OltunesParameters
from solvers.papers.oltunes.policy import make_plan
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import Observed
from tests.examples import seeds
from tests.solvers.instances import (
    HALVES,
    LAW,
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    random_problem,
    replica_on,
)

SPARE = OltunesParameters().spare


def plan_of(problem: Problem) -> Plan:
    plan, report, memory = make_plan(problem, Observed(at_s=0.0), None, Budget())
    assert memory is None
    assert report.method == "oltunes"
    assert violations(problem, plan) == ()
    assert report_violations(problem, plan, report) == ()
    return plan


def neighbour_sets(plan: Plan) -> list[set[str]]:
    """Services by GPU."""
    return [
        {replica.service for replica in gpu.replicas}
        for gpu in plan.gpus
        for _ in range(gpu.count)
    ]


def two_networks(
    sensitivity: float, *services: ServiceDemand, count: int | None = None
) -> Problem:
    """Networks `a` with sensitivity 1 and `b` with another, half a GPU each."""
    gpu_type = a_type(count=count)
    rows = (a_row(50.0, 10.0, pressure=0.0),)
    return Problem(
        max_replicas_per_gpu=4,
        capacity_law=LAW,
        gpu_types=(gpu_type,),
        services=services,
        points=tuple(
            OperatingPoints(
                network=name, gpu_type=gpu_type.name, sensitivity=value, rows=rows
            )
            for name, value in (("a", 1.0), ("b", sensitivity))
        ),
    )


def test_a_service_gets_the_row_with_the_best_score() -> None:
    # 50 rps: half a GPU carries 50 in 10 ms, the whole one 100 in 5 ms. n(1 / ŷ): 0 and 1, n(rate of a whole GPU):
    # 100 and 100, so 0; slack of the 100 ms: 0.9 and 0.95. The whole one wins in an idle fleet.
    (gpu,) = plan_of(a_problem(a_service(rate_rps=50.0))).gpus
    assert [replica.sm_percent for replica in gpu.replicas] == [100.0]


def test_equal_networks_share_only_where_the_fleet_is_full() -> None:
    # Equal sensitivities have affinity (50 + 50) / 2 = 50: below 70, and enough once no GPU is idle.
    one, other = (
        a_service("one", network="a", rate_rps=20.0),
        a_service("other", network="a", rate_rps=20.0),
    )
    assert neighbour_sets(plan_of(two_networks(1.0, one, other))) == [
        {"one"},
        {"other"},
    ]
    assert neighbour_sets(plan_of(two_networks(1.0, one, other, count=1))) == [
        {"one", "other"}
    ]


def test_unlike_networks_share_a_gpu() -> None:
    # The median of 0.2 and 1 is 1: ratios 1.2 and 1.2 / 0.2 = 6, 4.8 apart: 99.2, with 50 for two low ones 74.6.
    one, other = (
        a_service("one", network="a", rate_rps=20.0),
        a_service("other", network="b", rate_rps=20.0),
    )
    assert neighbour_sets(plan_of(two_networks(0.2, one, other))) == [{"one", "other"}]


def test_nobody_loses_what_he_carries_to_a_newcomer() -> None:
    # Next to pressure 1 `a` takes 20 ms: 25 of its 50 rps. At 40 rps it does not share, at 20 it does.
    problem = two_networks(0.2)
    loud = tuple(
        replace(entry, rows=(a_row(50.0, 10.0, pressure=1.0),))
        if entry.network == "b"
        else entry
        for entry in problem.points
    )
    other = a_service("other", network="b", rate_rps=20.0)
    for rate_rps, gpus in ((40.0, 2), (20.0, 1)):
        services = (a_service("one", network="a", rate_rps=rate_rps), other)
        assert (
            len(
                neighbour_sets(
                    plan_of(replace(problem, points=loud, services=services))
                )
            )
            == gpus
        )


def running(*counts: tuple[str, int]) -> Plan:
    return Plan(
        policy="oltunes",
        gpus=tuple(
            gpu_plan(replica_on(name, 100.0, 50.0), count=count)
            for name, count in counts
        ),
    )


@pytest.mark.parametrize(
    ("rate_rps", "replicas"),
    [(100.0 / SPARE - 1.0, 1), (100.0 / SPARE + 1.0, 2), (150.0, 2)],
)
def test_a_replica_goes_when_the_others_carry_more_than_enough(
    rate_rps: float, replicas: int
) -> None:
    problem = a_problem(a_service(rate_rps=rate_rps), current=running(("chat", 2)))
    assert sum(gpu.count for gpu in plan_of(problem).gpus) == replicas


def test_limits_of_replicas_hold() -> None:
    few = plan_of(a_problem(a_service(rate_rps=1.0, min_replicas=3)))
    assert len(neighbour_sets(few)) == 3
    service = a_service(rate_rps=500.0, max_replicas=2)
    most = plan_of(a_problem(service, current=running(("chat", 4))))
    assert len(neighbour_sets(most)) == 2
    assert [entry.reason for entry in most.unserved] == ["replicas"]


def test_what_no_gpu_can_serve_stays_unserved() -> None:
    services = (a_service(rate_rps=5.0, slo_ms=1.0), a_service("other", rate_rps=5.0))
    (entry,) = plan_of(a_problem(*services)).unserved
    assert (entry.service, entry.reason) == ("chat", "slo")
    assert plan_of(a_problem(types=(a_type(count=0),), rows=HALVES)).gpus == ()


@pytest.mark.parametrize("seed", seeds(8))
def test_random_problems_keep_every_rule_and_a_plan_stays_while_nothing_changes(
    seed: int,
) -> None:
    problem = random_problem(seed)
    plan = plan_of(problem)
    again = plan_of(replace(problem, current=plan))
    assert shapes(again) == shapes(plan)


def shapes(plan: Plan) -> list[tuple[str, list[tuple[str, float, int]]]]:
    """GPUs with their replicas, without rates."""
    return sorted(
        (
            gpu.gpu_type,
            sorted(
                (each.service, each.sm_percent, each.batch) for each in gpu.replicas
            ),
        )
        for gpu in plan.gpus
        for _ in range(gpu.count)
    )


def test_rows_without_capacity_are_no_choice() -> None:
    rows: tuple[OperatingPoint, ...] = (a_row(25.0, 60.0), a_row(100.0, 5.0))
    (gpu,) = plan_of(a_problem(a_service(rate_rps=5.0), rows=rows)).gpus
    assert gpu.replicas[0].sm_percent == 100.0


def test_by_pressure_services_share_that_classes_keep_apart() -> None:
    problem = two_networks(
        1.0,
        a_service("one", network="a", rate_rps=20.0),
        a_service("other", network="a", rate_rps=20.0),
        count=None,
    )
    # Equal networks: a workload affinity of 50 and a variant affinity of 50, as printed.
    assert len(neighbour_sets(plan_of(problem))) == 2
    parameters = OltunesParameters(affinity="pressure")
    plan, _, _ = make_plan(
        problem, Observed(at_s=0.0), None, Budget(parameters=parameters)
    )
    assert violations(problem, plan) == ()
    assert neighbour_sets(plan) == [{"one", "other"}]


def test_pressures_suit_by_their_product() -> None:
    assert pressure_affinity(0.9, []) == 100.0
    assert pressure_affinity(0.0, [1.0, 1.0]) == 100.0
    assert pressure_affinity(0.5, [0.5, 1.0]) == pytest.approx(62.5)
    # Beyond 1 a GPU has no more to take.
    assert pressure_affinity(2.0, [1.5]) == 0.0
