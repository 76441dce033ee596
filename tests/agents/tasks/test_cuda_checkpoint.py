"""Moving several processes by a fake `cuda-checkpoint`, also on from where a killed agent left them."""

import os
from pathlib import Path

import pytest

from agents.base.device import DeviceError, NotSupported
from agents.tasks.swap import CudaCheckpoint
from tests.agents.fakes.replicas import in_loop

FAKES = Path(__file__).parents[1] / "fakes"
PIDS = (11, 12, 13)
"""Of which the last never uses CUDA. The fake program only knows files of that name."""


class Node:
    """What the program is told of processes, and says of them."""

    def __init__(self, folder: Path, *states: str) -> None:
        self._folder = folder
        for pid, state in zip(PIDS, states, strict=False):
            (folder / str(pid)).write_text(state)
        path = f"{FAKES}:{os.environ['PATH']}"
        self.checkpoint = CudaCheckpoint(
            {**os.environ, "PATH": path, "CUDA_FAKE_DIR": str(folder)}
        )

    def refuse(self, action: str) -> None:
        (self._folder / "refuse").write_text(action)

    def states(self) -> list[str]:
        return [(self._folder / str(pid)).read_text() for pid in PIDS[:2]]


@pytest.mark.parametrize(
    "left",
    ["running running", "locked running", "locked locked", "checkpointed locked"],
)
@in_loop
async def test_an_offload_goes_on_from_where_a_killed_one_stopped(
    tmp_path: Path, left: str
) -> None:
    node = Node(tmp_path, *left.split())
    # Memory of one of them is still on the GPU.
    assert not await node.checkpoint.is_away(PIDS)
    await node.checkpoint.offload(PIDS)
    assert node.states() == ["checkpointed", "checkpointed"]
    assert await node.checkpoint.is_away(PIDS)


@pytest.mark.parametrize(
    "left", ["checkpointed checkpointed", "locked checkpointed", "running locked"]
)
@in_loop
async def test_a_resume_goes_on_from_where_a_killed_one_stopped(
    tmp_path: Path, left: str
) -> None:
    node = Node(tmp_path, *left.split())
    for _ in range(2):
        # Asked again it changes nothing.
        await node.checkpoint.resume(PIDS)
        assert node.states() == ["running", "running"]


@in_loop
async def test_where_locking_is_refused_nothing_stays_locked(tmp_path: Path) -> None:
    node = Node(tmp_path, "running", "running")
    node.refuse("lock")
    with pytest.raises(NotSupported, match="operation not supported"):
        await node.checkpoint.offload(PIDS)
    assert node.states() == ["running", "running"]


@in_loop
async def test_a_half_moved_process_is_not_as_it_was(tmp_path: Path) -> None:
    node = Node(tmp_path, "checkpointed", "running")
    node.refuse("lock")
    with pytest.raises(DeviceError, match="are swapped out already") as raised:
        await node.checkpoint.offload(PIDS)
    # It must not be taken for one that runs on.
    assert not isinstance(raised.value, NotSupported)
    node = Node(tmp_path)
    (tmp_path / "11").unlink()
    (tmp_path / "12").unlink()
    with pytest.raises(DeviceError, match=r"in none of the processes \(11, 12, 13\)"):
        await node.checkpoint.resume(PIDS)


@in_loop
async def test_without_the_program_the_processes_run_on(tmp_path: Path) -> None:
    nothing = CudaCheckpoint({"PATH": str(tmp_path)})
    assert not await nothing.is_away(PIDS)
    with pytest.raises(NotSupported, match="cuda-checkpoint is not in PATH"):
        await nothing.offload(PIDS)
