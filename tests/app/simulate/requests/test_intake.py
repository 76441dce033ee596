"""What may be simulated over the API: as strict as the command line, and small enough to run by a cluster."""

from typing import Any

import pytest

from app.api.decisions.simulation_views import SimulationRequest
from app.base.errors import InvalidRequest
from app.simulate.requests.intake import ScenarioIntake
from app.simulate.scenario.scenario import SimulationScenario
from tests.integration.simulating import SCENARIO, scenario

DESK = ScenarioIntake()
SERVICE: dict[str, Any] = SCENARIO["spec"]["services"][0]


TRACE = {"trace": {"file": "../a.csv", "column": "a"}}
WORK = {"network": "resnet50", "batch": 8}
JOBS = {"name": "t", "kind": "offline", "file": "jobs.csv", "networks": [WORK]}


def with_pool(**fields: Any) -> dict[str, Any]:
    return {"fleet": [{"name": "t4", "gpu_type": "T4", **fields}]}


def wrong(**wanted: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        DESK.order(SimulationRequest(**wanted))
    error = caught.value
    return dict([(error.field, error.detail), *error.others])


def test_a_scenario_is_ordered_with_its_defaults_filled_in() -> None:
    order = DESK.order(SimulationRequest(scenario=SCENARIO))
    assert (order.name, order.example, order.policies, order.seeds) == (
        "small",
        None,
        ("k8s_hpa", "hetsev"),
        (0,),
    )
    assert SimulationScenario.model_validate(
        order.document
    ) == SimulationScenario.model_validate(SCENARIO)


def test_every_shipped_scenario_can_be_ordered_as_it_is() -> None:
    for example in DESK.examples():
        order = DESK.order(SimulationRequest(example=example.name))
        assert (order.example, list(order.policies), list(order.seeds)) == (
            example.name,
            example.policies,
            example.seeds,
        )


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        (
            {"policies": ["joint", "hetsev", "mudi", "morak", "inss", "gslice"]},
            "policies",
            "come to 6 policies; at most 5",
        ),
        ({"seeds": [1, 2, 3, 4, 5, 6]}, "seeds", "come to 6 seeds; at most 5"),
        ({"duration_s": 21_630}, "duration_s", "come to 21,630 seconds; at most"),
        ({"duration_s": 12_000, "step_s": 5}, "step_s", "come to 2,400 steps of the"),
        (with_pool(nodes=10_000, gpus_per_node=64), "fleet", "has 640,000 GPUs"),
        # As pydantic reads whole numbers, too.
        (with_pool(nodes=10_000.0, gpus_per_node="64"), "fleet", "has 640,000 GPUs"),
        (
            {"services": [{**SERVICE, "name": f"s{place}"} for place in range(101)]},
            "services",
            "come to 101 services",
        ),
    ],
)
def test_what_is_too_much_is_refused_with_its_field(
    spec: dict[str, Any], field: str, words: str
) -> None:
    found = wrong(scenario=scenario(**spec))[f"scenario.spec.{field}"]
    assert words in found and found.endswith("`plimsoll simulate` takes more")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"grid_intensity": "/etc/passwd"}, "grid_intensity"),
        ({"services": [{**SERVICE, "load": TRACE}]}, "services[0].load.trace"),
        ({"task_lists": [JOBS]}, "task_lists[0].file"),
    ],
)
def test_no_file_of_the_server_is_read_for_a_caller(
    spec: dict[str, Any], field: str
) -> None:
    assert (
        "names a file, which cannot be sent along"
        in wrong(scenario=scenario(**spec))[f"scenario.spec.{field}"]
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x {}\nb: *x", "line 2: anchors and aliases are not read here"),
        ("a: [1", "line 1: not YAML"),
        ("a: \x8d", "line 1: not YAML"),
        ("a: 1\n---\nb: 1", "holds 2 documents; a scenario is exactly one"),
        ("# nothing", "holds no documents"),
    ],
)
def test_a_text_that_is_no_scenario_is_told_with_its_line(
    text: str, words: str
) -> None:
    assert words in wrong(scenario=text)["scenario"]


@pytest.mark.parametrize(
    "value",
    [
        "5",
        "[]",
        "spec: 3",
        "spec: {fleet: 3, policies: 7}",
        "spec: {fleet: [7]}",
        "spec: " + "[" * 300 + "]" * 300,
    ],
)
def test_any_shape_is_refused_in_words(value: str) -> None:
    assert wrong(scenario=value, policies=["joint"], seeds=[1], duration_s=60)
