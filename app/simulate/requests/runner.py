"""Runs what waits, one simulation at a time for all control planes of a database, in a process next to the API.

The row is held by a lease that is renewed every second with how far it is. A row that is no longer ours (it was
cancelled, or the lease was lost while the database did not answer) ends the process. A runner that ends gives its row
back; of one that is killed the lease runs out, and the next runner takes the row up again.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from app.base.clock import ControlClock
from app.base.errors import Unavailable
from app.db.base.transaction import Engine, transaction
from app.db.decisions import simulations
from app.db.decisions.simulations import Claimed, Reports
from app.simulate.requests.examples import folder
from app.solver.parent import exit_with_parent
from solvers.types.state import Json

if TYPE_CHECKING:
    from app.simulate.requests.run import Message

log = structlog.get_logger(__name__)

# All periods of this module are of the wall's clock: a simulated one has its own.
RETRY_S = 5.0
JOIN_S = 5.0

Body = Callable[[Connection, Mapping[str, Json], Path], None]
"""What the process runs; must be picklable."""


def _work(pipe: Connection, document: Mapping[str, Json], folder: Path) -> None:
    # First of all: a process whose parent is gone must not compute on for half an hour.
    exit_with_parent()
    # Ticks, requests and the solvers of both go first: next to a process of low priority agents still waited.
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        # Some sandboxes have no such policy.
        os.nice(19)
    # Loaded by the process that simulates, and not by every API.
    from app.simulate.requests.run import work

    work(pipe, document, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPeriods:
    """How long things take."""

    look_s: float = 1.0
    """From one look for work to the next."""
    beat_s: float = 1.0
    """From one renewal of the lease to the next."""
    lease_s: float = 20.0
    limit_s: float = 1800.0
    """One simulation may take so long."""


class SimulationRunner:
    """Looks for work for as long as the API runs."""

    def __init__(
        self,
        engine: Engine,
        clock: ControlClock,
        *,
        pace: RunnerPeriods | None = None,
        body: Body = _work,
    ) -> None:
        self._engine, self._clock = engine, clock
        self._pace, self._body = pace or RunnerPeriods(), body
        # Unique for each start: a row that an earlier process of this machine held is not ours.
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; call once, inside a running event loop."""
        self._task = asyncio.create_task(self._run(), name="plimsoll-simulations")

    async def stop(self) -> None:
        """End; a simulation that runs is ended, too, and waits for the next runner."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        # Where the database does not answer, the lease does it.
        with contextlib.suppress(Exception):
            async with transaction(self._engine) as connection:
                await simulations.give_back(connection, self._name)

    async def _run(self) -> None:
        while True:
            pause_s = self._pace.look_s
            try:
                if await self.run_next():
                    continue
            except Exception as error:
                # The database may not answer, or not be there yet; /readyz says so, and nothing else needs this.
                log.warning("no simulation can be run", error=str(error))
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)

    async def run_next(self) -> bool:
        """Run the oldest that waits, to its end; False: there was none, or one runs elsewhere."""
        async with transaction(self._engine) as connection:
            # Asked every second by every control plane, so without a lock first.
            if not await simulations.is_work(connection):
                return False
            lease_s = self._pace.lease_s
            claimed = await simulations.claim(
                connection,
                self._name,
                lease_s=lease_s,
                at=self._clock.now(),
            )
        if claimed is None:
            return False
        outcome = await self._outcome(claimed)
        if outcome is not None:
            async with transaction(self._engine) as connection:
                await simulations.finish(
                    connection, claimed.id, self._name, outcome, at=self._clock.now()
                )
        return True

    async def _outcome(self, claimed: Claimed) -> Reports | str | None:
        """What it came to, or why it failed; None: it is not ours any more."""
        try:
            async with (
                asyncio.timeout(self._pace.limit_s),
                _process(self._body, claimed.document) as (pipe, process),
            ):
                return await self._followed(claimed, pipe, process)
        except TimeoutError:
            minutes = self._pace.limit_s / 60.0
            return f"it was ended after {minutes:g} min; ask for a shorter one, or run it by `plimsoll simulate`"

    async def _followed(
        self,
        claimed: Claimed,
        pipe: Connection,
        process: multiprocessing.process.BaseProcess,
    ) -> Reports | str | None:
        loop = asyncio.get_running_loop()
        # The lease is renewed by the clock, not by messages: a long step of a simulation sends none.
        progress = 0.0
        due_s = loop.time() + self._pace.beat_s
        while True:
            if await _is_readable(pipe, due_s - loop.time()):
                message = await asyncio.to_thread(_receive, pipe, process)
                if not isinstance(message, float):
                    return message
                progress = message
            if loop.time() >= due_s:
                if not await self._renew(claimed, progress):
                    return None
                due_s = loop.time() + self._pace.beat_s

    async def _renew(self, claimed: Claimed, progress: float) -> bool:
        """Whether it is still ours; while the database does not answer, no other process can take it."""
        lease_s = self._pace.lease_s
        try:
            async with transaction(self._engine) as connection:
                return await simulations.renew(
                    connection,
                    claimed.id,
                    self._name,
                    progress=progress,
                    lease_s=lease_s,
                )
        except Unavailable:
            return True


@asynccontextmanager
async def _process(
    body: Body, document: Json
) -> AsyncIterator[tuple[Connection, multiprocessing.process.BaseProcess]]:
    """The process and the pipe that it tells by; nothing is left of it afterwards."""
    # Not forked: this process has threads and connections that a copy must not use.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_main,
        args=(theirs, body, folder()),
        daemon=True,
        name="plimsoll-simulation",
    )
    process.start()
    theirs.close()
    # By the pipe, in a thread: a long scenario is taken only seconds after the start, and by a process that dies never.
    sending = asyncio.create_task(asyncio.to_thread(ours.send, document))
    try:
        yield ours, process
    finally:
        # Killed in any case, since it may hang; one that ended by itself is gone already.
        process.kill()
        await asyncio.to_thread(process.join, JOIN_S)
        with contextlib.suppress(OSError):
            await sending
        ours.close()


def _main(pipe: Connection, body: Body, folder: Path) -> None:
    body(pipe, pipe.recv(), folder)


async def _is_readable(pipe: Connection, within_s: float) -> bool:
    """Whether a message, or the end of all, comes within that time; no thread waits for it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(pipe.fileno(), ready.set)
    try:
        async with asyncio.timeout(max(0.0, within_s)):
            await ready.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pipe.fileno())
    return True


def _receive(
    pipe: Connection, process: multiprocessing.process.BaseProcess
) -> "Message":
    """The next message, or how the process ended without another; a long one takes as long as the process writes."""
    try:
        message: Message = pipe.recv()
    except (EOFError, OSError):
        # The pipe closes a moment before the exit code is known.
        process.join(JOIN_S)
        return _death(process.exitcode or 0)
    return message


def _death(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return (
            "its process was killed, perhaps for want of memory; ask for a smaller one"
        )
    if exit_code < 0:
        return f"its process was ended by {signal.Signals(-exit_code).name}; ask again"
    return f"its process ended by itself with exit code {exit_code}; the control plane's log has more"
