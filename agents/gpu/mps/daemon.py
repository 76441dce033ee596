"""MPS on one GPU: its daemon, its clients and the way out of a fault.

    Mps(gpu_uuid, directory, control=..., environment=..., settings=MpsSettings(...))
        why_not()                            why this GPU may not be shared by MPS here; empty = it may
        start() / start_server()             the daemon, idempotent, one that runs is adopted; its server before clients
        client_environment(sm_percent, memory_mib, is_best_effort)
                                             what a replica's process needs; its share stands nowhere else
        is_alive() / server_state() / is_in_fault() / client_pids()
        terminate(pid)                       take a client's work off the GPU, so that killing it harms no other
        recover()                            out of FAULT, once every client's process has ended
        stop(drain_s)                        clients first, the daemon last

States of the server (at most one user's at a time):

    none ──first client or start_server()──▶ initializing ──▶ active ──fatal fault of any client──▶ fault
     ▲                                                          ▲  │                                  │
     └──── stop(), shutdown ────────────────────────────────────┴──┘◀──── all clients have ended ──────┘

One daemon per GPU, with CUDA_VISIBLE_DEVICES=<UUID> and directories of its own, so that a fault, a restart or a limit
stays on that GPU. Every client runs under one UID: another's would wait until all clients of the first have left. The
daemon outlives the agent, and the next one adopts it. Times are wall seconds, since the daemon is a real process.

Next to it: `agents.gpu.mps.control` (how the daemon is asked), `agents.gpu.mps.answers` (what it means by its answers),
`agents.gpu.mps.servers` (its servers and their clients), `agents.gpu.mps.directory` (where it lives),
`agents.gpu.mps.sm_percent` (how a share is written and proven).
"""

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agents.base.device import DeviceError, LaunchFailed, NotSupported, UnknownPart
from agents.gpu.mps import answers
from agents.gpu.mps.answers import NoDaemon, ServerState
from agents.gpu.mps.control import ANSWER_S, CONTROL, LOG_LIMIT_MIB, Control
from agents.gpu.mps.directory import MpsDirectory
from agents.gpu.mps.foreign import mps_processes, why_foreign, why_foreign_owner
from agents.gpu.mps.lacks import MpsLack, MpsLackKind
from agents.gpu.mps.servers import LIST_SERVERS, MpsServers
from agents.gpu.mps.sm_percent import memory_limit, thread_percentage
from agents.processes.templates import tool_environment

_GET_DEFAULT = "get_default_active_thread_percentage"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSettings:
    """Who the clients are, and how long anything may take, in seconds."""

    client_uid: int = field(default_factory=os.getuid)
    """UID of all replicas of the GPU."""
    keeps_daemon: bool = True
    """False: somebody else starts and ends it."""
    answer_s: float = ANSWER_S
    """One command; a daemon that takes longer hangs."""
    start_s: float = 20.0
    """Until daemon or server is up."""
    quit_s: float = 5.0
    """What the daemon gives its servers before it forces them down."""
    recover_s: float = 60.0
    """Until a GPU is out of FAULT after its last client ended."""
    poll_s: float = 0.1
    log_limit_mib: float = LOG_LIMIT_MIB
    """Each of the daemon's logs is cut here: every command writes four lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What there was of MPS before a start."""

    why_not: str = ""
    lack_kind: MpsLackKind = MpsLackKind.OTHER_USER
    """The kind of `why_not`; by default that of daemons and servers which are somebody else's."""
    default_percent: float | None = None
    """None: no daemon runs."""
    servers: tuple[int, ...] = ()


class Mps:
    """MPS on one GPU."""

    def __init__(
        self,
        gpu_uuid: str,
        directory: Path,
        *,
        control: str = CONTROL,
        environment: Mapping[str, str] | None = None,
        settings: MpsSettings | None = None,
    ) -> None:
        """`directory`: of this GPU alone, short, on local disk; `environment`: of the daemon, by default the agent's,
        without its token and the MPS settings: at its default of 100 % the daemon leaves every share to the client."""
        self.gpu_uuid = gpu_uuid
        self.directory = MpsDirectory(gpu_uuid=gpu_uuid, path=directory.absolute())
        self._settings = settings or MpsSettings()
        self._control = Control(
            control,
            tool_environment(os.environ) if environment is None else environment,
            self.directory,
            answer_s=self._settings.answer_s,
            log_limit_mib=self._settings.log_limit_mib,
        )
        self._servers = MpsServers(self._control, gpu_uuid)
        self._turn = asyncio.Lock()
        """Held while the daemon is started or stopped."""

    async def why_not(self) -> str:
        """Why this GPU cannot be shared by MPS here; empty = it can."""
        return (await self._look()).why_not

    async def lack(self) -> MpsLack | None:
        """The same with its kind; None: it can."""
        seen = await self._look()
        return MpsLack(seen.lack_kind, seen.why_not) if seen.why_not else None

    async def start(self) -> ServerState:
        """Start the daemon, or adopt the one that runs, and set its default back to 100 %; the state of its server.

        Raises NotSupported with `why_not`, LaunchFailed, NotPermitted or DeviceError.
        """
        async with self._turn:
            # One look before anything is changed, since each question starts a process.
            seen = await self._look()
            if seen.why_not:
                raise NotSupported(
                    f"GPU {self.gpu_uuid} cannot be shared by MPS: {seen.why_not}. Without MPS its replicas take turns "
                    "on the whole GPU, and NO SM percent or memory limit holds"
                )
            # Also where a daemon runs: it may have been started by an agent with another user for its replicas.
            self.directory.prepare(self._settings.client_uid)
            if seen.default_percent is None:
                if not self._settings.keeps_daemon:
                    raise LaunchFailed(
                        f"the MPS daemon of GPU {self.gpu_uuid} does not run; does the Pod of DaemonSet plimsoll-mps "
                        "run on this node?"
                    )
                await self._launch()
            return await self._reset_percent(seen)

    async def start_server(self) -> None:
        """Let the daemon start its server before the first client, and wait until it takes clients.

        Raises LaunchFailed with what the log says: there is no driver, or the server is not in PATH.
        """
        await self._control.ask(f"start_server -uid {self._settings.client_uid}")
        if not await self._within(self._settings.start_s, self._takes_clients):
            log_says = answers.explanation(self.directory.log_tail())
            raise LaunchFailed(
                f"the MPS server of GPU {self.gpu_uuid} is {await self.server_state()} after "
                f"{self._settings.start_s:g} s: {log_says or f'see {self.directory.log}/control.log'}"
            )

    async def stop(self, drain_s: float) -> tuple[int, ...]:
        """Wait for the clients to leave, terminate those left after `drain_s`, end the daemon; the terminated PIDs.

        Their processes live on with an error that sticks; end them. Raises DeviceError, with the daemon running, where
        a client cannot be terminated or the daemon does not end. Nothing where no daemon runs.
        """
        async with self._turn:
            if not await self.is_alive():
                return ()
            await self._within(drain_s, self._has_no_clients)
            # After the wait only those are left that do not leave by themselves.
            left = await self._servers.clients()
            if stuck := [
                pid
                for pid, server in left.items()
                if not await self._servers.terminate(server, pid)
            ]:
                raise DeviceError(
                    f"clients {stuck} of GPU {self.gpu_uuid} do not let themselves be terminated, so the MPS daemon "
                    "was left running: killing them at work may hang the GPU; end them by hand and stop again"
                )
            if self._settings.keeps_daemon:
                await self._quit()
            return tuple(left)

    async def is_alive(self) -> bool:
        """Whether the daemon answers; each question starts a process (3 to 12 ms), so ask seldom.

        Raises DeviceError when it hangs, NotSupported without the program.
        """
        return await self._default_percent() is not None

    async def server_state(self) -> ServerState:
        """The server's state, of several the worst. Raises DeviceError where no daemon runs."""
        return await self._servers.worst_of(await self._servers.pids())

    async def is_in_fault(self) -> bool:
        """Whether its server is in a fault; without a daemon there is none. Raises DeviceError.

        One question, since this is asked for as long as the agent runs: a daemon has one server of its clients' user,
        which stays the same through a fault, and the next one only when it is gone.
        """
        try:
            state: ServerState = "none"
            if self._servers.only:
                state = await self._servers.state_of(self._servers.only)
            # The known server has gone, or none was known: all are listed again.
            if state == "none":
                state = await self.server_state()
            return state == "fault"
        except NoDaemon:
            return False

    async def client_pids(self) -> tuple[int, ...]:
        """PIDs of the processes that are clients, ascending, as the daemon's PID namespace knows them."""
        return tuple(await self._servers.clients())

    async def terminate(self, pid: int) -> bool:
        """Take a client's work off the GPU; True = its process may now be killed without harm to the others.

        Raises UnknownPart where the PID is no client, which may mean that it is another PID namespace's.
        """
        clients = await self._servers.clients()
        if pid not in clients:
            raise UnknownPart(
                f"process {pid} is no MPS client of GPU {self.gpu_uuid}; those are {list(clients)}"
            )
        return await self._servers.terminate(clients[pid], pid)

    async def recover(self) -> None:
        """Wait until the GPU takes clients again after a fault, which it does when the last client's process has ended.

        End them first. Raises DeviceError with those that are left, or where the fault stays without any.
        """
        # The server leaves FAULT only without clients, so nothing can be done for as long as one lives.
        if not await self._within(self._settings.recover_s, self._has_no_clients):
            left = list(await self.client_pids())
            raise DeviceError(
                f"GPU {self.gpu_uuid} stays in FAULT while clients {left} live: all processes on it must end"
            )
        if await self.server_state() == "unknown":
            # Release 535 does not tell FAULT: a fresh server has none.
            await self._servers.drop()
        if await self._within(self._settings.recover_s, self._is_well):
            return
        log.warning(
            "GPU %s: the MPS server stays broken without clients; starting another",
            self.gpu_uuid,
        )
        await self._servers.drop()
        if not await self._within(self._settings.answer_s, self._is_well):
            raise DeviceError(
                f"the MPS server of GPU {self.gpu_uuid} is {await self.server_state()} and does not go: stop the "
                "daemon and start it again; if that changes nothing, reset the GPU"
            )

    def client_environment(
        self, sm_percent: float, memory_mib: float, is_best_effort: bool
    ) -> Mapping[str, str]:
        """Environment of one replica's process, on top of what it needs otherwise; fixed for its life.

        MPS fails open: ask `is_alive()` before the process starts, and let it prove its share before it takes
        requests. Raises OutOfRange.
        """
        return {
            "CUDA_VISIBLE_DEVICES": self.gpu_uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory.pipe),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": thread_percentage(sm_percent),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": memory_limit(memory_mib),
            "CUDA_MPS_CLIENT_PRIORITY": "1" if is_best_effort else "0",
        }

    async def _look(self) -> "_Seen":
        """What there is, by as few questions as may be: each starts a process, and a replica waits for them."""
        if reason := self._control.why_missing():
            return _Seen(why_not=reason, lack_kind=MpsLackKind.NOT_INSTALLED)
        if lack := self.directory.objection():
            return _Seen(why_not=lack.detail, lack_kind=lack.kind)
        if os.getuid() not in (0, self._settings.client_uid):
            return _Seen(
                why_not=f"replicas run as UID {self._settings.client_uid}, and this agent's daemon, of UID "
                f"{os.getuid()}, starts no server for another user; only root's does"
            )
        if reason := why_foreign(
            self.gpu_uuid, self.directory.pipe, await asyncio.to_thread(mps_processes)
        ):
            return _Seen(why_not=reason)
        try:
            percent = answers.percent(await self._control.ask(_GET_DEFAULT))
            servers = answers.pids(await self._control.ask(LIST_SERVERS))
        except NoDaemon:
            return _Seen()
        except DeviceError as error:
            return _Seen(why_not=str(error), lack_kind=MpsLackKind.OTHER)
        return _Seen(
            why_not=why_foreign_owner(
                servers, self.directory, self._settings.client_uid
            ),
            default_percent=percent,
            servers=servers,
        )

    async def _default_percent(self) -> float | None:
        """The daemon's; None where none answers."""
        try:
            return answers.percent(await self._control.ask(_GET_DEFAULT))
        except NoDaemon:
            return None

    async def _launch(self) -> None:
        """Start the daemon; one that is just ending may hold its lock for a moment longer."""
        said = ""

        async def is_up() -> bool:
            nonlocal said
            # Its output is kept, since the exit status says nothing.
            said, _ = await self._control.run("-d")
            if await self.is_alive():
                return True
            # Another reason will not pass by waiting.
            if answers.ALREADY_RUNNING not in said:
                raise LaunchFailed(
                    f"the MPS daemon of GPU {self.gpu_uuid} does not start: {said.strip() or 'no word'}"
                )
            return False

        if not await self._within(self._settings.start_s, is_up):
            raise LaunchFailed(
                f"another MPS daemon holds {self.directory.pipe}/control_lock and does not answer; find it by `fuser` "
                f"and end it: {said.strip()}"
            )

    async def _reset_percent(self, seen: "_Seen") -> ServerState:
        """Set the default and the servers' own value to 100: a client gets the smaller of them and its own; the state
        of the servers."""
        # Another value would cut every client's share without a word.
        if seen.default_percent != 100.0:
            await self._servers.set_percent("set_default_active_thread_percentage 100")
        await self._servers.give_all_percent(seen.servers)
        return await self._servers.worst_of(seen.servers)

    async def _quit(self) -> None:
        # The daemon answers only after its servers are gone, so this call may take that much longer.
        quit_s = self._settings.quit_s
        said: tuple[str, ...] = ()
        with contextlib.suppress(NoDaemon):
            said = await self._control.ask(
                f"quit -t {math.ceil(quit_s)}", more_s=quit_s
            )
        if not await self._within(self._settings.answer_s, self._is_dead):
            raise DeviceError(
                f"the MPS daemon of GPU {self.gpu_uuid} took `quit` and still answers: {' / '.join(said)}"
            )

    async def _has_no_clients(self) -> bool:
        return not await self.client_pids()

    async def _takes_clients(self) -> bool:
        state = await self.server_state()
        return state == "active" or (
            state == "unknown" and any(map(self._was_ready, await self._servers.pids()))
        )

    def _was_ready(self, server: int) -> bool:
        """Whether a server took clients once, where the release does not tell its state: one that cannot start ends
        within moments, and the line of one that could may be cut off the log."""
        if f"NEW SERVER {server}: Ready" in self.directory.log_tail():
            return True
        try:
            return (
                time.time() - psutil.Process(server).create_time()
                > self._settings.answer_s
            )
        except psutil.Error:
            return False

    async def _is_well(self) -> bool:
        return await self.server_state() in ("active", "none", "unknown")

    async def _is_dead(self) -> bool:
        return not await self.is_alive()

    async def _within(
        self, limit_s: float, holds: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Whether it holds within that time; asked at least once."""
        # Asked before the time is looked at, so that even a limit of 0 asks once.
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while not await holds():
            if asyncio.get_running_loop().time() >= deadline_s:
                return False
            await asyncio.sleep(self._settings.poll_s)
        return True
