"""GPU types without SM limits, in version 2 of the contract: round trips, and refusals that name the field."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from solvers.check import violations
from solvers.joint.policy import make_plan
from solvers.types.documents.plan_json import plan_from_json, plan_to_json
from solvers.types.documents.problem_json import problem_from_json, problem_to_json
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget
from solvers.types.state import Observed
from tests.examples import seeds
from tests.solvers.problems import tiny_problem, uncapped

Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("seed", seeds(4))
def test_problem_and_plan_come_back_as_they_went(seed: int) -> None:
    problem = uncapped(tiny_problem(seed), seed)
    text = problem_to_json(problem)
    document = json.loads(text)
    assert document["version"] == 2
    assert document["gpu_types"][0]["sharing"] == ["uncapped"]
    assert problem_from_json(text) == problem
    plan, report, _ = make_plan(problem, Observed(at_s=0.0), None, Budget(work=1.0))
    assert violations(problem, plan) == ()
    again, _ = plan_from_json(plan_to_json(plan, report))
    assert again == plan


def of_type(name: str, value: object) -> Change:
    return lambda document: document["gpu_types"][0].update({name: value})


BAD: list[tuple[Change, str, str]] = [
    (lambda d: d.update(version=1), "version", "must be 2 where GPUs are uncapped"),
    (of_type("overload", -0.1), "gpu_types[0].overload", "at least 0"),
    (lambda d: d["gpu_types"][0].pop("overload"), "gpu_types[0].overload", "missing"),
    (
        of_type("sharing", ["uncapped", "capped"]),
        "gpu_types[0].sharing",
        "cannot be combined",
    ),
    (of_type("sharing", ["capped"]), "gpu_types[0].overload", "unknown"),
    (
        lambda d: d["points"][0]["rows"][0].__setitem__(0, 50.0),
        "points[0].rows[0].sm_percent",
        "uncapped: every replica has 100, not 50",
    ),
]


@pytest.mark.parametrize(("change", "field", "words"), BAD)
def test_what_is_wrong_is_named(change: Change, field: str, words: str) -> None:
    document = json.loads(problem_to_json(uncapped(tiny_problem(1), 1)))
    change(document)
    with pytest.raises(InvalidInput) as caught:
        problem_from_json(json.dumps(document))
    assert caught.value.field == field
    assert words in caught.value.problem
