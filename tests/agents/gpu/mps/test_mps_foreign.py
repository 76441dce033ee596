"""Somebody else's MPS: found, named with its PID, never ended; the GPU goes by turns."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from agents.gpu.mps.daemon import Mps
from agents.gpu.mps.foreign import DEFAULT_PIPE, MpsProcess, mps_processes, why_foreign
from agents.gpu.mps.gpu_sharing import ByTurns, make_sharing
from agents.gpu.nvml.types import GpuIdentity
from tests.agents.factories import a_replica
from tests.agents.gpu_nodes import environment
from tests.waiting import in_loop, until

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
        (a_process(visible="0,1"), True),  # numbers: it is unknown whose
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


@pytest.fixture
def gpu() -> GpuIdentity:
    return GpuIdentity(index=0, uuid=f"GPU-{uuid4()}", name="T4", memory_mib=16384.0)


@contextmanager
def running(name: str, gpu: GpuIdentity, folder: Path) -> Iterator[int]:
    """The PID of a real process of that name and their settings, on a GPU that no other test has."""
    program = folder / name
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    own = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "theirs"),
    }
    with subprocess.Popen([program, "300"], env=own) as process:
        # It runs before the kernel tells its command line to others.
        until(Path(f"/proc/{process.pid}/cmdline").read_bytes)
        yield process.pid
        assert process.poll() is None, "nothing ended it"
        process.kill()


@pytest.fixture
def daemon(tmp_path: Path, gpu: GpuIdentity) -> Iterator[int]:
    with running("nvidia-cuda-mps-control", gpu, tmp_path) as pid:
        yield pid


def test_a_running_one_is_found_with_its_settings(
    daemon: int, gpu: GpuIdentity, tmp_path: Path
) -> None:
    # Its name and environment are there a moment after it is.
    (found,) = until(
        lambda: [each for each in mps_processes() if each.visible == gpu.uuid]
    )
    assert (found.pid, found.uid, found.pipe) == (
        daemon,
        os.getuid(),
        str(tmp_path / "theirs"),
    )


def test_what_gives_a_daemon_commands_is_none(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    pipe = subprocess.PIPE
    with subprocess.Popen([program], env={}, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"ps\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ps\n", "it runs"
        assert process.pid not in {each.pid for each in mps_processes()}


def test_one_in_the_middle_of_a_start_is_never_taken_for_one_without_settings(
    gpu: GpuIdentity, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy("/bin/sh", program)
    # It starts itself in its own place, which leaves it without an environment for a moment each time.
    again = '[ "$1" -gt 0 ] && exec "$0" -c "$2" "$0" $(($1 - 1)) "$2"'
    own = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "CUDA_MPS_PIPE_DIRECTORY": "/theirs"}
    seen = set()
    with subprocess.Popen([program, "-c", again, program, "1000", again], env=own) as p:
        while p.poll() is None:
            found = [each for each in mps_processes() if each.pid == p.pid]
            seen.update((each.visible, each.pipe) for each in found)
    assert seen <= {(gpu.uuid, "/theirs")}


def test_one_without_any_settings_is_in_the_usual_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another name: under its own, other tests would find it on their GPUs.
    program = tmp_path / "without-settings"
    monkeypatch.setattr("agents.gpu.mps.foreign.PROGRAM_PREFIX", program.name[:15])
    shutil.copy("/bin/sh", program)
    pipe = subprocess.PIPE
    with subprocess.Popen([program, "-c", "read _"], env={}, stdin=pipe) as process:
        until(lambda: process.pid in {each.pid for each in mps_processes()})
        (found,) = (each for each in mps_processes() if each.pid == process.pid)
        assert (found.pipe, found.visible) == ("/tmp/nvidia-mps", None)
        process.kill()


@in_loop
async def test_the_gpu_goes_by_turns_without_mps_and_the_daemon_lives(
    daemon: int, gpu: GpuIdentity, tmp_path: Path
) -> None:
    def make_mps(uuid: str, place: Path) -> Mps:
        return Mps(uuid, place, environment=environment())

    sharing = await make_sharing(gpu, tmp_path / "m", total_sms=40, make_mps=make_mps)
    assert isinstance(sharing, ByTurns) and f"process {daemon}" in sharing.problem
    given = await sharing.environment(a_replica("r1"))
    assert given["CUDA_MPS_PIPE_DIRECTORY"] == "/dev/null"


@in_loop
async def test_one_that_comes_later_keeps_new_replicas_from_starting(
    gpu: GpuIdentity, tmp_path: Path
) -> None:
    mps = Mps(gpu.uuid, tmp_path / "m", environment=environment())
    assert await mps.why_not() == ""
    with running("nvidia-cuda-mps-server", gpu, tmp_path) as pid:
        assert f"process {pid}" in await mps.why_not()
    assert await mps.why_not() == ""
