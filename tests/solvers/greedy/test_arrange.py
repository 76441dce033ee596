"""Changing what runs by as little as the counts ask for."""

from dataclasses import replace

import pytest

from solvers.greedy.arrange import arrange, running_carriers, top_up
from solvers.greedy.configure import MAX_REPLICAS, configure
from solvers.greedy.routing import ArrangedReplica, Carrier
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem
from tests.solvers.instances import (
    HALVES,
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    replica_on,
)

QUARTER, HALF, WHOLE = a_row(25.0, 20.0), *HALVES
ROWS = (QUARTER, HALF, WHOLE)
A, B, C = (a_service(name, rate_rps=10.0) for name in "abc")


def gpu(**sm_percents: float) -> GpuPlan:
    """A GPU that carries these services."""
    replicas = tuple(
        replica_on(name, sm_percent, 1.0) for name, sm_percent in sm_percents.items()
    )
    return gpu_plan(*replicas)


def running(problem: Problem, *gpus: GpuPlan) -> Problem:
    return replace(problem, current=Plan(policy="any", gpus=gpus))


def seats(carriers: list[Carrier]) -> list[dict[str, float]]:
    return [
        {seat.service: seat.row.sm_percent for seat in carrier.seats}
        for carrier in carriers
    ]


def test_running_gpus_become_carriers_one_by_one() -> None:
    problem = running(
        a_problem(A, B, rows=ROWS), replace(gpu(a=50.0, b=25.0), count=2), gpu(a=100.0)
    )
    assert seats(running_carriers(problem)) == [{"a": 50.0, "b": 25.0}] * 2 + [
        {"a": 100.0}
    ]
    assert running_carriers(a_problem(A)) == []


def test_of_a_running_plan_of_senseless_size_only_so_much_is_looked_at() -> None:
    problem = running(a_problem(A, rows=ROWS), replace(gpu(a=50.0), count=10**12))
    assert len(running_carriers(problem)) == MAX_REPLICAS


def test_a_row_is_found_within_the_contracts_tolerance() -> None:
    problem = running(
        a_problem(A, rows=ROWS), replace(gpu(a=50.0 + 5e-7), clock_mhz=1000.0005)
    )
    assert seats(running_carriers(problem)) == [{"a": 50.0}]


@pytest.mark.parametrize(
    "problem",
    [
        a_problem(B, rows=ROWS),
        a_problem(replace(A, allowed_gpu_types=("other",)), B, rows=ROWS),
        a_problem(replace(A, network="other"), B, rows=ROWS),
        a_problem(A, B, rows=(QUARTER, WHOLE)),
    ],
    ids=["service left", "type not allowed", "no points", "row gone"],
)
def test_a_replica_that_cannot_go_on_is_left_out_and_the_others_stay(
    problem: Problem,
) -> None:
    assert seats(
        running_carriers(running(problem, gpu(a=50.0, b=25.0), gpu(a=50.0)))
    ) == [{"b": 25.0}]


@pytest.mark.parametrize(
    ("gpu_type", "most", "left"),
    [
        (a_type(memory_mib=9_000.0), 4, {"a": 25.0, "c": 25.0}),
        (a_type(power_cap_w=124.0), 4, {"a": 25.0, "c": 25.0}),
        (a_type(), 2, {"a": 25.0, "c": 25.0}),
        (a_type(), 1, {"c": 25.0}),
        (a_type(idle_w=300.0), 4, None),
        (a_type(clocks_mhz=(900.0,)), 4, None),
    ],
    ids=["memory", "power", "places", "one place", "idle above cap", "clock"],
)
def test_a_gpu_that_breaks_a_rule_since_a_limit_fell_loses_its_least_important_replicas(
    gpu_type: object, most: int, left: dict[str, float] | None
) -> None:
    important = (A, replace(B, priority=0.5), replace(C, priority=3.0))
    problem = a_problem(
        *important, types=(gpu_type,), rows=ROWS, max_replicas_per_gpu=most
    )  # type: ignore[arg-type]
    carriers = running_carriers(running(problem, gpu(a=25.0, b=25.0, c=25.0)))
    assert seats(carriers) == ([left] if left else [])


def test_of_fewer_gpus_the_fullest_go_on() -> None:
    problem = a_problem(A, B, rows=ROWS, types=(a_type(count=2),))
    carriers = running_carriers(
        running(problem, gpu(a=25.0), gpu(a=50.0, b=50.0), gpu(a=50.0))
    )
    assert seats(carriers) == [{"a": 50.0, "b": 50.0}, {"a": 50.0}]
    without = replace(problem, gpu_types=(), points=())
    assert running_carriers(running(without, gpu(a=25.0))) == []


def arranged(problem: Problem, *gpus: GpuPlan, **counts: int) -> list[dict[str, float]]:
    wanted = {(name, "gpu"): count for name, count in counts.items()}
    rows = dict.fromkeys(wanted, HALF)
    return seats(
        arrange(problem, running_carriers(running(problem, *gpus)), wanted, rows)
    )


def test_with_the_same_counts_everything_stays_even_on_other_rows() -> None:
    problem = a_problem(A, B, rows=ROWS)
    assert arranged(problem, gpu(a=100.0), gpu(a=25.0, b=25.0), a=2, b=1) == [
        {"a": 100.0},
        {"a": 25.0, "b": 25.0},
    ]


def test_surplus_goes_where_that_empties_a_gpu() -> None:
    problem = a_problem(A, B, rows=ROWS)
    assert arranged(problem, gpu(a=50.0, b=50.0), gpu(a=50.0), a=1, b=1) == [
        {"a": 50.0, "b": 50.0}
    ]
    assert arranged(problem, gpu(a=50.0), gpu(b=25.0), b=1) == [{"b": 25.0}]


def test_a_new_replica_goes_to_the_fullest_gpu_that_holds_it() -> None:
    problem = a_problem(A, B, C, rows=ROWS)
    gpus = (gpu(a=25.0), gpu(a=50.0), gpu(b=25.0, a=50.0))
    assert arranged(problem, *gpus, a=3, b=1, c=1) == [
        {"a": 25.0},
        {"a": 50.0, "c": 50.0},
        {"b": 25.0, "a": 50.0},
    ]


def test_a_new_replica_never_joins_its_own_kind_and_opens_a_gpu_instead() -> None:
    assert arranged(a_problem(A, rows=ROWS), gpu(a=50.0), a=3) == [{"a": 50.0}] * 3


@pytest.mark.parametrize("stock", [1, 2])
def test_what_finds_no_gpu_is_left_out(stock: int) -> None:
    problem = a_problem(A, B, rows=ROWS, types=(a_type(count=stock),))
    assert (
        arranged(problem, gpu(a=100.0), a=1, b=1) == [{"a": 100.0}, {"b": 50.0}][:stock]
    )


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [({}, 1), ({"memory_mib": 7_999.0}, 2), ({"power_cap_w": 149.0}, 2)],
    ids=["fits", "memory", "power"],
)
def test_a_gpu_takes_a_new_replica_only_within_its_limits(
    changes: dict[str, float], gpus: int
) -> None:
    problem = a_problem(A, B, rows=ROWS, types=(a_type(**changes),))
    assert len(arranged(problem, gpu(a=50.0), a=1, b=1)) == gpus


def test_a_gpu_at_another_clock_takes_nobody() -> None:
    rows = (*ROWS, QUARTER._replace(clock_mhz=800.0))
    problem = a_problem(A, B, rows=rows, types=(a_type(clocks_mhz=(800.0, 1000.0)),))
    slow = replace(gpu(a=25.0), clock_mhz=800.0)
    assert arranged(problem, slow, a=1, b=1) == [{"a": 25.0}, {"b": 50.0}]


def topped_up(problem: Problem, *carriers: Carrier) -> list[dict[str, float]]:
    return seats(top_up(problem, carriers, configure(problem, keep_running=False)))


def test_who_falls_short_gets_more_where_there_is_room() -> None:
    # chat needs 120 rps: the half that runs carries 50, each further one 50.
    problem = a_problem(a_service(rate_rps=120.0), rows=(HALF,))
    half = Carrier(gpu_type="gpu", seats=(ArrangedReplica(service="chat", row=HALF),))
    assert topped_up(problem, half) == [{"chat": 50.0}] * 3
    limited = replace(problem, services=(replace(problem.services[0], max_replicas=2),))
    assert topped_up(limited, half) == [{"chat": 50.0}] * 2
    assert topped_up(problem, half, half, half) == [{"chat": 50.0}] * 3


def test_the_more_important_service_is_topped_up_first() -> None:
    services = (
        a_service("a", rate_rps=50.0),
        a_service("b", rate_rps=50.0, priority=2.0),
    )
    problem = a_problem(*services, rows=(WHOLE,), types=(a_type(count=1),))
    assert topped_up(problem) == [{"b": 100.0}]
