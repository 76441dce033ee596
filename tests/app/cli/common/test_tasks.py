"""Tasks on the command line: tables that fit, manifests that are read strictly, changes that are shown."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.cli.common.task_columns import span
from app.manifests.tasks import TaskSpec
from tests.app.cli.fake_api import FakeApi, Json
from tests.app.runner import cli

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "task.yaml"
MANIFEST = """\
apiVersion: plimsoll/v1
kind: Task
metadata: {name: nightly, project: vision, labels: {team: search}}
spec: {kind: offline, network: resnet50, batch: 8, inputs: 16000, priority: batch}
"""


def task(name: str = "nightly", **status: object) -> Json:
    stands: Json = {
        "id": name,
        "state": "queued",
        "gpu": None,
        "sm_percent": None,
        "done_iterations": 0.0,
        "iterations": 2000,
        "iterations_per_s": None,
        "remaining_s": None,
        "ends_at": None,
        "deadline_at": None,
        "waiting_s": 0.0,
        "waited_s": 75.0,
        "starts": 0,
        "swaps": 0,
    }
    return {
        "apiVersion": "plimsoll/v1",
        "kind": "Task",
        "metadata": {
            "name": name,
            "project": "vision",
            "labels": {"team": "search"},
            "generation": 1,
        },
        "spec": {
            "kind": "offline",
            "network": "resnet50",
            "batch": 8,
            "inputs": 16000,
            "priority": 1.0,
        },
        "status": {**stands, **status},
    }


RUNNING = task(
    state="running",
    gpu="local-1/gpu-0",
    sm_percent=40.0,
    done_iterations=1999.9,
    iterations_per_s=25.0,
    remaining_s=300.0,
    ends_at="2026-03-01T12:00:25.5Z",
    deadline_at="2026-03-01T12:00:25Z",
    starts=1,
)


def fleet(*tasks: Json) -> FakeApi:
    return FakeApi(objects={f"tasks/{each['status']['id']}": each for each in tasks})  # type: ignore[index, call-overload]


def test_tasks_are_listed_with_how_far_they_are_in_80_columns() -> None:
    waiting = task("a-long-name", waiting_s=7300.0)
    out = cli(
        "get tasks",
        api=fleet(
            RUNNING, waiting, task("done", state="finished", done_iterations=2000.0)
        ),
    ).out
    assert out.splitlines() == [
        "NAME         NETWORK   STATE        DONE  SM %  GPU            ENDS",
        "nightly      resnet50  running    99.9 %    40  local-1/gpu-0  in 5 min, late",
        "a-long-name  resnet50  queued      0.0 %     -  -              waits 2.0 h",
        "done         resnet50  finished  100.0 %     -  -              -",
    ]


def test_an_unchanged_manifest_changes_nothing_and_a_changed_one_shows_the_field(
    tmp_path: Path,
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(MANIFEST)
    assert (
        cli("diff -f", file, api=fleet(RUNNING)).out.splitlines()[-1]
        == "0 to create, 0 to change, 1 unchanged."
    )
    file.write_text(
        MANIFEST.replace("priority: batch", "priority: critical, deadline_after_s: 60")
    )
    out = cli("diff -f", file, api=fleet(RUNNING)).out
    assert "    spec.deadline_after_s: none → 60" in out
    assert "    spec.priority: 1 → 100" in out
    file.write_text(MANIFEST.replace("project: vision", "project: other"))
    assert (
        "    metadata.project: vision → other"
        in cli("diff -f", file, api=fleet(RUNNING)).out
    )


def test_a_task_is_submitted_and_deleted(tmp_path: Path) -> None:
    api = FakeApi()
    applied = cli("apply -f", EXAMPLE, "-y", api=api)
    assert (applied.code, applied.out.splitlines()[-2:]) == (
        0,
        ["Task vision created", "Task nightly created"],
    )
    (bundle,) = api.written()
    assert [body["spec"]["gpus"] for body in bundle["tasks"]] == [1, 1]  # type: ignore[attr-defined]
    assert cli("delete -f", EXAMPLE, "-y", api=api).out.splitlines() == [
        "Task nightly deleted",
        "Task vision deleted",
    ]
    assert api.objects == {}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("inputs: 16000", "iterations: 9, inputs: 16000", "spec.inputs: give one of iterations, epochs or inputs, not"),
        ("network: resnet50, ", "", "spec.network: this field is missing; or give layers and memory_mib"),
        ("batch: 8", "batch: 0", "spec.batch: must be greater than or equal to 1, not 0"),
        ("batch: 8", "batch: 8, gpus: 4", "spec.gpus: must be 1, not 4: a task has one GPU"),
        ("priority: batch", "priority: urgent", "spec.priority: must be a number or one of critical, standard, batch"),
        ("kind: offline", "kind: training, layers: {conv: 53}", "spec.layers.conv"),
        ("batch: 8", "batch: 8, weight: 2", "spec.weight: must be less than or equal to 1, not 2"),
        ("batch: 8", "batch: 8, modle: x", "spec.modle: unknown field"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_line_and_field(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(MANIFEST.replace(old, new))
    refused = cli("apply -f", file, "-y", api=FakeApi())
    assert refused.code == 1
    assert f"{file}:4: {complaint}" in refused.err


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"inputs": 9, "iterations": 9}, ["inputs"]),
        ({}, ["iterations"]),
        ({"epochs": 2}, ["examples"]),
        ({"iterations": 9, "examples": 2}, ["examples"]),
        ({"epochs": 1_000_000, "examples": 10**6, "batch": 1}, ["epochs"]),
        ({"iterations": 9, "layers": {"linear": 1}}, ["layers", "memory_mib"]),
        ({"iterations": 9, "kind": "training", "layers": {"linear": 0}, "memory_mib": 9}, ["layers"]),
        ({"iterations": 9, "kind": "training", "variants": [{"network": "x", "accuracy": 1}]}, ["variants"]),
        ({"iterations": 9, "variants": [{"network": "y", "accuracy": 0.5}] * 2, "accuracy_floor": 0.6},
         ["variants", "variants", "accuracy_floor"]),
        ({"iterations": 9, "accuracy_floor": 0.6, "memory_mib": 9}, ["memory_mib", "accuracy_floor"]),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_together_are_all_named(
    fields: Json, places: list[str]
) -> None:
    with pytest.raises(ValidationError) as refused:
        TaskSpec.model_validate(
            {"kind": "offline", "network": "x", "batch": 8, **fields}
        )
    assert [entry["loc"][0] for entry in refused.value.errors()] == places


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7200.0, "2.0 h"),
        (172_800.0, "2.0 d"),
    ],
)
def test_spans_are_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_a_wide_table_has_pace_and_waiting_and_one_task_is_described() -> None:
    wide = cli("get tasks -o wide", api=fleet(RUNNING)).out.splitlines()
    assert (
        " ".join(wide[0].split()[7:])
        == "PROJECT KIND PRIORITY PER S DEADLINE WAITED STARTS SWAPS ENDS"
    )
    assert "vision   offline         1  25.00  2026-03-01 12:00:25 UTC" in wide[1]
    described = cli("describe task nightly", api=fleet(RUNNING)).out
    assert "remaining_s:" in described
    assert "2026-03-01 12:00:25 UTC" in described


def test_tasks_are_chosen_by_project_and_label() -> None:
    api = fleet(RUNNING)
    assert cli("get tasks -p vision -l team=search", api=api).code == 0
    assert dict(api.requests[-1].url.params)["label_selector"] == "team=search"
    assert "--project and --selector are for" in cli("get nodes -p x", api=api).err
