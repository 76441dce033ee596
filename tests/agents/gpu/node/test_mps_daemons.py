"""Daemons of MPS that are kept up apart from the agent, against the fake control program."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.gpu.mps.daemon import Mps, MpsSettings
from agents.gpu.node import mps_daemons as command
from agents.gpu.node.mps_daemons import keep_up
from tests.ports import own_environment
from tests.waiting import PATIENCE_S, eventually, in_loop

FAKES = Path(__file__).parents[2] / "fakes"
OURS = MpsSettings(answer_s=PATIENCE_S, start_s=PATIENCE_S, quit_s=1.0, poll_s=0.1)
AGENTS = replace(OURS, keeps_daemon=False)


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not pytest's own directory: its path may be longer than a socket's may be.
    with tempfile.TemporaryDirectory(prefix="mps") as made:
        yield Path(made)


def make_mps(directory: Path, settings: MpsSettings) -> Mps:
    path = f"{FAKES}:{os.environ['PATH']}"
    environment = {**own_environment("CUDA_", "FAKE_"), "PATH": path}
    return Mps(
        f"GPU-{os.getpid()}p-kept",
        directory,
        environment=environment,
        settings=settings,
    )


@in_loop
async def test_a_daemon_that_dies_is_started_again_until_a_signal(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(command, "LOOK_S", 0.1)
    monkeypatch.setattr(command, "DRAIN_S", 0.1)
    mps = make_mps(directory, OURS)
    keeping = asyncio.create_task(keep_up([mps]))
    # Each question to a daemon is a process: its file is asked instead.
    file = mps.directory.pipe / "nvidia-cuda-mps-control.pid"
    await eventually(lambda: keeping.done() or "daemon of GPU" in caplog.text)
    first = file.read_text()
    os.kill(int(first), signal.SIGKILL)
    await eventually(lambda: keeping.done() or file.read_text() not in ("", first))
    os.kill(os.getpid(), signal.SIGTERM)
    await keeping
    assert not await mps.is_alive()


@in_loop
async def test_an_agent_whose_daemons_others_keep_neither_starts_nor_ends_them(
    directory: Path,
) -> None:
    ours, agents = make_mps(directory, OURS), make_mps(directory, AGENTS)
    with pytest.raises(LaunchFailed, match="does the Pod of DaemonSet plimsoll-mps"):
        await agents.start()
    await ours.start()
    await agents.start()
    await agents.stop(0.0)
    assert await ours.is_alive()
    await ours.stop(0.0)
