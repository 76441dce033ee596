"""A machine with the fake MPS, its daemons and their clients: real processes, sockets and files."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from agents.gpu.mps.daemon import Mps, MpsSettings
from tests.ports import own_environment
from tests.waiting import PATIENCE_S, run

FAKES = Path(__file__).parents[2] / "fakes"
GPU, OTHER_GPU = (f"GPU-{os.getpid()}p-{name}" for name in ("mps", "other"))
"""Of this process alone: daemons of tests that run elsewhere are somebody else's."""
TOTAL_SMS = 132
PATIENT = MpsSettings(
    answer_s=PATIENCE_S,
    start_s=PATIENCE_S,
    quit_s=1.0,
    recover_s=PATIENCE_S,
    poll_s=0.1,
)
IMPATIENT = MpsSettings(
    answer_s=PATIENCE_S, start_s=0.5, quit_s=1.0, recover_s=0.5, poll_s=0.1
)


class Client:
    """A process that joins MPS and lives until it is told to go."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FAKES / "mps_client.py"), str(TOTAL_SMS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> dict[str, object]:
        """What it says next."""
        assert self.process.stdout is not None
        said: dict[str, object] = json.loads(self.process.stdout.readline())
        return said

    def go(self) -> None:
        """End as a drained replica does."""
        self.process.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


class Node:
    """A machine with the fake MPS; nothing of it outlives the test."""

    def __init__(self, directory: Path, at_exit: ExitStack) -> None:
        self.directory = directory
        self.at_exit = at_exit
        self.environment = {
            **own_environment("CUDA_", "FAKE_"),
            "PATH": f"{FAKES}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def mps(
        self,
        settings: MpsSettings = PATIENT,
        *,
        gpu: str = GPU,
        place: str = "0",
        **environment: str,
    ) -> Mps:
        path = self.directory / place
        made = Mps(
            gpu,
            path,
            environment={**self.environment, **environment},
            settings=settings,
        )
        self.at_exit.callback(self.end, made)
        return made

    def started(self, **environment: str) -> Mps:
        """One whose daemon runs."""
        mps = self.mps(**environment)
        run(mps.start())
        return mps

    def client(self, mps: Mps, sm_percent: float = 40.0, **environment: str) -> Client:
        share = mps.client_environment(sm_percent, 12288.0, False)
        started = Client({**self.environment, **share, **environment})
        self.at_exit.callback(started.kill)
        return started

    def joined(self, mps: Mps, sm_percent: float = 40.0) -> Client:
        """A client that has joined."""
        client = self.client(mps, sm_percent)
        assert client.hear()["is_under_mps"] is True
        return client

    def say(self, mps: Mps, command: str) -> str:
        """Give the daemon a command behind the agent's back."""
        done = subprocess.run(
            [str(FAKES / "nvidia-cuda-mps-control")],
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={
                **self.environment,
                "CUDA_MPS_PIPE_DIRECTORY": str(mps.directory.pipe),
            },
        )
        return done.stdout.strip()

    def with_server(self, script: str) -> str:
        """A PATH with another server in it."""
        program = self.directory / "bin" / "nvidia-cuda-mps-server"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return f"{program.parent}:{self.environment['PATH']}"

    def end(self, mps: Mps) -> None:
        """End the daemon, whatever the test has done to it."""
        if pid := daemon_pid(mps):
            os.kill(pid, signal.SIGKILL)


def daemon_pid(mps: Mps) -> int:
    """The daemon's process, 0 without one."""
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            is_daemon = any(
                word.endswith("nvidia-cuda-mps-control") for word in each.cmdline()
            )
            if is_daemon and each.environ().get("CUDA_MPS_PIPE_DIRECTORY") == str(
                mps.directory.pipe
            ):
                return each.pid
    return 0


def logged(mps: Mps) -> str:
    return (mps.directory.log / "control.log").read_text()


@contextmanager
def a_node() -> Iterator[Node]:
    # Not pytest's own directory: its path may be longer than a socket's may be.
    with tempfile.TemporaryDirectory(prefix="mps") as directory, ExitStack() as at_exit:
        yield Node(Path(directory), at_exit)
