"""The contract's JSON: exact round trips, the schemas, and a refusal of bad input that names the field."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.documents.plan_json import (
    RESERVED,
    plan_document,
    plan_from_json,
    plan_to_json,
)
from solvers.types.documents.problem_json import (
    problem_document,
    problem_from_document,
    problem_from_json,
    problem_to_json,
)
from solvers.types.errors import InvalidInput
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan, Unserved
from solvers.types.problem import Problem
from tests.examples import examples
from tests.shared import SHARED, needs
from tests.solvers.small_plans import DATA, example, planned_problems

PROBLEMS = sorted((SHARED / "problems").glob("*.json.gz"))
DELETED = object()

Path_ = tuple[str | int, ...]


def document(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def changed(name: str, path: Path_, value: object) -> str:
    """The example's text with one value put in, or taken out when it is DELETED."""
    whole = document(name)
    place = whole
    for step in path[:-1]:
        place = place[step]
    if value is DELETED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(whole)


def refusal(read: Callable[[str], object], text: str | bytes) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    return caught.value


def test_the_example_problem_and_plan_are_read_as_they_are_written() -> None:
    problem, plan, report = example()
    assert [each.name for each in problem.gpu_types] == ["small", "big"]
    assert [each.name for each in problem.services] == ["camera", "photo", "chat"]
    assert sum(len(points.rows) for points in problem.points) == 24
    assert problem.gpu_type("big").count is None
    assert plan.gpus[1].replicas[1].batch == 4
    assert (report.status, report.cost_usd_per_hour) == ("optimal", 1.7642)


def test_a_written_problem_is_read_back_equal() -> None:
    problem, plan, _ = example()
    moving = replace(problem, current=plan, migration_cost_usd_per_hour=0.1)
    assert problem_from_json(problem_to_json(moving)) == moving
    assert problem_from_json(problem_to_json(moving).encode()) == moving
    assert problem_from_document(problem_document(moving)) == moving


@given(case=planned_problems())
@settings(max_examples=examples(30), derandomize=True)
def test_any_problem_and_plan_survive_the_round_trip(
    case: tuple[Problem, Plan],
) -> None:
    problem, plan = case
    report = PlanReport(
        status="greedy",
        cost_usd_per_hour=cost_usd_per_hour(problem, plan),
        method="drawn",
    )
    assert problem_from_json(problem_to_json(problem)) == problem
    assert plan_from_json(plan_to_json(plan, report)) == (plan, report)


def test_a_plan_keeps_what_it_could_not_serve_and_its_goodput() -> None:
    _, plan, report = example()
    plan = replace(
        plan,
        unserved=(
            Unserved(service="chat", rate_rps=3.5, reason="slo", replicas_missing=2),
        ),
    )
    report = replace(report, served_weight=12.5, messages=("time ran out", ""))
    assert plan_from_json(plan_to_json(plan, report)) == (plan, report)


def test_optional_fields_may_be_left_out_or_null() -> None:
    short = document("example_problem.json")
    short.pop("energy_price_usd_per_kwh")
    short["current"] = None
    short["services"][0] |= {"max_replicas": None, "allowed_gpu_types": None}
    problem = problem_from_json(json.dumps(short))
    assert (
        problem.energy_price_usd_per_kwh,
        problem.current,
        problem.migration_cost_usd_per_hour,
    ) == (0.0, None, 0.0)
    assert problem.services[0].allows("small")
    bare = document("example_plan.json")
    bare["gpus"][0].pop("count")
    assert plan_from_json(json.dumps(bare))[0].gpus[0].count == 1


LAW = ("capacity_law", "max_utilisation", 0, 1)

BAD_PROBLEMS: tuple[tuple[Path_, object, str], ...] = (
    (("version",), 3, "version"),
    (("version",), True, "version"),
    (("version",), DELETED, "version"),
    (("objective",), "min_regret", "objective"),
    (("objective",), ["min_cost"], "objective"),
    (("energy_price_usd_per_kwh",), -0.1, "energy_price_usd_per_kwh"),
    (("energy_price_usd_per_kwh",), None, "energy_price_usd_per_kwh"),
    (("max_replicas_per_gpu",), 0, "max_replicas_per_gpu"),
    (("max_replicas_per_gpu",), 1.5, "max_replicas_per_gpu"),
    (("colour",), "red", "colour"),
    (("\x1b[31mred",), 1, r"'\x1b[31mred'"),
    (("\ud800",), 1, r"'\ud800'"),
    (("gpu_types",), [], "gpu_types"),
    (("gpu_types",), {}, "gpu_types"),
    (("gpu_types", 0), "T4", "gpu_types[0]"),
    (("gpu_types", 0, "name"), "big", "gpu_types"),
    (("gpu_types", 0, "name"), "", "gpu_types[0].name"),
    (("gpu_types", 0, "name"), "a\nb", "gpu_types[0].name"),
    (("gpu_types", 0, "name"), 7, "gpu_types[0].name"),
    (("gpu_types", 0, "price_usd_per_hour"), 0, "gpu_types[0].price_usd_per_hour"),
    (("gpu_types", 0, "price_usd_per_hour"), True, "gpu_types[0].price_usd_per_hour"),
    (("gpu_types", 0, "memory_mib"), "16 GB", "gpu_types[0].memory_mib"),
    (("gpu_types", 0, "count"), -1, "gpu_types[0].count"),
    (("gpu_types", 0, "count"), DELETED, "gpu_types[0].count"),
    (("gpu_types", 0, "sm_percent_step"), 101, "gpu_types[0].sm_percent_step"),
    (("gpu_types", 0, "power_cap_w"), 1e13, "gpu_types[0].power_cap_w"),
    (("gpu_types", 0, "clocks_mhz"), [], "gpu_types[0].clocks_mhz"),
    (("gpu_types", 0, "clocks_mhz"), [0], "gpu_types[0].clocks_mhz[0]"),
    (("gpu_types", 0, "launch_base"), -1e-9, "gpu_types[0].launch_base"),
    (("services", 1, "name"), "camera", "services"),
    (("services", 1, "slo_ms"), 0, "services[1].slo_ms"),
    (("services", 1, "slo_ms"), DELETED, "services[1].slo_ms"),
    (("services", 1, "percentile"), 0.97, "services[1].percentile"),
    (("services", 1, "percentile"), 1, "services[1].percentile"),
    (("services", 1, "arrival_rate_rps"), -1, "services[1].arrival_rate_rps"),
    (("services", 1, "arrival_rate_rps"), 10**400, "services[1].arrival_rate_rps"),
    (("services", 1, "priority"), 0, "services[1].priority"),
    (("services", 1, "min_replicas"), None, "services[1].min_replicas"),
    (("services", 1, "max_replicas"), 0, "services[1].max_replicas"),
    (("services", 1, "allowed_gpu_types"), ["abacus"], "services[1].allowed_gpu_types"),
    (("services", 1, "allowed_gpu_types"), "big", "services[1].allowed_gpu_types"),
    (("capacity_law", "percentiles"), [0.95, 0.95], "capacity_law.percentiles"),
    (("capacity_law", "percentiles"), [1.0], "capacity_law.percentiles[0]"),
    (("capacity_law", "batches"), [1, 0], "capacity_law.batches[1]"),
    (("capacity_law", "batches"), [1, 2], "points[0].rows[1].batch"),
    (
        ("capacity_law", "slo_ratios"),
        [1.0, 2.0, 2.0, 5.0, 10.0],
        "capacity_law.slo_ratios",
    ),
    (
        ("capacity_law", "slo_ratios"),
        [0.5, 2.0, 3.0, 5.0, 10.0],
        "capacity_law.slo_ratios[0]",
    ),
    (LAW, [0.0, 0.5, 0.4, 0.9, 0.95], "capacity_law.max_utilisation[0][1]"),
    (LAW, [0.0, 0.5], "capacity_law.max_utilisation[0][1]"),
    ((*LAW, 4), 1.01, "capacity_law.max_utilisation[0][1][4]"),
    (("points", 0, "gpu_type"), "abacus", "points[0].gpu_type"),
    (("points", 0, "gpu_type"), "big", "points"),
    (("points", 0, "sensitivity"), -0.5, "points[0].sensitivity"),
    (("points", 0, "rows"), 5, "points[0].rows"),
    (("points", 0, "rows", 2), [1, 2, 3], "points[0].rows[2]"),
    (("points", 0, "rows", 2, 0), 0, "points[0].rows[2].sm_percent"),
    (("points", 0, "rows", 2, 0), 60, "points[0].rows[2].sm_percent"),
    (("points", 0, "rows", 2, 1), 1.5, "points[0].rows[2].batch"),
    (("points", 0, "rows", 2, 2), 0, "points[0].rows[2].clock_mhz"),
    (("points", 0, "rows", 2, 6), -1, "points[0].rows[2].memory_mib"),
    (("points", 0, "rows", 2, 7), "36 W", "points[0].rows[2].power_w"),
    (("points", 0, "rows", 2, 8), None, "points[0].rows[2].pressure"),
    (
        ("points", 0, "rows", 2),
        [100, 1, 1500, 0, 0, 0, 1, 1, 0],
        "points[0].rows[2].transfer_ms",
    ),
    (
        ("points", 0, "rows", 2),
        [100, 1, 1500, 0, 0, 1e-300, 1, 1, 0],
        "points[0].rows[2].transfer_ms",
    ),
    (("points", 0, "rows", 1), [50, 1, 1500, 1, 1, 1, 1, 1, 0], "points[0].rows"),
    (
        ("points", 0, "rows", 1),
        [50.0000001, 1, 1500.0001, 1, 1, 1, 1, 1, 0],
        "points[0].rows",
    ),
    (("current",), [], "current"),
    (("current",), {"version": 1, "policy": "x", "unserved": []}, "current.gpus"),
)

BAD_PLANS: tuple[tuple[Path_, object, str], ...] = (
    (("version",), 0, "version"),
    (("policy",), None, "policy"),
    (("gpus",), DELETED, "gpus"),
    (("gpus", 0, "count"), 0, "gpus[0].count"),
    (("gpus", 0, "count"), 1.2, "gpus[0].count"),
    (("gpus", 0, "clock_mhz"), 0, "gpus[0].clock_mhz"),
    (("gpus", 0, "replicas"), [], "gpus[0].replicas"),
    (("gpus", 1, "replicas", 1, "sm_percent"), 0, "gpus[1].replicas[1].sm_percent"),
    (("gpus", 1, "replicas", 1, "sm_percent"), 100.5, "gpus[1].replicas[1].sm_percent"),
    (("gpus", 1, "replicas", 1, "batch"), 0, "gpus[1].replicas[1].batch"),
    (
        ("gpus", 1, "replicas", 1, "arrival_rate_rps"),
        -1,
        "gpus[1].replicas[1].arrival_rate_rps",
    ),
    (("gpus", 1, "replicas", 1, "qps"), 1, "gpus[1].replicas[1].qps"),
    (
        ("unserved",),
        [{"service": "chat", "rate_rps": 1, "reason": "laziness"}],
        "unserved[0].reason",
    ),
    (
        ("unserved",),
        [{"service": "chat", "rate_rps": -1, "reason": "slo"}],
        "unserved[0].rate_rps",
    ),
    (("report",), DELETED, "report"),
    (("report", "status"), "perfect", "report.status"),
    (("report", "cost_usd_per_hour"), DELETED, "report.cost_usd_per_hour"),
    (("report", "lower_bound_usd_per_hour"), "none", "report.lower_bound_usd_per_hour"),
    (("report", "messages"), [3], "report.messages[0]"),
)


@pytest.mark.parametrize(("path", "value", "field"), BAD_PROBLEMS)
def test_a_bad_problem_is_refused_by_field(
    path: Path_, value: object, field: str
) -> None:
    error = refusal(problem_from_json, changed("example_problem.json", path, value))
    assert error.field == field
    assert str(error).startswith(f"{field}: ")


@pytest.mark.parametrize(("path", "value", "field"), BAD_PLANS)
def test_a_bad_plan_is_refused_by_field(path: Path_, value: object, field: str) -> None:
    assert (
        refusal(plan_from_json, changed("example_plan.json", path, value)).field
        == field
    )


@pytest.mark.parametrize("name", RESERVED)
def test_names_kept_for_later_versions_are_refused_as_such(name: str) -> None:
    for read, text, field in (
        (problem_from_json, changed("example_problem.json", (name,), 1), name),
        (
            problem_from_json,
            changed("example_problem.json", ("services", 0, name), 1),
            f"services[0].{name}",
        ),
        (
            plan_from_json,
            changed("example_plan.json", ("gpus", 0, name), 1),
            f"gpus[0].{name}",
        ),
    ):
        error = refusal(read, text)
        assert error.field == field
        assert "later versions" in error.problem


@pytest.mark.parametrize(
    "written", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000]
)
@pytest.mark.parametrize(
    "old", ['"slo_ms": 60', '"memory_mib": 16000', "1600, 18.0, 0.2]"]
)
def test_what_is_not_a_finite_number_is_refused_wherever_it_stands(
    written: str, old: str
) -> None:
    text = (DATA / "example_problem.json").read_text()
    assert old in text
    new = (
        f"1600, {written}, 0.2]"
        if old.endswith("]")
        else f"{old.split(':')[0]}: {written}"
    )
    assert "number" in refusal(problem_from_json, text.replace(old, new, 1)).problem


def test_a_field_given_twice_is_refused() -> None:
    text = (
        (DATA / "example_problem.json")
        .read_text()
        .replace('"slo_ms": 60', '"slo_ms": 60, "slo_ms": 6000', 1)
    )
    assert refusal(problem_from_json, text).field == "slo_ms"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "[" * 100_000, b"\xff\xfe\x00", b"\xff"]
)
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    refusal(problem_from_json, text)
    refusal(plan_from_json, text)


def test_every_count_must_be_finite_under_max_goodput() -> None:
    error = refusal(
        problem_from_json,
        changed("example_problem.json", ("objective",), "max_goodput"),
    )
    assert error.field == "gpu_types"


def test_a_figure_that_json_cannot_hold_is_never_written() -> None:
    problem, plan, report = example()
    with pytest.raises(ValueError, match="JSON"):
        plan_to_json(plan, replace(report, cost_usd_per_hour=float("nan")))
    with pytest.raises(ValueError, match="JSON"):
        problem_to_json(replace(problem, energy_price_usd_per_kwh=float("inf")))


def test_what_we_write_satisfies_the_schemas() -> None:
    from jsonschema import Draft202012Validator  # It takes seconds to be imported.

    problem, plan, report = example()
    plan = replace(
        plan,
        unserved=(
            Unserved(service="chat", rate_rps=3.5, reason="slo", replicas_missing=2),
        ),
    )
    goodput = replace(report, served_weight=1.0, served_weight_upper_bound=None)
    moving = replace(problem, current=plan, migration_cost_usd_per_hour=0.1)
    for schema, text in (
        ("problem", problem_to_json(moving)),
        ("plan", plan_to_json(plan, report)),
        ("plan", plan_to_json(plan, goodput)),
    ):
        assert (
            list(
                Draft202012Validator(document(f"{schema}.schema.json")).iter_errors(
                    json.loads(text)
                )
            )
            == []
        )


@needs("contracts")
@pytest.mark.parametrize(
    "name",
    [
        "example_problem.json",
        "example_plan.json",
        "problem.schema.json",
        "plan.schema.json",
    ],
)
def test_the_copies_here_are_the_contract_s(name: str) -> None:
    assert document(name) == json.loads((SHARED / "contracts" / name).read_text())


@needs("problems")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            each,
            id=each.stem,
            marks=() if "4x8" in each.name else pytest.mark.thorough,
        )
        for each in PROBLEMS
        if "1000x" not in each.name
    ],
)
def test_shared_problems_are_read_and_checked(path: Path) -> None:
    problem = problem_from_json(gzip.decompress(path.read_bytes()))
    empty = violations(problem, Plan(policy="none"))
    assert {violation.rule for violation in empty} == {"demand"}
    assert len(empty) == sum(each.arrival_rate_rps > 0 for each in problem.services)
    assert plan_document(Plan(policy="none"))["gpus"] == []


@needs("problems")
@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    [each for each in PROBLEMS if "1000x" in each.name],
    ids=lambda path: path.stem,
)
def test_the_largest_shared_problems_are_read(path: Path) -> None:
    assert len(problem_from_json(gzip.decompress(path.read_bytes())).services) == 100


def test_labels_need_the_second_version_and_come_back() -> None:
    problem, _, _ = example()
    services = (
        replace(problem.services[0], anti_affinity=frozenset({"edge", "core"})),
        *problem.services[1:],
    )
    labelled = replace(problem, services=services)
    written = problem_document(labelled)
    assert (written["version"], problem_document(problem)["version"]) == (2, 1)
    assert problem_from_json(problem_to_json(labelled)) == labelled
    assert "anti_affinity" not in problem_to_json(problem)
    with pytest.raises(InvalidInput, match="must be 2") as refused:
        problem_from_document(written | {"version": 1})
    assert refused.value.field == "version"


def test_a_stall_is_ours_and_not_written() -> None:
    problem, _, _ = example()
    points = tuple(
        replace(entry, rows=tuple(row._replace(stall_ms=3.0) for row in entry.rows))
        for entry in problem.points
    )
    assert (
        problem_from_json(problem_to_json(replace(problem, points=points))) == problem
    )
