"""Rates by true capacities, and what is left over."""

import pytest

from solvers.check import violations
from solvers.greedy.routing import (
    ArrangedReplica,
    Carrier,
    route,
)
from solvers.types.plan import Unserved
from solvers.types.problem import Problem
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
)

HALF, WHOLE = a_row(50.0, 10.0, pressure=0.5), a_row(100.0, 5.0, pressure=1.0)


def carrier(*seats: tuple[str, object], gpu_type: str = "gpu") -> Carrier:
    return Carrier(
        gpu_type=gpu_type,
        seats=tuple(ArrangedReplica(service=name, row=row) for name, row in seats),
    )  # type: ignore[arg-type]


def problem_of(chat_rps: float, photo_rps: float = 10.0) -> Problem:
    services = (
        a_service("chat", rate_rps=chat_rps),
        a_service("photo", rate_rps=photo_rps),
    )
    return a_problem(*services, rows=(HALF, WHOLE), sensitivity=1.0)


def test_a_rate_is_shared_in_proportion_to_true_capacities() -> None:
    # chat alone on a GPU carries 100 rps; next to photo its half takes 15 ms: 33.3 rps. 80 of 133.3 rps is 0.6 of each.
    plan = route(
        problem_of(80.0),
        "test",
        [carrier(("chat", WHOLE)), carrier(("chat", HALF), ("photo", HALF))],
        {},
    )
    rates = {
        (each.service, each.sm_percent): each.arrival_rate_rps
        for gpu in plan.gpus
        for each in gpu.replicas
    }
    assert rates == pytest.approx(
        {("chat", 100.0): 60.0, ("chat", 50.0): 20.0, ("photo", 50.0): 10.0}
    )
    assert plan.unserved == ()
    assert violations(problem_of(80.0), plan) == ()


def test_what_exceeds_the_capacities_is_unserved_for_the_reason_given() -> None:
    carriers = [carrier(("chat", WHOLE))]
    plan = route(problem_of(130.0), "test", carriers, {"photo": "sm"})
    assert plan.unserved == (
        Unserved(service="chat", rate_rps=pytest.approx(30.0), reason="stock"),
        Unserved(service="photo", rate_rps=10.0, reason="sm"),
    )
    assert violations(problem_of(130.0), plan) == ()


def test_a_rate_that_is_exactly_the_capacity_is_served() -> None:
    plan = route(problem_of(100.0, 0.0), "test", [carrier(("chat", WHOLE))], {})
    assert plan.unserved == ()
    assert violations(problem_of(100.0, 0.0), plan) == ()


def test_replicas_that_are_missing_are_counted_and_no_rate_is_said_to_be_lost() -> None:
    problem = a_problem(a_service(rate_rps=50.0, min_replicas=3))
    plan = route(
        problem, "test", [carrier(("chat", a_row(100.0, 5.0)))], {"chat": "memory"}
    )
    assert plan.unserved == (
        Unserved(service="chat", rate_rps=0.0, reason="memory", replicas_missing=2),
    )
    assert violations(problem, plan) == ()


def test_a_replica_that_misses_its_slo_gets_no_rate() -> None:
    problem = a_problem(a_service(rate_rps=5.0, slo_ms=12.0))
    plan = route(
        problem, "test", [carrier(("chat", a_row(50.0, 10.0)))], {"chat": "slo"}
    )
    assert plan.gpus[0].replicas[0].arrival_rate_rps == 0.0
    assert [(entry.rate_rps, entry.reason) for entry in plan.unserved] == [(5.0, "slo")]


def test_gpus_that_carry_the_same_become_one_entry_whatever_the_order() -> None:
    carriers = [
        carrier(("photo", HALF), ("chat", HALF)),
        carrier(("chat", WHOLE)),
        carrier(("chat", HALF), ("photo", HALF)),
    ]
    plan = route(problem_of(80.0), "test", carriers, {})
    assert [
        (gpu.count, [each.service for each in gpu.replicas]) for gpu in plan.gpus
    ] == [
        (2, ["chat", "photo"]),
        (1, ["chat"]),
    ]
    assert route(problem_of(80.0), "test", carriers[::-1], {}) == plan
