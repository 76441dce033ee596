"""HAProxy as a process: started, watched, started again when it dies, and ended, or adopted after a restart.

    server = ProxyServer(proxy, folder, restore)      `restore` puts the last table into one that was started again
    is_adopted = await server.open()
    await server.close(keep=…)

The process is one as replicas are (`agents.processes.process`): it waits at a gate until its record is on disk, is
found again by process id, start time and boot, and what carries its mark without a record is ended, so that none is
left unknown. `keep`: it goes on with its table for the next owner, which adopts it where it would write the
same configuration; else it finishes what it has for at most FINISH_S and ends. One that dies is started again, at once
where it had run for STEADY_S, else after 1 s, 2 s, … 30 s, and gets the last table.

With `mark` somebody else starts it, and starts it again whenever it ends: kubelet, in a Pod of its own, which the
agent's update leaves alone. Then it is found by that mark, and only its configuration and its tables come from here.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

from agents.base.backoff import delay_s
from agents.base.device import DeviceError
from agents.base.durable_files import replace_file
from agents.base.version import agent_version
from agents.base.waits import cancel
from agents.processes.process import Ending, Spawn, WorkerProcess, end_left_over
from agents.processes.procfs import find_leader
from agents.processes.records import Identity
from agents.router.haproxy.config import VERSION_VARIABLE
from agents.router.haproxy.state import HaProxyError, ProxyState

PLACES = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where it lies besides the PATH of users."""
START_LIMIT_S = 10.0
OTHERS_LIMIT_S, FIND_S = 120.0, 0.2
"""For somebody else to start it, and between two looks whether that has happened."""
FINISH_S = 30.0
"""For requests under way when HAProxy is ended."""
FIRST_RESTART_S, MAX_RESTART_S = 1.0, 30.0
STEADY_S = 10.0
"""One that had run for so long has recovered from its failures before."""

log = logging.getLogger(__name__)


class _Record(msgspec.Struct, frozen=True):
    """Which process it is."""

    identity: Identity
    mark: str


def find_program(path: str) -> str:
    """HAProxy's program in one of the folders of this PATH. Raises HaProxyError."""
    if (found := shutil.which("haproxy", path=path)) is None:
        raise HaProxyError(
            f"there is no program haproxy in {path}; install it (Debian's package haproxy)"
        )
    return found


async def end_earlier(folder: Path) -> None:
    """End the HAProxy that an earlier agent left, where this one carries requests itself. Raises HaProxyError."""
    if (record := _load(folder)) is not None:
        await _end_recorded(record)
        _record_path(folder).unlink()


class ConfiguredProxy(Protocol):
    """What is to be kept running."""

    @property
    def config_path(self) -> Path:
        """The file that it is started with."""
        ...

    @property
    def socket_path(self) -> Path:
        """Where it answers."""
        ...

    def config_text(self) -> str:
        """What that file must hold."""
        ...

    def write_config(self) -> None:
        """Write it and all that it names."""
        ...

    def state(self) -> ProxyState:
        """What it has. Raises HaProxyError where it does not answer."""
        ...


class ProxyServer:
    """See the module's docstring. `open` is called once, before everything else."""

    def __init__(
        self,
        proxy: ConfiguredProxy,
        folder: Path,
        restore: Callable[[], Awaitable[None]],
        *,
        mark: str = "",
    ) -> None:
        """`folder`: of its record and its log. `mark`: of one that somebody else keeps up; empty: this one does. Raises
        HaProxyError where the program is not installed."""
        self.is_up = False
        """Whether it has answered since it was started."""
        self._mark = mark
        self._program = (
            "" if mark else find_program(f"{os.environ.get('PATH', '')}:{PLACES}")
        )
        self._proxy = proxy
        self._folder = folder
        self._restore = restore
        self._process: WorkerProcess | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """HAProxy's process; 0 while there is none."""
        return (
            self._process.identity.pid
            if self._process is not None and not self._process.has_ended
            else 0
        )

    async def open(self) -> bool:
        """Whether an earlier one was taken over. Raises HaProxyError or OSError; then none of ours runs."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found, record = await self._find(), _load(self._folder)
        # Another configuration takes a new process: HAProxy reads it only when it starts.
        is_same = self._is_configured()
        if found is not None and is_same:
            self._process = found
            await self._until_it_answers()
            log.info("HAProxy (process %d) of an earlier start is taken over", self.pid)
        else:
            if self._mark:
                # Without a configuration it is only waiting for one.
                was_configured = self._proxy.config_path.exists()
                self._proxy.write_config()
                await self._finish(found if was_configured else None)
            elif record is not None:
                await _end_recorded(record)
            await self._start()
        self._watch = asyncio.create_task(self._keep_up())
        return found is not None and is_same

    async def close(self, *, keep: bool) -> None:
        """Let it run on for the next owner, or finish what it has and end."""
        await cancel(self._watch)
        if self._process is None:
            return
        if keep or self._mark:
            self._process.abandon()
            return
        await self._finish(self._process)
        _record_path(self._folder).unlink(missing_ok=True)

    async def _find(self) -> WorkerProcess | None:
        """One that runs already."""
        if self._mark:
            leader = await asyncio.to_thread(find_leader, self._mark)
            return None if leader is None else WorkerProcess.adopt(leader, self._mark)
        record = _load(self._folder)
        return (
            None
            if record is None
            else WorkerProcess.adopt(record.identity, record.mark)
        )

    async def _finish(self, process: WorkerProcess | None) -> None:
        """It takes no new connection, finishes what it has, and ends."""
        if process is not None:
            process.tell(signal.SIGUSR1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_S):
                    await process.wait()
            await process.end(_ENDING)

    async def _keep_up(self) -> None:
        """Start it again whenever it dies, and put the last table in force."""
        failures = 0
        while True:
            assert self._process is not None
            begun_s = time.monotonic()
            how = await self._process.wait()
            self.is_up = False
            failures, wait_s = pause(failures, ran_s=time.monotonic() - begun_s)
            log.error(
                "HAProxy has ended and will be restarted in %.0f s: %s", wait_s, how
            )
            await self._process.end(_ENDING)
            await asyncio.sleep(wait_s)
            try:
                await self._start()
                await self._restore()
            except (DeviceError, OSError) as error:
                # The caller that gives it its tables finds out that it has none, and gives it one.
                log.error("HAProxy could not be restarted with its tables: %s", error)

    async def _start(self) -> None:
        if self._mark:
            await self._until_started()
            return
        self._proxy.write_config()
        # A socket that a dead HAProxy left would keep the new one from binding it.
        self._proxy.socket_path.unlink(missing_ok=True)
        mark = secrets.token_hex(16)
        spawn = Spawn(
            command=(self._program, "-db", "-f", str(self._proxy.config_path)),
            environment={
                "PATH": os.environ.get("PATH", ""),
                VERSION_VARIABLE: agent_version(),
            },
            directory=self._folder,
            log=self._folder / "haproxy.log",
            mark=mark,
        )
        self._process = WorkerProcess.start(
            spawn, lambda identity: self._save(_Record(identity, mark))
        )
        await self._until_it_answers()
        log.info("HAProxy (process %d) runs", self.pid)

    async def _until_started(self) -> None:
        """Wait until its keeper has started it. Raises HaProxyError."""
        end_s = time.monotonic() + OTHERS_LIMIT_S
        while (found := await self._find()) is None:
            if time.monotonic() > end_s:
                raise HaProxyError(
                    f"no HAProxy has been started within {OTHERS_LIMIT_S:g} s; does the Pod of DaemonSet "
                    "plimsoll-router run on this node?"
                )
            await asyncio.sleep(FIND_S)
        self._process = found
        await self._until_it_answers()

    async def _until_it_answers(self) -> None:
        """Raises HaProxyError, after its process has been ended, where it does not come up."""
        assert self._process is not None
        end_s = time.monotonic() + START_LIMIT_S
        while True:
            try:
                await asyncio.to_thread(self._proxy.state)
                self.is_up = True
                return
            except HaProxyError as error:
                if self._process.has_ended or time.monotonic() > end_s:
                    await self._process.end(_ENDING)
                    _record_path(self._folder).unlink(missing_ok=True)
                    raise HaProxyError(
                        f"HAProxy did not start: {self._log_end() or error}"
                    ) from error
            await asyncio.sleep(0.02)

    def _save(self, record: _Record) -> None:
        replace_file(_record_path(self._folder), msgspec.json.encode(record))

    def _is_configured(self) -> bool:
        try:
            text = self._proxy.config_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        return text == self._proxy.config_text()

    def _log_end(self) -> str:
        with contextlib.suppress(OSError):
            return (
                self._folder.joinpath("haproxy.log")
                .read_text(errors="replace")[-500:]
                .strip()
            )
        return ""


def pause(failures: int, *, ran_s: float) -> tuple[int, float]:
    """Failures in a row with this one, 0 after a steady run, and the seconds until HAProxy is started again."""
    if ran_s >= STEADY_S:
        # At once, since without it no request reaches any replica of the node.
        return 0, 0.0
    failures += 1
    return failures, delay_s(failures, first_s=FIRST_RESTART_S, longest_s=MAX_RESTART_S)


def _record_path(folder: Path) -> Path:
    return folder / "haproxy.json"


def _load(folder: Path) -> _Record | None:
    try:
        return msgspec.json.decode(_record_path(folder).read_bytes(), type=_Record)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise HaProxyError(
            f"{_record_path(folder)} cannot be read; end HAProxy and remove it: {error}"
        ) from error


async def _end_recorded(record: _Record) -> None:
    process = WorkerProcess.adopt(record.identity, record.mark)
    is_gone = (
        not await process.end(_ENDING)
        if process is not None
        else await end_left_over(record.mark, _ENDING)
    )
    if not is_gone:
        raise HaProxyError(
            f"HAProxy of an earlier start, process {record.identity.pid}, cannot be ended"
        )


async def _nobody_to_ask(pids: tuple[int, ...]) -> bool:  # noqa: ARG001
    return True


_ENDING = Ending(grace_s=5.0, terminate=_nobody_to_ask)
