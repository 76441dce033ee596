"""Columns to plans and back: rates within capacities, equal GPUs as one entry, and only lawful running GPUs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from solvers.check import violations
from solvers.joint.patterns.columns import Columns, Pattern, single_patterns
from solvers.joint.patterns.decode import decode, patterns_of
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    replica_on,
)
from tests.solvers.small_plans import example

CHAT = a_service("chat", rate_rps=90.0)


def decoded(problem: Problem, counts: dict[int, int]) -> Plan:
    """The plan of these counts of GPUs of the single-replica columns."""
    tables, columns = singles(problem)
    return decode(problem, tables, columns, counts, policy="joint")


def singles(problem: Problem) -> tuple[Tables, Columns]:
    tables = make_tables(problem)
    columns = Columns(tables)
    columns.add(single_patterns(tables, tables.rate))
    return tables, columns


def test_equal_gpus_are_one_entry_and_share_the_rate_evenly() -> None:
    (gpu,) = decoded(a_problem(CHAT), {0: 3}).gpus
    assert gpu.count == 3
    assert [each.arrival_rate_rps for each in gpu.replicas] == [pytest.approx(30.0)]


def test_a_full_replica_stays_within_its_capacity_and_the_rest_is_unserved() -> None:
    # One GPU carries 100 rps.
    problem = a_problem(a_service("chat", rate_rps=130.0))
    plan = decoded(problem, {0: 1})
    assert violations(problem, plan) == ()
    assert plan.gpus[0].replicas[0].arrival_rate_rps < 100.0
    assert [(each.service, each.rate_rps) for each in plan.unserved] == [
        ("chat", pytest.approx(30.0, abs=1e-5))
    ]


def test_a_rate_that_is_just_carried_leaves_nothing_unserved() -> None:
    problem = a_problem(a_service("chat", rate_rps=100.0))
    plan = decoded(problem, {0: 1})
    assert violations(problem, plan) == ()
    assert plan.unserved == ()


def test_missing_replicas_are_counted_even_where_all_requests_are_served() -> None:
    (entry,) = decoded(a_problem(replace(CHAT, min_replicas=3)), {0: 1}).unserved
    assert (entry.rate_rps, entry.replicas_missing) == (0.0, 2)


@pytest.mark.parametrize(("is_cut", "reason"), [(True, "budget"), (False, "stock")])
def test_the_reason_says_whether_more_thought_might_have_served_more(
    is_cut: bool, reason: str
) -> None:
    problem = a_problem(replace(CHAT, arrival_rate_rps=250.0), types=(a_type(count=2),))
    tables, columns = singles(problem)
    (entry,) = decode(
        problem, tables, columns, {0: 2}, policy="joint", is_cut=is_cut
    ).unserved
    assert entry.reason == reason


@pytest.mark.parametrize("count", [None, 2])
def test_while_a_gpu_is_left_that_it_could_use_nothing_but_time_keeps_a_service_short(
    count: int | None,
) -> None:
    (entry,) = decoded(a_problem(CHAT, types=(a_type(count=count),)), {}).unserved
    assert entry.reason == "budget"


def test_a_gpu_that_is_left_of_a_type_that_is_not_allowed_is_of_no_use() -> None:
    service = replace(CHAT, allowed_gpu_types=("full",))
    types = (a_type("full", count=0), a_type("other", count=3))
    (entry,) = decoded(a_problem(service, types=types), {}).unserved
    assert entry.reason == "stock"


@pytest.mark.parametrize(
    ("service", "rows", "reason"),
    [
        (CHAT, (a_row(100.0, 5.0),), "stock"),
        (CHAT, (a_row(75.0, 6.0),), "sm"),
        (CHAT, (a_row(50.0, 10.0, memory_mib=9_000.0),), "memory"),
        (CHAT, (a_row(50.0, 10.0, power_w=110.0),), "power"),
        (replace(CHAT, min_replicas=2), (a_row(50.0, 10.0),), "stock"),
    ],
)
def test_what_keeps_a_service_off_the_last_gpu_is_the_reason(
    service: ServiceDemand, rows: tuple[OperatingPoint, ...], reason: str
) -> None:
    # `vital` stands on the only GPU (16 GB, 200 W) in the first of the rows.
    vital = a_service("vital", rate_rps=1.0)
    problem = a_problem(vital, service, types=(a_type(count=1),), rows=rows)
    tables, columns = singles(problem)
    (number,) = (
        at for at, column in enumerate(columns) if column.service.tolist() == [0]
    )
    (entry,) = decode(problem, tables, columns, {number: 1}, policy="joint").unserved
    assert (entry.service, entry.reason) == ("chat", reason)


def test_as_many_replicas_on_a_gpu_as_may_be_are_the_reason() -> None:
    problem = a_problem(
        a_service("vital", rate_rps=1.0),
        CHAT,
        types=(a_type(count=1),),
        max_replicas_per_gpu=1,
    )
    problem = replace(
        problem,
        points=tuple(replace(one, rows=(a_row(50.0, 10.0),)) for one in problem.points),
    )
    assert [entry.reason for entry in decoded(problem, {0: 1}).unserved] == ["replicas"]


def test_different_reasons_on_different_gpus_are_want_of_gpus() -> None:
    services = (
        a_service("wide", network="wide", rate_rps=1.0),
        a_service("large", network="large", rate_rps=1.0),
        CHAT,
    )
    rows = {
        "wide": a_row(75.0, 5.0),
        "large": a_row(50.0, 5.0, memory_mib=15_000.0),
        "net": a_row(50.0, 10.0),
    }
    points = tuple(
        OperatingPoints(network=name, gpu_type="gpu", sensitivity=0.0, rows=(row,))
        for name, row in rows.items()
    )
    problem = replace(a_problem(*services, types=(a_type(count=2),)), points=points)
    tables, columns = singles(problem)
    counts = {at: 1 for at, column in enumerate(columns) if column.service[0] < 2}
    (entry,) = decode(problem, tables, columns, counts, policy="joint").unserved
    assert (entry.service, entry.reason) == ("chat", "stock")


def test_a_replica_that_need_carry_nothing_is_not_kept_off_by_its_slo() -> None:
    service = a_service("chat", slo_ms=9.9, min_replicas=2)
    problem = a_problem(service, types=(a_type(count=1),), rows=(a_row(100.0, 5.0),))
    tables, columns = singles(problem)
    columns.add([Pattern(0, (0,))])
    (entry,) = decode(
        problem, tables, columns, {columns.number(Pattern(0, (0,))): 1}, policy="joint"
    ).unserved
    assert (entry.replicas_missing, entry.reason) == (1, "stock")
    assert decode(problem, tables, columns, {0: 0}, policy="joint").gpus == ()


def test_a_plan_is_the_same_after_it_was_read_as_patterns() -> None:
    problem, plan, _ = example()
    tables = make_tables(problem)
    columns = Columns(tables)
    patterns = patterns_of(problem, tables, plan)
    assert patterns.total() == 2
    columns.add(patterns)
    counts = {columns.number(pattern): count for pattern, count in patterns.items()}
    again = decode(problem, tables, columns, counts, policy=plan.policy)
    assert Counter(key(gpu) for gpu in again.gpus) == Counter(
        key(gpu) for gpu in plan.gpus
    )
    assert again.unserved == ()


def key(gpu: GpuPlan) -> tuple[object, ...]:
    return (
        gpu.gpu_type,
        gpu.count,
        gpu.clock_mhz,
        frozenset((one.service, one.sm_percent) for one in gpu.replicas),
    )


def a_gpu(
    *replicas: tuple[str, float], clock_mhz: float = 1000.0, gpu_type: str = "gpu"
) -> GpuPlan:
    return gpu_plan(
        *(replica_on(service, sm_percent, 1.0) for service, sm_percent in replicas),
        gpu_type=gpu_type,
        clock_mhz=clock_mhz,
    )


@pytest.mark.parametrize(
    "gpu",
    [
        a_gpu(("gone", 50.0)),
        a_gpu(("chat", 30.0)),
        a_gpu(("chat", 50.0), ("gone", 50.0)),
        a_gpu(("chat", 50.0), ("chat", 50.0)),
        a_gpu(("chat", 100.0), ("photo", 50.0)),
        a_gpu(("chat", 50.0), clock_mhz=900.0),
        a_gpu(("chat", 50.0), gpu_type="other"),
    ],
)
def test_running_gpus_that_break_a_rule_are_no_patterns(gpu: GpuPlan) -> None:
    problem = a_problem(CHAT, a_service("photo", rate_rps=5.0))
    assert not patterns_of(
        problem, make_tables(problem), Plan(policy="before", gpus=(gpu,))
    )


def test_running_gpus_are_counted_by_pattern() -> None:
    problem = a_problem(CHAT, a_service("photo", rate_rps=5.0))
    tables = make_tables(problem)
    gpus = (
        a_gpu(("photo", 50.0), ("chat", 50.0)),
        replace(a_gpu(("chat", 50.0), ("photo", 50.0)), count=2),
    )
    ((pattern, count),) = patterns_of(
        problem, tables, Plan(policy="before", gpus=gpus)
    ).items()
    assert count == 3
    assert isinstance(pattern, Pattern)
    assert np.array_equal(
        tables.modes[pattern.mode].service[list(pattern.items)], [0, 1]
    )
