"""Somebody else's MPS: found, named with its PID, never ended; the GPU goes by turns."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agents.gpu.mps.daemon import Mps
from agents.gpu.mps.foreign import DEFAULT_PIPE, MpsProcess, mps_processes, why_foreign
from agents.gpu.mps.gpu_sharing import ByTurns, make_sharing
from agents.gpu.nvml.types import GpuIdentity
from tests.agents.factories import a_replica
from tests.agents.gpu_nodes import environment

OWN = Path("/run/plimsoll/0/pipe")


def a_process(
    pipe: str | None = DEFAULT_PIPE, visible: str | None = None
) -> MpsProcess:
    return MpsProcess(
        pid=4711, name="nvidia-cuda-mps-control", uid=1000, pipe=pipe, visible=visible
    )


@pytest.mark.parametrize(
    ("process", "is_foreign"),
    [
        (a_process(), True),  # the default directory, all GPUs
        (a_process(visible="0,1"), True),  # numbers: nobody knows whose
        (a_process(pipe="/tmp/other", visible="GPU-aaaa"), True),
        (a_process(pipe="/tmp/other", visible="GPU-bbbb, GPU-aa"), True),  # cut short
        (a_process(pipe=None), True),  # another user's, not readable
        (a_process(pipe="/tmp/other", visible="GPU-bbbb"), False),
        (a_process(pipe="/tmp/other", visible=""), False),  # no GPU at all
        (a_process(pipe=str(OWN), visible="GPU-aaaa"), False),
        (a_process(pipe=str(OWN)), False),
    ],
)
def test_whose_daemon_it_is(process: MpsProcess, is_foreign: bool) -> None:
    why = why_foreign("GPU-aaaa", OWN, [process])
    assert bool(why) == is_foreign
    assert ("process 4711 (nvidia-cuda-mps-control, UID 1000" in why) == is_foreign


def test_many_are_named_up_to_eight() -> None:
    assert why_foreign("GPU-aaaa", OWN, [a_process()] * 100).count("4711") == 8


@pytest.fixture
def gpu() -> GpuIdentity:
    return GpuIdentity(index=0, uuid=f"GPU-{uuid4()}", name="T4", memory_mib=16384.0)


@pytest.fixture
def daemon(tmp_path: Path, gpu: GpuIdentity) -> Iterator[subprocess.Popen[bytes]]:
    """A real process of that name and those settings, on a GPU that no other test has."""
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    own = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "theirs"),
    }
    with subprocess.Popen([program, "300"], env=own) as process:
        # It runs before the kernel tells its command line to others.
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        yield process
        process.kill()


def test_a_running_one_is_found_with_its_settings(
    daemon: "subprocess.Popen[bytes]", gpu: GpuIdentity, tmp_path: Path
) -> None:
    # Its name and environment are there a moment after it is.
    end_s = time.monotonic() + 30.0
    while not (mine := [each for each in mps_processes() if each.visible == gpu.uuid]):
        assert time.monotonic() < end_s
    (found,) = mine
    assert (found.pid, found.uid, found.pipe) == (
        daemon.pid,
        os.getuid(),
        str(tmp_path / "theirs"),
    )


def test_the_gpu_goes_by_turns_without_mps_and_the_daemon_lives(
    daemon: "subprocess.Popen[bytes]", gpu: GpuIdentity, tmp_path: Path
) -> None:
    async def scenario() -> None:
        sharing = await make_sharing(
            gpu,
            tmp_path / "m",
            total_sms=40,
            make_mps=lambda uuid, at: Mps(uuid, at, environment=environment()),
        )
        assert (
            isinstance(sharing, ByTurns) and f"process {daemon.pid}" in sharing.problem
        )
        given = await sharing.environment(a_replica("r1"))
        assert given["CUDA_MPS_PIPE_DIRECTORY"] == "/dev/null"

    asyncio.run(scenario())
    assert daemon.poll() is None


def test_one_that_comes_later_keeps_new_replicas_from_starting(
    gpu: GpuIdentity, tmp_path: Path
) -> None:
    mps = Mps(gpu.uuid, tmp_path / "m", environment=environment())
    assert asyncio.run(mps.why_not()) == ""
    program = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    own = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "theirs"),
    }
    with subprocess.Popen([program, "300"], env=own) as process:
        assert f"process {process.pid}" in asyncio.run(mps.why_not())
        process.kill()
    assert asyncio.run(mps.why_not()) == ""
