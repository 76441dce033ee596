"""Tasks over the API: submitted, watched, changed, cancelled and deleted; by whom, and what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.loop.tick import TickOutcome
from tests.integration.api_harness import (
    NOW,
    Api,
    Prepared,
    network,
    profile,
    reading,
    service,
)

pytestmark = pytest.mark.integration


def task(
    name: str = "nightly", project: str = "default", **spec: object
) -> dict[str, Any]:
    """A task's manifest; None leaves a field out."""
    stated = {
        "kind": "offline",
        "network": "resnet50",
        "batch": 8,
        "iterations": 1000,
        **spec,
    }
    return {
        "apiVersion": "plimsoll/v1",
        "kind": "Task",
        "metadata": {"name": name, "project": project},
        "spec": {key: value for key, value in stated.items() if value is not None},
    }


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with _with_training(small_fleet) as running:
        yield running


@pytest.fixture(scope="module")
def refusing(small_fleet: Prepared) -> Iterator[Api]:
    """An API that takes nothing of what tests send it."""
    with _with_training(small_fleet) as running:
        yield running


@contextmanager
def _with_training(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        training = network("resnet50-training")
        metadata = {"name": "resnet50-training", "labels": {"kind": "training"}}
        training["metadata"] = metadata
        running.put("networks/resnet50-training", training)
        running.put("profiles/resnet50-training/T4", profile("resnet50-training"))
        running.put("networks/bert", network("bert"))
        yield running


def sync(api: Api, sequence: int, generation: int, **reading: object) -> None:
    """A node's report of one task."""
    seen = {
        "name": "nightly",
        "gpu_index": 0,
        "batch": 8,
        "iteration_ms": 20.0,
        **reading,
    }
    assert (
        api.sync(sequence=sequence, generation=generation, tasks=[seen]).status_code
        == 200
    )


def tick(api: Api, *services: object) -> TickOutcome:
    outcome = api.tick()
    assert outcome.state in ("target", "kept")
    return outcome


def refused(api: Api, manifest: dict[str, Any]) -> list[tuple[str, str]]:
    answer = api.call("PUT", f"tasks/{manifest['metadata']['name']}", manifest)
    assert answer.status_code == 422, answer.text
    return [(entry["pointer"], entry["detail"]) for entry in answer.json()["errors"]]


def test_a_task_is_placed_beside_a_service_runs_and_finishes(api: Api) -> None:
    api.put("services/chat", service(scaling={"min_replicas": 1}))
    api.put("tasks/nightly", task(deadline_after_s=600.0), token="operator")
    assert api.get("tasks/nightly")["status"]["state"] == "queued"
    assert api.sync(sequence=1, services=[reading(arrivals=2)]).status_code == 200
    outcome = tick(api)
    status = api.get("tasks/nightly")["status"]
    assert status["gpu"] in ("n1/gpu-0", "n1/gpu-1")
    index, share = int(status["gpu"][-1]), status["sm_percent"]
    told = api.command(sequence=2, generation=0)["gpus"]
    ((place, given),) = [
        (gpu["index"], each) for gpu in told for each in gpu.get("tasks", ())
    ]
    assert (place, given["iterations"], given["batch"]) == (index, 1000, 8)

    here = {"gpu_index": index, "sm_percent": share}
    sync(api, 3, outcome.generation, state="running", done_iterations=250.0, **here)
    api.clock.advance(10.0)
    status = api.get("tasks/nightly")["status"]
    for field, value in (
        ("state", "running"),
        ("done_iterations", 250.0),
        ("iterations_per_s", 50.0),
        # 750 iterations of 20 ms are left; 250 of them were 5 s of the ten that have gone by.
        ("remaining_s", 15.0),
        ("waited_s", 5.0),
        ("starts", 1),
        ("ends_at", "2026-03-01T12:00:25Z"),
        ("deadline_at", "2026-03-01T12:10:00Z"),
    ):
        assert status[field] == value, field
    sync(api, 4, outcome.generation, state="finished", done_iterations=1000.0, **here)
    status = api.get("tasks/nightly")["status"]
    assert (status["state"], status["gpu"]) == ("finished", None)
    assert status["remaining_s"] is None
    kinds = [line["kind"] for line in api.get("events?subject=task/nightly")["items"]]
    assert kinds == ["TaskFinished", "TaskStarted", "TaskSubmitted"]
    tick(api)
    gone = api.command(sequence=5, generation=outcome.generation)
    assert all("tasks" not in gpu for gpu in gone["gpus"])


def test_a_cancelled_task_leaves_its_node_and_stays_in_the_list(api: Api) -> None:
    api.put("services/chat", service(scaling={"min_replicas": 1}))
    api.put("tasks/nightly", task())
    api.sync(sequence=1, services=[reading(arrivals=2)])
    first = tick(api)
    assert api.post("tasks/nightly/cancel")["status"]["state"] == "cancelled"
    assert api.status("POST", "tasks/nightly/cancel") == 200
    assert len(api.get("events?kind=TaskCancelled")["items"]) == 1
    tick(api)
    command = api.command(sequence=2, generation=first.generation)
    assert all("tasks" not in gpu for gpu in command["gpus"])
    assert api.names("tasks?state=cancelled") == ["nightly"]
    assert api.get("tasks?state=queued&state=running")["items"] == []
    assert api.status("POST", "tasks/nobody/cancel") == 404


def test_urgency_may_change_until_it_is_over_and_the_work_may_not(api: Api) -> None:
    api.put("tasks/nightly", task())
    changed = api.put(
        "tasks/nightly", task(priority="critical", deadline_after_s=60.0)
    ).json()
    assert changed["metadata"]["generation"] == 2
    assert changed["spec"]["priority"] == 100.0
    for field in ("batch", "iterations"):
        pointer, words = api.wrong("PUT", "tasks/nightly", task(**{field: 1}))
        assert pointer == f"/spec/{field}"
        assert "delete it and submit it again" in words
    # One that is over stays as it was but for what is said of it.
    assert api.status("POST", "tasks/nightly/cancel") == 200
    answer = api.call("PUT", "tasks/nightly", task(deadline_after_s=90.0), If_Match="*")
    assert answer.status_code == 409
    assert (
        "is over (cancelled); delete it and submit it again" in answer.json()["detail"]
    )
    labelled = task(priority="critical", deadline_after_s=60.0)
    labelled["metadata"]["labels"] = {"seen": "yes"}
    assert api.put("tasks/nightly", labelled).json()["metadata"]["generation"] == 3


@pytest.mark.parametrize(
    ("spec", "iterations"),
    [
        ({"iterations": 12}, 12),
        (
            {"iterations": None, "epochs": 3, "examples": 17},
            9,
        ),  # three batches of 8 hold 17 examples
        ({"iterations": None, "inputs": 17}, 3),
    ],
)
def test_the_work_is_answered_as_it_was_written(
    api: Api, spec: dict[str, object], iterations: int
) -> None:
    more = {
        "checkpoint_command": ["/bin/save", "--to=x"],
        "variants": [{"network": "resnet50", "accuracy": 0.76}],
        "accuracy_floor": 0.7,
        "weight": 0.9,
    }
    stored = api.put("tasks/nightly", task(**spec, **more)).json()
    for name, value in (spec | more).items():
        assert stored["spec"][name] == value
    assert stored["status"]["iterations"] == iterations


def test_training_that_was_never_profiled_is_taken_with_its_layers(api: Api) -> None:
    layers = {"linear": 1, "convolution": 53}
    stored = api.put(
        "tasks/new",
        task(
            "new",
            kind="training",
            network=None,
            layers=layers,
            memory_mib=9000,
            epochs=2,
            examples=9,
            iterations=None,
        ),
    ).json()
    assert (stored["spec"]["network"], stored["spec"]["layers"]) == (None, layers)
    snapshot_task = api.get("tasks/new")["status"]
    assert (snapshot_task["state"], snapshot_task["iterations"]) == ("queued", 4)


@pytest.mark.parametrize(
    ("spec", "pointer", "words"),
    [
        ({"network": "resnet5"}, "/spec/network", "is called 'resnet5'; did you mean resnet50"),
        ({"network": "resnet50-training"}, "/spec/network", "resnet50-training is for tasks of kind training"),
        ({"kind": "training"}, "/spec/network", "resnet50 is for tasks of kind offline; this one's is training"),
        ({"network": "bert"}, "/spec/network", "bert has not been profiled on any GPU type"),
        ({"batch": 7}, "/spec/batch", "resnet50 was profiled with batches 1, 8, not 7"),
        ({"variants": [{"network": "resnet50", "accuracy": 1}, {"network": "x", "accuracy": 1}]},
         "/spec/variants/1/network", "no network for offline tasks is called 'x'"),
        ({"gpus": 2}, "/spec/gpus", "must be 1, not 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_the_field_and_the_remedy(
    refusing: Api, spec: dict[str, object], pointer: str, words: str
) -> None:
    ((found, detail),) = refused(refusing, task(**spec))
    assert found == pointer
    assert words in detail


def test_all_that_does_not_fit_together_is_told_at_once(refusing: Api) -> None:
    wrong = task(iterations=5, epochs=2, memory_mib=100, accuracy_floor=0.5)
    assert [pointer for pointer, _ in refused(refusing, wrong)] == [
        "/spec/epochs",
        "/spec/examples",
        "/spec/memory_mib",
        "/spec/accuracy_floor",
    ]
    assert refused(refusing, task("x", project="nobody"))[0][0] == "/metadata/project"


def test_tasks_are_paged_and_chosen_by_label(api: Api) -> None:
    for name in ("a", "b", "c"):
        manifest = task(name)
        manifest["metadata"]["labels"] = {"team": name, "tier": "batch"}
        api.put(f"tasks/{name}", manifest)
    first = api.get("tasks?limit=2")
    second = api.get(f"tasks?limit=2&cursor={first['next_cursor']}")
    listed = [each["metadata"]["name"] for each in first["items"] + second["items"]]
    assert listed == ["a", "b", "c"]
    assert api.names("tasks?label_selector=tier=batch,team=b") == ["b"]
    assert api.status("GET", "tasks?state=gone") == 422
    assert api.get("tasks/a")["status"]["submitted_at"] == NOW.isoformat().replace(
        "+00:00", "Z"
    )
