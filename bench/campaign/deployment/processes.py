"""Processes that are started again whenever they are gone, as a service manager does, and work next to others."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

from app.postgres import server as postgres
from app.postgres.files import DataDirLayout

LOOK_S = 0.02
Result = TypeVar("Result")


@asynccontextmanager
async def beside(
    work: Coroutine[None, None, Result],
) -> AsyncIterator["asyncio.Task[Result]"]:
    """Let it run while the block does, at whose end it is cancelled; raises what it failed with."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
    # Work that ended too soon must not look like work that was done.
    if not task.cancelled():
        task.result()


class Kept(Protocol):
    """What may be killed at any time and is started again."""

    def kill(self) -> bool:
        """kill -9; False: it was dead already."""
        ...

    async def keep(self) -> None:
        """Start it whenever it is gone, until cancelled."""
        ...


@dataclass(slots=True, kw_only=True)
class Program:
    """A Python process."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    before: Sequence[str] = ()
    """What starts it somewhere else, such as on another host."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The newest process's, alive or not; 0 = there was none."""
        return 0 if self.process is None else self.process.pid

    def start(self) -> None:
        """A new process; what it prints is added to the log."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.before, sys.executable, *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
            )

    def kill(self) -> bool:
        """kill -9; False: it was dead already."""
        return self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> bool:
        """Any signal; False: it was dead already."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.send_signal(number)
        return True

    def kill_child(self) -> bool:
        """kill -9 of a worker of it; False: it has none now."""
        workers = [each for each in self._children() if _is_worker(each)]
        for worker in workers[:1]:
            worker.kill()
        return bool(workers)

    def _children(self) -> list[psutil.Process]:
        if self.process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    async def keep(self) -> None:
        """Start it whenever it is gone; the end kills it."""
        try:
            while True:
                if self.process is None or self.process.poll() is not None:
                    self.start()
                await asyncio.sleep(LOOK_S)
        finally:
            self.kill()
            if self.process is not None:
                self.process.wait()


def _is_worker(process: psutil.Process) -> bool:
    """Whether it is a process that works for its parent; multiprocessing's tracker of resources does not."""
    with contextlib.suppress(psutil.Error):
        return "spawn_main" in " ".join(process.cmdline())
    return False


@dataclass(slots=True, kw_only=True)
class Database:
    """The embedded PostgreSQL."""

    server: postgres.Server
    bin_dir: Path | None = None
    """Of programs to start it by; None: those that are found."""

    def kill(self) -> bool:
        """kill -9 of the server and all its backends; False: it was dead already."""
        pid = DataDirLayout(root=self.server.data_dir).postmaster_pid()
        if pid is None or not psutil.pid_exists(pid):
            return False
        # Backends outlive their postmaster by a moment, in which they could commit as if nothing had happened.
        with contextlib.suppress(psutil.NoSuchProcess):
            backends = psutil.Process(pid).children()
            os.kill(pid, signal.SIGKILL)
            for backend in backends:
                with contextlib.suppress(psutil.NoSuchProcess):
                    backend.kill()
            return True
        return False

    def start(self) -> None:
        """Attach to it or start it. Raises PostgresError."""
        postgres.start(self.server.data_dir, bin_dir=self.bin_dir)

    async def keep(self) -> None:
        """Start it whenever it is gone."""
        while True:
            # A start that is killed in turn fails, and the next one follows.
            with contextlib.suppress(postgres.PostgresError):
                await asyncio.to_thread(self.start)
            await asyncio.sleep(LOOK_S)
