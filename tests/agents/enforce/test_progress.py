"""A task that has to be started again goes on from where it was."""

from pathlib import Path

import pytest

from agents.base.protocol import TaskReading
from agents.enforce.actions import StartTask, Stop
from agents.enforce.progress import FILE, Progress
from tests.agents.factories import a_task, on_gpu

TASK = a_task("nightly", iterations=100, done=5.0)
START = StartTask(gpu_index=0, task=TASK)
COMMAND = on_gpu(tasks=(TASK,))


def a_reading(done_iterations: float) -> TaskReading:
    return TaskReading(
        name="nightly",
        gpu_index=0,
        state="running",
        sm_percent=20.0,
        batch=64,
        done_iterations=done_iterations,
    )


def begins_at(progress: Progress) -> float:
    resumed = progress.resumed(START)
    assert isinstance(resumed, StartTask)
    return resumed.task.done_iterations


def test_a_first_start_and_other_actions_stay_as_they_are() -> None:
    for action in (START, Stop(replica_id="a")):
        assert Progress().resumed(action) == action


@pytest.mark.parametrize(("read", "begins"), [(40.0, 40.0), (3.0, 5.0)])
def test_a_restart_begins_where_it_was_last_read_or_is_commanded(
    read: float, begins: float
) -> None:
    progress = Progress()
    progress.note((a_reading(read),), COMMAND)
    # Even if it is gone since.
    progress.note((), COMMAND)
    assert begins_at(progress) == begins
    # What is commanded no more is forgotten.
    progress.note((), None)
    assert begins_at(progress) == 5.0


def test_a_restarted_agent_goes_on_from_what_was_last_read(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.note((a_reading(40.0),), COMMAND)
    progress.note((a_reading(41.5),), COMMAND)
    assert begins_at(Progress(tmp_path)) == 41.5
    Progress(tmp_path).note((), None)
    assert begins_at(Progress(tmp_path)) == 5.0


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"nightly": "far"}', b"\xff"])
def test_a_damaged_file_costs_progress_and_nothing_else(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    progress = Progress(tmp_path)
    assert begins_at(progress) == 5.0
    progress.note((a_reading(40.0),), COMMAND)
    assert begins_at(Progress(tmp_path)) == 40.0


def test_progress_survives_without_a_directory(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "gone")
    progress.note((a_reading(40.0),), COMMAND)
    assert begins_at(progress) == 40.0
