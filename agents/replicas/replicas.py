"""Processes of replicas: started, made ready, watched, drained and ended; after a restart of the agent adopted.

    starting ──▶ ready ──drain()──▶ draining ──stop()──▶ gone
       ▲           ▲                ├─wake()─▶ ready
       └──wake()── asleep ◀──sleep()┘
       │ ▲         │ set_batch() with a reload goes back to starting
       └─┴─────────┴──────────┴──▶ draining ──▶ failed ──stop()──▶ gone     what is left of it is ended first

    Workers(settings, templates=…, hooks=…, …)
        await open()                     take the state directory, adopt what runs, tell what does not
        replicas()                       -> every replica as it is now, failed ones with the end of their log
        await start(Launch)              raises LaunchFailed; a replica in a crash loop must wait
        await drain(id), await stop(id), await sleep(id), await wake(id)
                                         return at once; what becomes of it shows in `replicas()`
        await set_batch(id, batch)       -> applied_live, reloading or needs_restart
        await end_unwanted(ids)          stop every replica that is not among them
        await close(keep=…)              leave the workers alone for the next agent, or end them all

Who decides when a failed replica is started again is the agent, whose `Restarts` wait longer each time; here only what
it cannot see is held back, replicas that become ready and fail soon after, again and again. Times are the machine's:
real processes know no other.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from agents.base.device import (
    DeviceError,
    LaunchFailed,
    ServerTraits,
    UnknownPart,
)
from agents.base.waits import cancel
from agents.processes.care import keep_tidy
from agents.processes.launch import Crashes, Launch, Ports, place_in, prepare
from agents.processes.launcher import PROCESSES, Launcher
from agents.processes.procfs import boot_id, host_memory_free_mib
from agents.processes.records import Record, Records
from agents.processes.templates import Templates
from agents.processes.user import WorkerUsers
from agents.replicas.adapters import BatchOutcome, ReplicaCounts, make_adapters
from agents.replicas.life import ReplicaLives, given_up
from agents.replicas.readiness import FIRST_ASK_S, ReplicaWatch
from agents.replicas.replica import (
    Hooks,
    ReplicaProcess,
    ReplicaView,
    start_replica,
    with_log,
)

KNOWN_LIMIT_S = 30.0
"""For adopted replicas, which answered an earlier agent, to answer this one."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersSettings:
    """How a node runs its replicas."""

    directory: Path
    """Where records, logs and, of the agent's own user, the replicas' own directories lie."""
    users: WorkerUsers = field(default_factory=WorkerUsers)
    """Who they run as."""
    first_port: int = 21000
    """Below 32768, where the kernel takes ports for connections from."""
    port_count: int = 2000
    sleep_limit_s: float = 1800.0
    """One that is not woken for so long is ended: the host's memory is others' as well, and the control plane takes
    readings of what has left a plan for an hour, drains included."""


class Workers:
    """All replicas of one node."""

    def __init__(
        self,
        settings: WorkersSettings,
        *,
        templates: Templates,
        hooks: Hooks | None = None,
        launcher: Launcher = PROCESSES,
        environment: Mapping[str, str] = os.environ,
        now_s: Callable[[], float] = time.monotonic,
        free_host_mib: Callable[[], float] = host_memory_free_mib,
    ) -> None:
        """`environment`: the agent's own, of which some is passed on to workers."""
        self._free_host_mib = free_host_mib
        self.problems: tuple[str, ...] = ()
        """What was wrong with the state that an earlier agent left, in words."""
        self.crashes = Crashes(now_s)
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever a replica has become ready, failed or gone."""
        self._settings = settings
        self._templates = templates
        self._hooks = hooks or Hooks()
        self._launcher = launcher
        self._environment = environment
        self._now_s = now_s
        self._ports = Ports(first=settings.first_port, count=settings.port_count)
        self._replicas: dict[str, ReplicaProcess] = {}
        self._records: Records[Record] | None = None
        self._lives: ReplicaLives | None = None
        self._logs: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take the state directory and adopt what it tells of. Raises DeviceError when another agent has it."""
        self._records = records = Records(
            self._settings.directory, Record, users=self._settings.users
        )
        # Those asked are on this machine: no proxy, no cookies, no pool that outlives a worker.
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        watch = ReplicaWatch(
            adapters=make_adapters(session),
            records=records,
            session=session,
            hooks=self._hooks,
            now_s=self._now_s,
        )
        self._lives = ReplicaLives(
            replicas=self._replicas,
            records=records,
            watch=watch,
            hooks=self._hooks,
            crashes=self.crashes,
            notify=lambda: self.on_change(),
            sleep_limit_s=self._settings.sleep_limit_s,
            free_host_mib=self._free_host_mib,
        )
        found = records.load()
        self.problems = records.problems
        # Before anything is adopted: what has no record may hold a port or memory that others need.
        await self._launcher.end_unrecorded(
            records.mark, {record.mark for record in found}, self._hooks.terminate
        )
        await asyncio.gather(*map(self._adopt, found))
        self._logs = asyncio.create_task(
            keep_tidy(records, lambda: tuple(self._replicas))
        )

    async def until_known(self, *, sleepers_only: bool = False) -> None:
        """Return when all that were adopted have become ready, or failed, or had KNOWN_LIMIT_S for it.

        sleepers_only: those that may be asleep.
        """
        end_s = asyncio.get_running_loop().time() + KNOWN_LIMIT_S
        while any(
            each.state == "starting" and (each.can_sleep or not sleepers_only)
            for each in self._replicas.values()
        ):
            if asyncio.get_running_loop().time() > end_s:
                log.warning(
                    "some adopted replicas are not ready after %g s", KNOWN_LIMIT_S
                )
                return
            await asyncio.sleep(FIRST_ASK_S)

    def replicas(self) -> tuple[ReplicaView, ...]:
        """Every replica, by id."""
        now_s = self._now_s()
        return tuple(each.view(now_s) for _, each in sorted(self._replicas.items()))

    async def start(self, launch: Launch) -> None:
        """Start a replica. Raises LaunchFailed; then there is none."""
        replica_id = launch.replica.id
        if replica_id in self._replicas:
            raise LaunchFailed(f"replica {replica_id} is there already; stop it first")
        if (hold_s := self.crashes.hold_s(replica_id)) > 0.0:
            raise LaunchFailed(
                f"replica {replica_id} is in a crash loop and waits another {hold_s:.0f} s"
            )
        records = self._opened()
        template = self._templates.find(
            launch.replica.network,
            launch.template,
            is_model=launch.replica.engine is not None,
        )
        # Also of replicas that are ending: their processes may still listen.
        taken = {port for each in self._replicas.values() for port in each.record.ports}
        ports = self._ports.take(len(template.ports), taken)
        place = place_in(
            records,
            replica_id,
            launch.replica.project,
            ports=ports,
            host=self._launcher.listens_on,
            environment=self._environment,
        )
        prepared = prepare(launch, template, place)
        started = start_replica(
            self._launcher, launch, place=place, prepared=prepared, records=records
        )
        # Entered before its life begins, which may end at once.
        self._replicas[replica_id] = started
        started.task = asyncio.create_task(self._alive().live(started))

    async def drain(self, replica_id: str) -> None:
        """Let a replica finish what it has. Routes are switched before; its server hears of it when it is stopped."""
        each = self._find(replica_id)
        if each.state == "ready":
            each.state, each.draining_since_s = "draining", self._now_s()

    async def stop(self, replica_id: str) -> None:
        """Begin to end a replica, or forget one that has failed."""
        each = self._find(replica_id)
        if each.state == "failed":
            self._alive().forget(each)
        # A second stop would cancel the first one, and begin its grace again.
        elif not each.is_stopping:
            has_drained = _is_draining(each)
            self._alive().leave(each)
            each.task = asyncio.create_task(
                self._alive().stop(each, given_up(each), has_drained=has_drained)
            )

    async def sleep(self, replica_id: str) -> None:
        """Begin to put a drained replica to sleep; where that fails, or it sleeps for too long, it is ended."""
        each = self._find(replica_id)
        if _is_draining(each):
            # From here on it can be stopped, but not be taken back until it sleeps.
            each.is_falling_asleep = True
            each.task = asyncio.create_task(self._alive().sleep(each, given_up(each)))

    async def wake(self, replica_id: str) -> None:
        """Have one that drains take requests again, or begin to wake one that sleeps."""
        each = self._find(replica_id)
        if _is_draining(each):
            each.state, each.draining_since_s = "ready", math.inf
        elif each.state == "asleep":
            each.state, each.draining_since_s = "starting", math.inf
            each.held_share = 1.0
            each.task = asyncio.create_task(self._alive().wake(each, given_up(each)))

    async def fail(self, replica_id: str, reason: str) -> None:
        """Begin to end a replica that cannot go on, and tell why; one that is being ended anyway is left to that."""
        each = self._find(replica_id)
        if each.state != "failed" and not each.is_stopping:
            self._alive().leave(each)
            each.task = asyncio.create_task(
                self._alive().fail_after(each, reason, given_up(each))
            )

    async def set_batch(self, replica_id: str, batch: int) -> BatchOutcome:
        """Give a replica another largest batch, as its template says. Raises DeviceError where it does not take it."""
        each = self._find(replica_id)
        if each.record.batch == batch:
            return "applied_live"
        if each.record.template.batch_change == "restart":
            return "needs_restart"
        if each.state != "ready":
            raise DeviceError(
                f"replica {replica_id} is {each.state} and takes no other batch now"
            )
        if each.record.template.batch_change == "reload":
            # No traffic while it loads: replicas that are not ready are left out of the routes.
            each.state = "starting"
            each.task = asyncio.create_task(
                self._alive().reload(each, batch, given_up(each))
            )
            return "reloading"
        return await self._alive().apply_batch(each, batch)

    def traits(self, replica_id: str) -> ServerTraits:
        """What routers need to know of a replica's server."""
        each = self._find(replica_id)
        adapter = self._alive().watch.adapter(each)
        return adapter.traits(each.endpoint(self._opened()))

    async def metrics(self, replica_id: str) -> ReplicaCounts:
        """What a replica's server counted. Raises DeviceError where it does not tell."""
        each = self._find(replica_id)
        return (
            await self._alive()
            .watch.adapter(each)
            .metrics(each.endpoint(self._opened()))
        )

    async def end_unwanted(self, wanted: Collection[str]) -> None:
        """Stop every replica that is not wanted, as after a restart of the agent."""
        for replica_id in sorted(set(self._replicas) - set(wanted)):
            await self.stop(replica_id)

    async def close(self, *, keep: bool) -> None:
        """Give the state directory back; `keep`: the workers go on for the next agent, else all are ended first."""
        # Nothing would end those that sleep if no agent came.
        kept = {
            each.record.id
            for each in self._replicas.values()
            if keep and not _sleeps(each)
        }
        await self.end_unwanted(kept)
        ending = (
            each.task
            for replica_id, each in self._replicas.items()
            if replica_id not in kept and each.task is not None
        )
        await asyncio.gather(*ending, return_exceptions=True)
        await self.end_unwanted(kept)  # those that failed meanwhile
        # Only the watching ends here; with `keep` the processes themselves go on.
        tasks = [each.task for each in self._replicas.values()] + [self._logs]
        await cancel(*tasks)
        for each in self._replicas.values():
            if each.process is not None:
                each.process.abandon()
        self._replicas.clear()
        if self._lives is not None:
            await self._lives.watch.session.close()
        if self._records is not None:
            if not keep:
                await self._records.tidy()
            self._records.close()

    async def _adopt(self, record: Record) -> None:
        """Go on with the recorded process, or tell that it is gone."""
        process = await self._launcher.adopt(record, self._opened().log(record.id))
        template = self._templates.by_name.get(record.template.name)
        # It serves on all the same: that a template was changed is no reason to interrupt anybody.
        is_outdated = template is None or template.digest != record.digest
        each = ReplicaProcess(
            record=record, process=process, is_adopted=True, is_outdated=is_outdated
        )
        self._replicas[record.id] = each
        if process is not None:
            each.task = asyncio.create_task(self._alive().live(each))
            return
        # Its children may have outlived it, and hold memory of the GPU.
        await self._launcher.end_left_over(record.mark, self._alive().ending(each))
        identity = record.identity
        is_rebooted = identity is not None and identity.boot != boot_id()
        reason = (
            "the machine was restarted"
            if is_rebooted
            else "it ended while no agent watched it"
        )
        each.message = with_log(reason, self._opened().log(record.id))
        each.state = "failed"

    def _opened(self) -> Records[Record]:
        if self._records is None:
            raise DeviceError("the workers' state directory is not open")
        return self._records

    def _find(self, replica_id: str) -> ReplicaProcess:
        if replica_id not in self._replicas:
            raise UnknownPart(f"no replica {replica_id} on this node")
        return self._replicas[replica_id]

    def _alive(self) -> ReplicaLives:
        if self._lives is None:
            raise DeviceError("the workers' state directory is not open")
        return self._lives


def _is_draining(each: ReplicaProcess) -> bool:
    """And nothing else."""
    return each.state == "draining" and not (each.is_stopping or each.is_falling_asleep)


def _sleeps(each: ReplicaProcess) -> bool:
    return each.state == "asleep" or each.is_falling_asleep
