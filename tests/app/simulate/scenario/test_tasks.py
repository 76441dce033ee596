"""Tasks in scenarios: who is named and who comes from a job list, when they are submitted, what becomes of them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.catalogue.catalogue import load_profiles
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from app.simulate.scenario.parts import TaskWork
from app.simulate.scenario.scenario import ScenarioSpec
from app.simulate.scenario.tasks import (
    iteration_ms,
    make_submissions,
)
from tests.app.runs import a_scenario

NETWORK = "resnet18-training"
TASK = {
    "name": "t",
    "kind": "training",
    "network": NETWORK,
    "batch": 128,
    "iterations": 200,
}
LIST = {
    "name": "job",
    "file": "jobs.csv",
    "kind": "training",
    "networks": [{"network": NETWORK, "batch": 128}],
}
POINTS = load_profiles([NETWORK, "lm-training"], ["V100-32GB"])


def spec_of(**spec: Any) -> ScenarioSpec:
    return a_scenario(**spec).spec


def listed(
    folder: Path, *rows: str, **changes: Any
) -> list[tuple[str, float, int, float | None]]:
    """(name, submitted at, iterations, due in) of a list's tasks."""
    (folder / "jobs.csv").write_text(
        "submit_s,duration_s,gpus,name\n" + "\n".join(rows) + "\n"
    )
    found = make_submissions(spec_of(task_lists=[{**LIST, **changes}]), POINTS, folder)
    return [
        (each.task.name, each.at_s, each.task.iterations, each.task.due_in_s)
        for each in found
    ]


def test_a_job_becomes_the_iterations_that_a_whole_gpu_would_do_in_its_time(
    tmp_path: Path,
) -> None:
    step_ms = iteration_ms(TaskWork(network=NETWORK, batch=128), "V100-32GB", POINTS)
    rows = [
        row
        for entry in POINTS
        if entry.network == NETWORK
        for row in entry.rows
        if row.batch == 128
    ]
    assert step_ms == min(row.solo_ms for row in rows)
    # Half a GPU does half of the work in the time; four GPUs count as one.
    found = listed(tmp_path, "5,100,1,a", "6,100,0.5,b", "7,100,4,b", deadline_factor=2)
    whole = round(100_000 / step_ms)
    assert found == [
        ("job-1", 0.0, whole, 200.0),
        ("job-2", 1.0, pytest.approx(whole / 2, abs=1), 200.0),
        ("job-3", 2.0, whole, 200.0),
    ]


def test_the_list_begins_at_the_first_wanted_job_and_stops_at_the_most_or_at_the_end(
    tmp_path: Path,
) -> None:
    rows = ["0,10,1,a", "40,10,1,b", "60,10,1,c", "100,10,1,d", "300,10,1,e"]
    assert [
        each[:2] for each in listed(tmp_path, *rows, first=2, most=2, start_s=7)
    ] == [
        ("job-1", 7.0),
        ("job-2", 27.0),
    ]
    # The run is over at 120 s; ten times as fast, all five come within 30 s, and each takes a tenth of its time.
    assert [each[1] for each in listed(tmp_path, *rows)] == [0.0, 40.0, 60.0, 100.0]
    fast = listed(tmp_path, *rows, time_scale=10)
    assert [each[1] for each in fast] == [0.0, 4.0, 6.0, 10.0, 30.0]
    assert fast[0][2] == pytest.approx(listed(tmp_path, *rows)[0][2] / 10, abs=1)


@pytest.fixture(scope="module")
def done() -> RunResult:
    # The service takes one V100 at most, so a short task ends, a long one does not, and one is late from the outset.
    scenario = a_scenario(
        duration_s=180,
        warm_up_s=60,
        step_s=20,
        tasks=[
            {**TASK, "name": "short", "submit_s": 12},
            {**TASK, "name": "long", "iterations": 10**6, "deadline_s": 10_000},
            {
                **TASK,
                "name": "late",
                "iterations": 10**6,
                "submit_s": 30,
                "deadline_s": 31,
            },
        ],
    )
    (job,) = jobs_of(scenario, shipped_catalogue(scenario), Path())
    return simulate(job)


def test_every_task_is_accounted_for(done: RunResult) -> None:
    long, short, late = done.tasks
    assert [each.task for each in done.tasks] == ["long", "short", "late"]
    assert (short.phase, short.submitted_s, short.progress) == ("finished", 12.0, 1.0)
    assert short.first_ran_s is not None and short.finished_s is not None
    assert 12.0 < short.first_ran_s <= short.finished_s <= 180.0
    assert short.completion_s == short.finished_s - 12.0
    assert short.waited_s + short.ran_s == pytest.approx(short.completion_s)
    assert 0.0 < long.progress < 1.0 and long.completion_s is None
    assert (short.is_in_time, long.is_in_time, late.is_in_time) == (None, None, False)
    assert (
        done.services[0].attainment is not None and done.services[0].attainment >= 0.98
    )


def test_every_unfinished_task_is_in_the_series_once(done: RunResult) -> None:
    unfinished = [sum(step) for step in zip(*done.series.tasks.values(), strict=True)]
    short = next(each for each in done.tasks if each.task == "short")
    ends = [60.0 + 20.0 * step for step in range(1, 7)]
    assert unfinished == [
        3 if end_s < (short.finished_s or 0.0) else 2 for end_s in ends
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"variants": [{"network": "resnet50", "accuracy": 0.76}]},
            "must have its own network resnet101",
        ),
        (
            {
                "variants": [{"network": "resnet101", "accuracy": 0.7}],
                "accuracy_floor": 0.8,
            },
            "lower it",
        ),
        ({"weight": 1.5}, "less than or equal to 1"),
    ],
)
def test_impossible_variants_are_refused(
    changes: dict[str, object], words: str
) -> None:
    job = {
        "name": "job",
        "kind": "offline",
        "network": "resnet101",
        "batch": 8,
        "iterations": 10,
    }
    with pytest.raises(ValidationError, match=words):
        a_scenario(tasks=[{**job, **changes}])
