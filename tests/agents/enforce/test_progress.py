"""A task that has to be started again goes on from where it was."""

from pathlib import Path

import pytest

from agents.base.protocol import GpuCommand, NodeCommand, TaskCommand, TaskReading
from agents.enforce.actions import StartTask, Stop
from agents.enforce.progress import FILE, Progress

TASK = TaskCommand(
    name="nightly",
    kind="training",
    network="train",
    batch=64,
    sm_percent=20.0,
    memory_mib=1.0,
    iterations=100,
    done_iterations=5.0,
)
START = StartTask(gpu_index=0, task=TASK)
GPU = GpuCommand(
    index=0, gpu_type="fast", clock_mhz=1000.0, power_cap_w=1.0, tasks=(TASK,)
)
COMMAND = NodeCommand(node="n1", generation=1, gpus=(GPU,))


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


def test_a_first_start_begins_where_it_is_commanded() -> None:
    assert Progress().resumed(START) == START


def test_a_restart_begins_where_it_was_last_read_even_if_it_is_gone_since() -> None:
    progress = Progress()
    progress.note((a_reading(40.0),), COMMAND)
    progress.note((), COMMAND)
    assert begins_at(progress) == 40.0


def test_a_newer_command_that_is_farther_counts() -> None:
    progress = Progress()
    progress.note((a_reading(3.0),), COMMAND)
    assert begins_at(progress) == 5.0


def test_what_is_commanded_no_more_is_forgotten() -> None:
    progress = Progress()
    progress.note((a_reading(40.0),), COMMAND)
    progress.note((), None)
    assert begins_at(progress) == 5.0


def test_other_actions_stay_as_they_are() -> None:
    assert Progress().resumed(Stop(replica_id="a")) == Stop(replica_id="a")


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
