"""One worker's processes: started so that no record is ever missing, watched, adopted, ended in the right order.

    WorkerProcess.start(Spawn, record)      -> a process of its own session; `record(identity)` is called before it
                                               runs a single instruction of the worker
    WorkerProcess.adopt(identity, mark)     -> the process of an earlier agent, or None when it is gone
        .wait()                             returns when the worker has ended; `.how` then says how, in words
        .members()                          ids of all processes of the worker
        .end(Ending)                        SIGTERM, grace, MPS lets go of it, SIGKILL; says what survived
    end_left_over(mark, Ending)             the same for what a worker left behind whose own process is gone

The child first waits at a gate: a pipe that this process opens when the record is durable. If the agent dies before
that, the pipe closes and the child leaves. The worker then takes the child's place by exec, with the same process id
and start time. Signals go through a pidfd, so they cannot reach a process that inherited the number.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from agents.base.device import DeviceError, LaunchFailed
from agents.processes.procfs import MARK, WorkerSearch, identity_of, is_alive, members
from agents.processes.records import Identity
from agents.processes.user import WorkerUser

TerminateOnGpu: TypeAlias = Callable[[int, tuple[int, ...]], Awaitable[bool]]

HOST = "127.0.0.1"
"""Workers listen here only; requests come through the router."""
TERMINATE_LIMIT_S = 10.0
KILL_LIMIT_S = 10.0
LOOK_S = 0.05

_SHELL = "/bin/sh"
_GATE = 'read -r go && [ "$go" = go ] || exit 75; exec "$@" </dev/null'
"""A shell and not Python: its user need not be able to read the agent's installation, and it is there in 1 ms."""

Terminate: TypeAlias = Callable[[tuple[int, ...]], Awaitable[bool]]
"""(process ids) → whether MPS has let go of all of them, so that SIGKILL does no harm to the GPU's other clients."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """What is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole of it."""
    directory: Path
    log: Path
    mark: str
    user: WorkerUser | None = None
    """None: the agent's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker is ended."""

    grace_s: float
    """From SIGTERM to harder ways."""
    terminate: Terminate
    kill_limit_s: float = KILL_LIMIT_S
    """That the kernel gets for SIGKILL."""


class WorkerProcess:
    """The processes of one worker: its own, and what that has started."""

    def __init__(self, identity: Identity, mark: str, handle: int) -> None:
        """`handle`: a pidfd of the process; made by `start` and `adopt`."""
        self.identity = identity
        self.how = ""
        self.exit_code: int | None = None
        """Negative: the signal that ended it; None = it runs, or how it ended is not known."""
        self._mark = mark
        self._handle = handle
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, self._note_end)

    @classmethod
    def start(cls, spawn: Spawn, record: Callable[[Identity], None]) -> Self:
        """Start a worker. Raises LaunchFailed, or what `record` raises; then nothing runs."""
        environment, user = {**spawn.environment, MARK: spawn.mark}, spawn.user
        with contextlib.ExitStack() as stack:
            inner, outer = os.pipe()
            gate = stack.enter_context(os.fdopen(outer, "wb", buffering=0))
            stack.callback(os.close, inner)
            try:
                output = os.open(
                    spawn.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
                )
                stack.callback(os.close, output)
                child = subprocess.Popen(
                    (_SHELL, "-c", _GATE, _SHELL, *spawn.command),
                    stdin=inner,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=spawn.directory,
                    env=environment,
                    # A session of its own: its children are found by it, and a Ctrl-C at the agent's terminal
                    # does not reach them.
                    start_new_session=True,
                    user=None if user is None else user.uid,
                    group=None if user is None else user.gid,
                    extra_groups=None if user is None else user.groups,
                    # What it writes is for itself, and -1 leaves the mask as it is.
                    umask=-1 if user is None else 0o077,
                )
            except (OSError, ValueError) as error:
                raise LaunchFailed(
                    f"{spawn.command[0]} cannot be started: {error}"
                ) from error
            # It is waited for by its pidfd, for which it does not matter who started it; Popen must not reap it.
            child.returncode = 0
            handle = os.pidfd_open(child.pid)
            process = cls(identity_of(child.pid), spawn.mark, handle)
            try:
                record(process.identity)
                # Only now may the worker run: from here on a dead agent's successor finds it by its record.
                gate.write(b"go\n")
            except BaseException:
                gate.close()  # so the child leaves
                process.abandon()
                os.waitid(os.P_PID, child.pid, os.WEXITED)
                raise
        return process

    @classmethod
    def adopt(cls, identity: Identity, mark: str) -> Self | None:
        """The recorded process if it still is that very one."""
        try:
            handle = os.pidfd_open(identity.pid)
        except OSError:
            return None
        # The handle holds what has the number now; only then is it looked at who that is.
        if is_alive(identity):
            return cls(identity, mark, handle)
        os.close(handle)
        return None

    @property
    def host(self) -> str:
        """Where its ports are."""
        return HOST

    @property
    def pid(self) -> int:
        """The worker's own process."""
        return self.identity.pid

    @property
    def pending(self) -> str:
        """What keeps it from running: nothing."""
        return ""

    async def placed(self) -> None:
        """It is where it will be."""

    @property
    def has_ended(self) -> bool:
        """Whether the worker's own process has ended; processes that it started may be left."""
        return self._ended.is_set()

    async def wait(self) -> str:
        """Return when the worker's own process has ended: how."""
        await self._ended.wait()
        return self.how

    def members(self) -> tuple[int, ...]:
        """All living processes of the worker."""
        return members(self._mark, self.identity)

    def tell(self, number: int) -> None:
        """Send its own process a signal; nothing when it has ended."""
        if not self.has_ended:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, number)

    async def end(self, ending: Ending) -> str:
        """End all of them: what is left, in words; empty: nothing. May be called again, also after a cancelled call."""
        self.tell(signal.SIGTERM)
        if not self.has_ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ending.grace_s):
                    await self._ended.wait()
        is_gone = await _kill(
            WorkerSearch(mark=self._mark, leader=self.identity), ending
        )
        if is_gone:
            self._reap()
            return ""
        return unkillable(self.members())

    def abandon(self) -> None:
        """Stop watching; the processes go on."""
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1

    def _note_end(self) -> None:
        """The pidfd says that the process has ended. It stays unreaped, and so its number stays taken, until all that
        it left behind is gone too."""
        asyncio.get_running_loop().remove_reader(self._handle)
        try:
            # WNOWAIT leaves the process unreaped, so that its number is not given to another one.
            result = os.waitid(
                os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG | os.WNOWAIT
            )
        except ChildProcessError:
            result = None
        self.how = "it ended; how is unknown, as an earlier agent had started it"
        if result is not None:
            self.exit_code = (
                result.si_status
                if result.si_code == os.CLD_EXITED
                else -result.si_status
            )
            self.how = exit_reason(self.exit_code)
        self._ended.set()

    def _reap(self) -> None:
        if self._handle >= 0 and self.has_ended:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG)
            self.abandon()


async def end_left_over(mark: str, ending: Ending) -> bool:
    """End what a worker left behind whose own process is gone; whether nothing is left."""
    return await _kill(WorkerSearch(mark=mark), ending)


async def _kill(search: "WorkerSearch", ending: Ending) -> bool:
    """Let MPS go of whatever is left, then SIGKILL it."""
    # Looking through all processes takes a while on a large node, and requests are routed meanwhile.
    left = await asyncio.to_thread(search.all)
    if not left:
        return True
    is_free = False
    try:
        async with asyncio.timeout(TERMINATE_LIMIT_S):
            is_free = await ending.terminate(left)
    except (TimeoutError, DeviceError) as error:
        log.warning("MPS was asked to release processes %s: %s", left, error)
    if not is_free:
        log.warning("MPS did not release processes %s; they are killed anyway", left)
    until_s = asyncio.get_running_loop().time() + ending.kill_limit_s
    while (
        left := await asyncio.to_thread(search.all)
    ) and asyncio.get_running_loop().time() < until_s:
        for pid in left:
            _kill_one(pid, search)
        await asyncio.sleep(LOOK_S)
    return not left


def _kill_one(pid: int, search: "WorkerSearch") -> None:
    """SIGKILL for a process that still is searched for when no other can get its number any more."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            # Asked again with the handle open: the number may have passed to another process since the search.
            if search.has(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def unkillable(pids: tuple[int, ...]) -> str:
    """What is said of processes that are left."""
    return f"processes {pids} did not end after SIGKILL; the GPU may need a reset"


def exit_reason(code: int) -> str:
    """What an exit code says; negative: the signal that ended the process."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        reason = _SIGNALS.get(-code, "")
        return (
            f"it was ended by signal {-code} ({name}){f': {reason}' if reason else ''}"
        )
    reason = _EXITS.get(code, "")
    return f"it ended with exit code {code}{f': {reason}' if reason else ''}"


_SIGNALS = {
    int(
        signal.SIGKILL
    ): "it was killed, often by the kernel because memory ran out; see `dmesg`",
    int(signal.SIGSEGV): "it crashed on an invalid memory access",
    int(signal.SIGABRT): "it aborted, often after a failed check or a CUDA error",
    int(
        signal.SIGBUS
    ): "it crashed on memory that was not available, often because /dev/shm is full",
    int(signal.SIGTERM): "it was asked to stop",
}
_EXITS = {
    0: "it stopped by itself although it should serve",
    1: "it failed; see its log",
    2: "its arguments are wrong; compare the template with the program's options",
    75: "the agent died while it started it",
    126: "the program is not executable",
    127: "the program was not found",
}
