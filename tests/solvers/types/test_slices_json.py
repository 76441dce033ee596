"""GPU types in slices, in version 2 of the contract: layouts, round trips, and refusals that name the field."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from solvers.joint.policy import make_plan
from solvers.types.documents.plan_json import plan_from_json, plan_to_json
from solvers.types.documents.problem_json import problem_from_json, problem_to_json
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget
from solvers.types.slices import layouts
from solvers.types.state import Observed
from tests.examples import seeds
from tests.solvers.sliced import A100_PROFILES, tiny_sliced_problem

Change = Callable[[dict[str, Any]], object]


def refused(change: Change, seed: int = 1) -> InvalidInput:
    """What is said of a problem with one thing changed; its first GPU type is in slices, its first points too."""
    document = json.loads(problem_to_json(tiny_sliced_problem(seed, is_beside=False)))
    change(document)
    with pytest.raises(InvalidInput) as caught:
        problem_from_json(json.dumps(document))
    return caught.value


def test_an_a100_has_the_twelve_layouts_that_no_slice_can_be_added_to() -> None:
    found = layouts(A100_PROFILES, 8)
    assert len(found) == 12
    assert {"3g.40gb": 1, "4g.40gb": 1} in found
    assert {"1g.10gb": 7} in found
    # Two of these would need the memory of eight slices and more.
    assert not any(way.get("4g.40gb", 0) > 1 for way in found)


def test_layouts_keep_to_the_most_replicas_of_a_gpu() -> None:
    assert all(sum(way.values()) <= 2 for way in layouts(A100_PROFILES, 2))
    assert {"1g.10gb": 2} in layouts(A100_PROFILES, 2)


@pytest.mark.parametrize("seed", seeds(6))
def test_problem_and_plan_come_back_as_they_went(seed: int) -> None:
    problem = tiny_sliced_problem(seed, is_beside=seed % 2 == 0)
    text = problem_to_json(problem)
    assert json.loads(text)["version"] == 2
    assert problem_from_json(text) == problem
    plan, report, _ = make_plan(problem, Observed(at_s=0.0), None, Budget())
    again, _ = plan_from_json(plan_to_json(plan, report))
    assert again == plan


def of_type(name: str, value: object) -> Change:
    return lambda document: document["gpu_types"][0].update({name: value})


def of_slice(name: str, value: object) -> Change:
    return lambda document: document["gpu_types"][0]["slices"][0].update({name: value})


def of_points(name: str, value: object) -> Change:
    return lambda document: document["points"][0].update({name: value})


BAD: list[tuple[Change, str, str]] = [
    (lambda d: d.update(version=1), "version", "must be 2"),
    (of_type("sharing", []), "gpu_types[0].sharing", "at least 1"),
    (of_type("sharing", ["shared"]), "gpu_types[0].sharing[0]", "capped, uncapped or"),
    (of_type("sharing", ["slices", "slices"]), "gpu_types[0].sharing", "twice"),
    (of_type("sharing", ["capped"]), "gpu_types[0].sm_percent_step", "missing"),
    (of_type("slices", []), "gpu_types[0].slices", "at least 1"),
    (of_type("layouts", [{"half": 1}]), "gpu_types[0].layouts", "leave the field out"),
    (of_type("memory_mib", 4_999.0), "gpu_types[0].slices", "more than memory_mib"),
    (of_slice("profile", "whole"), "gpu_types[0].slices", "whole"),
    (of_slice("starts", []), "gpu_types[0].slices[0].starts", "at least 1"),
    (of_slice("starts", [8]), "gpu_types[0].slices[0].starts", "beyond"),
    (of_slice("gpcs", 0), "gpu_types[0].slices[0].gpcs", "at least 1"),
    (of_points("slice", "third"), "points", "no slices called 'third'"),
    (of_points("rows", [[1, 1, 1000.0]]), "points[0].rows[0]", "6 values"),
    (of_points("rows", [[1, 0, 1000.0, 9, 1, 1]]), "points[0].rows[0].processes", "1"),
    (of_points("rows", [[3, 1, 1000.0, 9, 1, 1]]), "points", "capacity law"),
    (of_points("rows", 2 * [[1, 1, 1e3, 9, 1, 1]]), "points[0].rows", "keep one"),
    (lambda d: d["points"].append(d["points"][0]), "points", "twice"),
]


@pytest.mark.parametrize(("change", "field", "words"), BAD)
def test_what_is_wrong_is_named(change: Change, field: str, words: str) -> None:
    error = refused(change)
    assert error.field == field
    assert words in error.problem


def test_a_plan_in_slices_is_of_version_2() -> None:
    plan, report, _ = make_plan(
        tiny_sliced_problem(1, is_beside=False), Observed(at_s=0.0), None, Budget()
    )
    document = json.loads(plan_to_json(plan, report))
    assert document["version"] == 2
    with pytest.raises(InvalidInput, match="must be 2"):
        plan_from_json(json.dumps({**document, "version": 1}))
