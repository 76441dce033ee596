"""One row per service and GPU type: cheapest for the rate next to the worst neighbours, and loyal to what runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from solvers.greedy.configure import Configuration, configure
from solvers.types.plan import Plan
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from tests.solvers.instances import (
    HALVES,
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    replica_on,
)

PRESSING = (a_row(50.0, 10.0, pressure=0.5), a_row(100.0, 5.0, pressure=1.0))


def among_others(service: ServiceDemand, **changes: Any) -> Problem:
    """The service with three small ones, so that four may share a GPU."""
    return a_problem(
        service, *(a_service(name, rate_rps=1.0) for name in "xyz"), **changes
    )


def configuration_of(
    problem: Problem, service: str = "chat", *, keep_running: bool = False
) -> Configuration | None:
    found = [
        one
        for one in configure(problem, keep_running=keep_running)
        if one.service == service
    ]
    return found[0] if found else None


def chosen_row(
    problem: Problem, service: str = "chat", *, keep_running: bool = False
) -> OperatingPoint | None:
    one = configuration_of(problem, service, keep_running=keep_running)
    return one.row if one else None


def running(sm_percent: float, *, batch: int = 1, clock_mhz: float = 1000.0) -> Plan:
    replica = replica_on("chat", sm_percent, batch=batch)
    return Plan(
        policy="any",
        gpus=(gpu_plan(replica, clock_mhz=clock_mhz),),
    )


def test_the_capacity_holds_next_to_the_worst_neighbour() -> None:
    one = configuration_of(
        a_problem(
            a_service(rate_rps=20.0),
            a_service("photo", rate_rps=1.0),
            rows=PRESSING,
            sensitivity=1.0,
        )
    )
    # Half a GPU leaves room for photo at 50 % with pressure 0.5: 10 ms · 1.5 = 15 ms, 1000 / 15 · 0.5 = 33.3 rps.
    assert one is not None
    assert (one.row, one.capacity_rps) == (PRESSING[0], pytest.approx(100.0 / 3.0))
    # It takes 50 % of the SMs, a quarter of memory, watts and places: half a GPU of 1 USD/h.
    assert one.cost_usd_per_hour == 0.5


def test_a_whole_gpu_has_no_neighbours_and_wins_when_they_would_cost_more() -> None:
    # 100 rps: three halves at 33.3 rps cost 1.5 USD/h, one whole GPU with 100 rps costs 1.
    problem = a_problem(
        a_service(rate_rps=100.0),
        a_service("photo", rate_rps=1.0),
        rows=PRESSING,
        sensitivity=1.0,
    )
    assert chosen_row(problem) == PRESSING[1]


def test_a_service_alone_has_no_neighbours_and_pays_for_whole_gpus() -> None:
    # 350 rps: seven halves of 50 rps would stand on seven GPUs, since no two share one; four whole ones do it.
    problem = a_problem(
        a_service(rate_rps=350.0), a_service("photo"), rows=PRESSING, sensitivity=1.0
    )
    one = configuration_of(replace(problem, services=problem.services[:1]))
    assert one is not None
    assert (one.row, one.capacity_rps, one.cost_usd_per_hour) == (
        PRESSING[1],
        100.0,
        1.0,
    )
    beside_an_idle_one = configuration_of(problem)
    assert beside_an_idle_one is not None and beside_an_idle_one.row == PRESSING[1]


def test_the_row_is_large_enough_for_the_most_replicas_that_are_allowed() -> None:
    # Five quarters serve 250 rps; of two replicas each must be as large as can be.
    small = (a_row(25.0, 10.0), a_row(100.0, 5.0))
    assert chosen_row(among_others(a_service(rate_rps=250.0), rows=small)) == small[0]
    assert (
        chosen_row(among_others(a_service(rate_rps=250.0, max_replicas=2), rows=small))
        == small[1]
    )


@pytest.mark.parametrize(
    ("service", "rows"),
    [
        (a_service(rate_rps=1.0, slo_ms=9.9), HALVES),  # Twice 5 ms is 10 ms.
        (a_service(rate_rps=1.0, allowed_gpu_types=("other",)), HALVES),
        (a_service(rate_rps=1.0, network="unknown"), HALVES),
        (
            a_service(rate_rps=1.0),
            [row._replace(memory_mib=16_001.0) for row in HALVES],
        ),
        (a_service(rate_rps=1.0), [row._replace(power_w=200.1) for row in HALVES]),
        (a_service(rate_rps=1.0), [row._replace(clock_mhz=900.0) for row in HALVES]),
    ],
)
def test_a_service_has_no_configuration_where_it_cannot_run(
    service: ServiceDemand, rows: Sequence[OperatingPoint]
) -> None:
    assert configure(a_problem(service, rows=rows), keep_running=False) == ()


def test_a_clock_that_few_services_were_profiled_at_is_not_planned_with() -> None:
    slow, fast = (
        [row._replace(clock_mhz=clock) for row in HALVES] for clock in (800.0, 1000.0)
    )
    types = (a_type(clocks_mhz=(800.0, 1000.0, 1200.0)),)
    row = chosen_row(
        a_problem(a_service(rate_rps=1.0), types=types, rows=[*slow, *fast])
    )
    assert row is not None and row.clock_mhz == 1000.0  # nothing was profiled at 1200
    problem = a_problem(
        a_service(rate_rps=1.0),
        a_service("photo", network="other"),
        types=types,
        rows=slow,
    )
    both = OperatingPoints(
        network="other", gpu_type="gpu", sensitivity=0.0, rows=(*slow, *fast)
    )
    chosen = configure(
        replace(problem, points=(*problem.points, both)), keep_running=False
    )
    assert [(one.service, one.row.clock_mhz) for one in chosen] == [
        ("chat", 800.0),
        ("photo", 800.0),
    ]


@pytest.mark.parametrize(
    ("changes", "cost_usd_per_hour"),
    [
        ({}, 0.5),
        ({"memory_mib": 12_000.0}, 0.75),
        ({"power_w": 180.0}, 0.9),
    ],
)
def test_a_replica_costs_the_largest_part_that_it_takes_of_a_gpu(
    changes: dict[str, float], cost_usd_per_hour: float
) -> None:
    one = configuration_of(
        among_others(a_service(rate_rps=1.0), rows=(a_row(50.0, 10.0, **changes),))
    )
    assert one is not None and one.cost_usd_per_hour == pytest.approx(cost_usd_per_hour)


@pytest.mark.parametrize(
    ("rate_rps", "sm_percent", "kept"),
    [
        (100.0, 50.0, True),  # Two halves cost what the whole costs.
        (100.0, 100.0, True),
        (20.0, 100.0, False),  # 1 USD/h where 0.5 would do.
    ],
)
def test_a_running_row_stays_as_long_as_it_costs_about_as_little(
    rate_rps: float, sm_percent: float, kept: bool
) -> None:
    problem = replace(
        among_others(a_service(rate_rps=rate_rps)), current=running(sm_percent)
    )
    row = chosen_row(problem, keep_running=True)
    assert row is not None
    assert (row.sm_percent == sm_percent) is kept
