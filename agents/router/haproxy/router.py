"""HAProxy as the router of a node's device: started, watched and ended by the agent, or adopted after its restart.

    router = await open_haproxy(HaProxySettings(port=8081, folder=…))
    await router.switch_routes(routes, addresses), router.routes       as `agents.router.request_router` says
    await router.look(), router.in_flight(id), await router.read_services()
    await router.close(keep=…)

The process is one as replicas are (`agents.processes.process`): it waits at a gate until its record is on disk, is
found again by process id, start time and boot, and what carries its mark without a record is ended, so that none is
left that nobody knows. `keep`: it goes on with its table for the next agent, which adopts it where it would write the
same configuration; else it finishes what it has for at most FINISH_S and ends. One that dies is started again, at once
where it had run for STEADY_S, else after 1 s, 2 s, … 30 s, and gets the last table. HAProxy is asked in a thread, one
question at a time: the agent goes on meanwhile.
"""

import asyncio
import contextlib
import logging
import math
import os
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agents.base.backoff import delay_s
from agents.base.device import DeviceError, NotSupported, ServiceRoute
from agents.base.durable_files import replace_file
from agents.base.protocol import ServiceReading
from agents.base.version import agent_version
from agents.processes.process import Ending, Spawn, WorkerProcess, end_left_over
from agents.processes.records import Identity
from agents.router.haproxy.config import (
    VERSION_VARIABLE,
    HaProxySettings,
    make_config,
)
from agents.router.haproxy.counts import Counter, read_counts
from agents.router.haproxy.process import HaProxy
from agents.router.haproxy.state import HaProxyError, ProxyState
from agents.router.service_queue import Counts

PLACES = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where it lies beside the PATH of users."""
START_LIMIT_S = 10.0
FINISH_S = 30.0
"""For requests under way when HAProxy is ended."""
STATE_AGE_S = 0.1
"""How old a look at what is in flight may be: one state asks for every replica."""
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
            f"there is no program haproxy in {path}; install Debian's package haproxy, or use --router own"
        )
    return found


async def open_haproxy(settings: HaProxySettings) -> "HaProxyRouter":
    """HAProxy, running: an earlier agent's, or a new one. Raises HaProxyError or OSError; then none of ours runs."""
    program = find_program(f"{os.environ.get('PATH', '')}:{PLACES}")
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    router = HaProxyRouter(settings, program)
    await router.open()
    return router


async def end_earlier(folder: Path) -> None:
    """End the HAProxy that an earlier agent left, where this one carries requests itself. Raises HaProxyError."""
    if (record := _load(folder)) is not None:
        await _end_recorded(record)
        _record_path(folder).unlink()


class HaProxyRouter:
    """See the module's docstring. `open` is called once, before everything else."""

    def __init__(self, settings: HaProxySettings, program: str) -> None:
        self._proxy = HaProxy(settings)
        self._settings, self._program = settings, program
        self._process: WorkerProcess | None = None
        self._addresses: dict[str, str] = {}
        self._counter = Counter({})
        self._state = ProxyState(backends={}, places=())
        self._seen_s = -math.inf
        self._asking = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._is_up = False
        """Whether it has answered since it was started."""

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table that was put in force last by this agent."""
        return self._proxy.routes

    @property
    def pid(self) -> int:
        """HAProxy's process; 0 while there is none."""
        return (
            self._process.identity.pid
            if self._process is not None and not self._process.has_ended
            else 0
        )

    async def open(self) -> None:
        record = _load(self._settings.folder)
        # Another configuration takes a new process: HAProxy reads it only when it starts.
        is_same = self._is_configured()
        if (
            record is not None
            and is_same
            and (found := WorkerProcess.adopt(record.identity, record.mark)) is not None
        ):
            self._process = found
            await self._until_it_answers()
            # What it counted before is the earlier agent's, which has reported it.
            self._counter = Counter(await asyncio.to_thread(read_counts, self._proxy))
            log.info("HAProxy (process %d) of an earlier agent is taken over", self.pid)
        else:
            if record is not None:
                await _end_recorded(record)
            await self._start()
        self._watch = asyncio.create_task(self._keep_up())

    async def switch_routes(
        self, routes: tuple[ServiceRoute, ...], addresses: Mapping[str, str]
    ) -> None:
        """As `HaProxy.switch`."""
        async with self._asking:
            self._seen_s = -math.inf
            await asyncio.to_thread(self._proxy.switch, routes, addresses)
            self._addresses = {
                each: addresses[each] for route in routes for each, _ in route.shares
            }

    async def look(self) -> None:
        """See what is in flight; nothing while HAProxy is down, since requests went with it. Raises HaProxyError."""
        async with self._asking:
            await self._look()

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica had when it was looked."""
        return self._proxy.in_flight(replica_id, self._state)

    async def read_services(self) -> tuple[ServiceReading, ...]:
        """What was counted since the last reading; nothing while HAProxy does not answer."""
        try:
            async with self._asking:
                counts = await asyncio.to_thread(read_counts, self._proxy)
                await self._look()
        except HaProxyError as error:
            log.warning("%s", error)
            return ()
        return self._counter.read(counts, self._state.backends)

    def total(self, service: str) -> Counts:
        """Nothing that governors need. Raises NotSupported."""
        raise NotSupported(
            f"HAProxy tells no latencies of {service}, so governors cannot act; use --router own"
        )

    async def close(self, *, keep: bool) -> None:
        """Let it run on for the next agent, or finish what it has and end."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._process is None:
            return
        if keep:
            self._process.abandon()
            return
        self._process.tell(
            signal.SIGUSR1
        )  # takes no new connection, finishes what it has
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), FINISH_S)
        await self._process.end(_ENDING)
        _record_path(self._settings.folder).unlink(missing_ok=True)

    async def _keep_up(self) -> None:
        """Start it again whenever it dies, and put the last table in force."""
        failures = 0
        table: tuple[ServiceRoute, ...] = ()
        while True:
            assert self._process is not None
            begun_s = time.monotonic()
            how = await self._process.wait()
            self._is_up = False
            failures, wait_s = pause(failures, ran_s=time.monotonic() - begun_s)
            log.error(
                "HAProxy has ended and is started again in %.0f s: %s", wait_s, how
            )
            await self._process.end(_ENDING)
            await asyncio.sleep(wait_s)
            # Remembered over failed restarts, because a fresh HAProxy begins without routes.
            table = self.routes or table
            try:
                await self._start()
                await self.switch_routes(table, self._addresses)
                table = ()
            except (
                DeviceError,
                OSError,
            ) as error:  # then enforcement finds no table, and gives it one
                log.error("HAProxy is not as it was: %s", error)

    async def _start(self) -> None:
        self._proxy.write_config()
        # A socket that a dead HAProxy left would keep the new one from binding it.
        self._settings.socket_path.unlink(missing_ok=True)
        mark = secrets.token_hex(16)
        spawn = Spawn(
            command=(self._program, "-db", "-f", str(self._settings.config_path)),
            environment={
                "PATH": os.environ.get("PATH", ""),
                VERSION_VARIABLE: agent_version(),
            },
            directory=self._settings.folder,
            log=self._settings.folder / "haproxy.log",
            mark=mark,
        )
        self._process = WorkerProcess.start(
            spawn, lambda identity: self._save(_Record(identity, mark))
        )
        self._counter, self._seen_s = Counter({}), -math.inf
        await self._until_it_answers()
        log.info(
            "HAProxy (process %d) takes requests on port %d (%s)",
            self.pid,
            self._settings.port,
            self._settings.access.summary(),
        )

    async def _until_it_answers(self) -> None:
        """Raises HaProxyError, after its process has been ended, where it does not come up."""
        assert self._process is not None
        end_s = time.monotonic() + START_LIMIT_S
        while True:
            try:
                await asyncio.to_thread(self._proxy.state)
                self._is_up = True
                return
            except HaProxyError as error:
                if self._process.has_ended or time.monotonic() > end_s:
                    await self._process.end(_ENDING)
                    _record_path(self._settings.folder).unlink(missing_ok=True)
                    raise HaProxyError(
                        f"HAProxy does not come up: {self._log_end() or error}"
                    ) from error
            await asyncio.sleep(0.02)

    async def _look(self) -> None:
        if time.monotonic() <= self._seen_s + STATE_AGE_S:
            return
        try:
            self._state = await asyncio.to_thread(self._proxy.state)
        except HaProxyError:
            # While it starts or is down no answer is expected; its requests went with it.
            if self._is_up and self.pid:
                raise
            self._state = ProxyState(backends={}, places=())
        self._seen_s = time.monotonic()

    def _save(self, record: _Record) -> None:
        replace_file(_record_path(self._settings.folder), msgspec.json.encode(record))

    def _is_configured(self) -> bool:
        try:
            return self._settings.config_path.read_text(
                encoding="utf-8"
            ) == make_config(self._settings)
        except FileNotFoundError:
            return False

    def _log_end(self) -> str:
        with contextlib.suppress(OSError):
            return (
                self._settings.folder.joinpath("haproxy.log")
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
    is_gone = await (
        process.end(_ENDING)
        if process is not None
        else end_left_over(record.mark, _ENDING)
    )
    if not is_gone:
        raise HaProxyError(
            f"HAProxy of an earlier agent, process {record.identity.pid}, cannot be ended"
        )


async def _nobody_to_ask(pids: tuple[int, ...]) -> bool:  # noqa: ARG001
    return True


_ENDING = Ending(grace_s=5.0, terminate=_nobody_to_ask)
