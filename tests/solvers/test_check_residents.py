"""What tasks may not break next to a GPU's replicas."""

from dataclasses import replace
from typing import Any

import pytest

from solvers.check_residents import task_violations
from tests.solvers import factories as filling


# Tasks: a replica of `web` may take 1000 / 60 = 16.7 ms and takes 10 · (1 + p / 100) with p percent of training.
@pytest.mark.parametrize(
    ("change", "rules"),
    [
        ({}, set()),
        ({"sm_percent": 100.0}, {"sm", "capacity"}),
        ({"sm_percent": 60.0}, {"sm", "point"}),
        ({"network": "unknown"}, {"point"}),
        ({"is_resident": False, "sm_percent": 100.0}, set()),
    ],
    ids=[
        "as it should be",
        "too many SMs",
        "no such row",
        "no such network",
        "swapped out",
    ],
)
def test_a_task_is_judged_by_the_same_rules(
    change: dict[str, Any], rules: set[str]
) -> None:
    gpu = filling.bound_gpu(
        filling.a_gpu(0),
        filling.bound_task(**{"sm_percent": 50.0, **change}),
        rate_rps=60.0,
    )
    found = task_violations(filling.PROBLEM, [gpu], filling.POINTS)
    assert {violation.rule for violation in found} == rules


def test_a_task_must_not_take_a_promised_capacity() -> None:
    gpu = filling.bound_gpu(
        filling.a_gpu(0), filling.bound_task(sm_percent=50.0), rate_rps=67.0
    )
    (violation,) = task_violations(filling.PROBLEM, [gpu], filling.POINTS)
    assert (violation.rule, violation.severity) == (
        "capacity",
        "promise",
    )  # 1000 / 15 = 66.7 rps


def test_a_network_that_services_run_too_is_judged_as_they_were_planned() -> None:
    # Of `web` the problem knows 10 ms; what else is said of it, 100 ms, is older.
    gpu = filling.bound_gpu(
        filling.a_gpu(0), filling.bound_task(sm_percent=50.0), rate_rps=60.0
    )
    older = replace(
        filling.web_points("cheap"),
        rows=(filling.web_points("cheap").rows[0]._replace(run_ms=100.0),),
    )
    assert task_violations(filling.PROBLEM, [gpu], (*filling.POINTS, older)) == ()


def test_tasks_need_memory_and_watts() -> None:
    tasks = [filling.bound_task(name, sm_percent=10.0) for name in "abc"]
    gpu = filling.bound_gpu(filling.a_gpu(0), *tasks, rate_rps=1.0)
    found = task_violations(filling.PROBLEM, [gpu], filling.POINTS)
    assert [violation.rule for violation in found] == ["memory"]  # 2 + 3 · 4 GiB of 10
    hot = tuple(
        replace(entry, rows=tuple(row._replace(power_w=200.0) for row in entry.rows))
        for entry in filling.POINTS
    )
    one = replace(gpu, tasks=(tasks[0],))
    assert [
        violation.rule for violation in task_violations(filling.PROBLEM, [one], hot)
    ] == ["power"]  # 350 W of 300


# At a rate of 60 a replica may take 16.7 ms, and takes 15 with 50 % of training: its SLO of 1000 ms must leave 15.
@pytest.mark.parametrize(("stall_ms", "is_kept"), [(984.0, True), (986.0, False)])
def test_what_training_stalls_is_gone_from_the_slo(
    stall_ms: float, *, is_kept: bool
) -> None:
    gpu = filling.bound_gpu(
        filling.a_gpu(0), filling.bound_task(sm_percent=50.0), rate_rps=60.0
    )
    points = [
        replace(
            entry, rows=tuple(row._replace(stall_ms=stall_ms) for row in entry.rows)
        )
        for entry in filling.POINTS
    ]
    found = task_violations(filling.PROBLEM, [gpu], points)
    assert [each.rule for each in found] == ([] if is_kept else ["capacity"])


def test_a_task_slows_a_service_by_its_pressure_and_the_services_sensitivity() -> None:
    # With 50 % 15 ms, or 66.7 rps; a sensitivity of 0.1 makes them 10.5 ms, or 95 rps.
    hardy = replace(
        filling.PROBLEM,
        points=tuple(
            replace(entry, sensitivity=0.1) for entry in filling.PROBLEM.points
        ),
    )
    for kind in ("training", "offline"):
        beside = filling.bound_gpu(
            filling.a_gpu(0),
            filling.bound_task(sm_percent=50.0, kind=kind),
            rate_rps=70.0,
        )
        (violation,) = task_violations(filling.PROBLEM, [beside], filling.POINTS)
        assert violation.rule == "capacity"
        assert task_violations(hardy, [beside], filling.POINTS) == ()
