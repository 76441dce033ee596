"""Language models in the contract's JSON: what is read is written again, and what is wrong is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from solvers.types.documents.plan_json import plan_from_json, plan_to_json
from solvers.types.documents.problem_json import (
    problem_document,
    problem_from_document,
    problem_from_json,
    problem_to_json,
)
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmReplicaPlan
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan
from tests.solvers.llm.models import make_problem, make_service, make_type

FULL = make_problem(
    gpu_types=(make_type(free_slots=((2, 8), (4, 4), (8, 2))),),
    llm_services=(
        make_service(
            lengths="conversation",
            arrival_cv=1.5,
            min_replicas=1,
            max_replicas=9,
            allowed_gpu_types=("H100",),
        ),
    ),
    start_usd_per_second_and_gpu=0.001,
)
PLAN = Plan(
    policy="joint",
    llm_replicas=(
        LlmReplicaPlan(
            service="chat",
            gpu_type="H100",
            tp=4,
            count=2,
            clock_mhz=1980.0,
            max_num_batched_tokens=1024,
            max_num_seqs=256,
            arrival_rate_rps=8.5,
        ),
    ),
)


def test_a_problem_comes_back_as_it_was_written() -> None:
    assert problem_from_json(problem_to_json(FULL)) == FULL
    assert problem_document(FULL)["version"] == 2


def test_a_plan_comes_back_as_it_was_written() -> None:
    report = PlanReport(status="optimal", cost_usd_per_hour=36.0)

    assert plan_from_json(plan_to_json(PLAN, report)) == (PLAN, report)


def test_a_problem_may_say_what_runs() -> None:
    running = replace(FULL, current=PLAN)

    assert problem_from_json(problem_to_json(running)) == running


def document_of() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(problem_to_json(FULL))
    return document


def set_row(at: int, value: float) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["llm_points"][0]["rows"][0][at] = value

    return change


def set_in(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (set_row(0, 3), "llm_points[0].rows[0].tp", "a power of two"),
        (set_row(0, 16), "llm_points[0].rows[0].tp", "gpus_per_node, 8"),
        (set_row(3, 50), "llm_points[0].rows[0].sm_percent", "must be 100"),
        (set_row(1, 0), "llm_points[0].rows[0].max_num_batched_tokens", "at least 1"),
        (
            set_in("llm_points", 0, "service", value="x"),
            "llm_points[0].service",
            "no service of kind llm",
        ),
        (
            set_in("llm_points", 0, "gpu_type", value="x"),
            "llm_points[0].gpu_type",
            "no GPU type",
        ),
        (
            set_in("llm_points", 0, "network", value="x"),
            "llm_points[0].network",
            "must be the service's",
        ),
        (
            set_in("llm_points", 0, "provenance", value="guess"),
            "llm_points[0].provenance",
            "must be one of measured",
        ),
        (
            set_in("services", 0, "llm", "itl", value="word"),
            "services[0].llm.itl",
            "must be one of token, request",
        ),
        (
            set_in("services", 0, "llm", "percentile", value=1.0),
            "services[0].llm.percentile",
            "at most",
        ),
        (
            set_in("services", 0, "slo_ms", value=10.0),
            "services[0].slo_ms",
            "unknown field",
        ),
        (
            set_in("services", 0, "kind", value="x"),
            "services[0].kind",
            "must be one of",
        ),
        (set_in("version", value=1), "version", "kind llm"),
        (
            set_in("gpu_types", 0, "free_slots", value=[[2]]),
            "gpu_types[0].free_slots[0]",
            "GPUs of a set",
        ),
    ],
)
def test_what_is_wrong_is_named(
    change: Callable[[dict[str, Any]], None], field: str, words: str
) -> None:
    document = document_of()
    change(document)

    with pytest.raises(InvalidInput) as caught:
        problem_from_document(document)

    assert (caught.value.field, words in caught.value.problem) == (field, True), (
        caught.value
    )
