"""A machine with real GPUs as a Device: what a command says is in force here, or the node says why not.

    which GPUs there are, what they do        `ReadOnlyDevice` over agents.gpu.nvml.session
    clocks and power limits                   agents.gpu.knobs.applied_knobs over agents.gpu.knobs.knobs, journalled and
                                              put back
    critical errors, peaks of power           agents.gpu.nvml.xid_watch, agents.gpu.nvml.power_watch
    faults of MPS                             agents.gpu.node.fault_watch
    SM percents, memory limits                agents.gpu.mps.gpu_sharing, one per GPU
    replicas as processes                     agents.replicas.replicas
    training and offline tasks as processes   agents.tasks.tasks
    requests                                  agents.router.router

A knob that a GPU does not have, or that this user may not turn, is not asked for: `GpuState.has_clock_lock` and
`has_power_limit` say so to enforcement, `problems` to people.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import structs

from agents.base.clock import Clock
from agents.base.device import (
    ASLEEP_SHARE,
    DeviceError,
    DeviceReadings,
    GpuPoll,
    GpuState,
    NodeState,
    NotSupported,
    ServiceRoute,
    UnknownPart,
    gpus_of,
)
from agents.base.protocol import GpuReading, ReplicaCommand, TaskCommand
from agents.base.waits import together
from agents.gpu.knobs.applied_knobs import TurnedKnobs
from agents.gpu.node.admission import environment_of, on_each_gpu, require_room
from agents.gpu.node.devices import fail_stranded
from agents.gpu.node.fault_watch import FaultWatch
from agents.gpu.node.foreign_memory import Holder
from agents.gpu.node.parts import DEFAULT_LOOKS, POLL_LIMIT_S, GpuParts, Looks
from agents.gpu.node.polls import PollCounters, ServerCounters
from agents.gpu.node.readonly_device import ADVICE
from agents.gpu.nvml.types import GpuIdentity
from agents.processes.launch import Launch
from agents.replicas.replica import ReplicaView
from agents.tasks.task import TaskLaunch

log = logging.getLogger(__name__)


class GpuDevice:
    """One node's GPUs."""

    def __init__(
        self,
        parts: GpuParts,
        clock: Clock,
        *,
        keeps_replicas: bool = False,
        looks: Looks = DEFAULT_LOOKS,
        uids: Mapping[str, int],
    ) -> None:
        """`keeps_replicas`: they go on when this is closed, for the next agent to adopt; `uids`: as in `NodeState`."""
        self.router = parts.router
        self._parts, self._clock, self._keeps_replicas = parts, clock, keeps_replicas
        self._gpus = {gpu.index: gpu for gpu in parts.gpus}
        self._turned = TurnedKnobs(parts.knobs, parts.gpus, parts.capabilities)
        self._faults = FaultWatch(
            parts.sharings, parts.workers, parts.tasks, clock, period_s=looks.fault_s
        )
        self._counters = ServerCounters(
            parts.workers, parts.use, clock, period_s=looks.counts_s
        )
        self._poll_counters = PollCounters()
        self._uids = uids

    async def state(self) -> NodeState:
        known = {gpu.index: gpu for gpu in (await self._parts.telemetry.state()).gpus}
        # Asked before the replicas are shown: HAProxy alone knows what is in flight at each of them.
        await self.router.look()
        replicas = self._spanned()
        holders: tuple[Holder, ...] = (*replicas, *self._parts.tasks.holders())
        gpus = tuple(
            self._gpu_state(known[index], replicas, holders) for index in sorted(known)
        )
        return NodeState(
            gpus=gpus,
            routes=self.router.routes,
            stranded=self.router.stranded,
            uids=self._uids,
        )

    def on_change(self, notify: Callable[[], None]) -> None:
        self._parts.workers.on_change = self._parts.tasks.on_change = notify
        self.router.on_wait = notify

    async def read(self) -> DeviceReadings:
        # Telemetry first, so that its window does not grow by what the servers take to answer.
        readings = await self._parts.telemetry.read()
        # It asks in the background: a daemon that hangs must not make the node late.
        self._faults.begin()
        slices = await fail_stranded(
            self._parts.slices, self._parts.workers, self._parts.tasks
        )
        views = self._parts.workers.replicas()
        self._poll_counters.forget_all_but({view.id for view in views})
        replicas = await self._counters.read(views)
        running = self._spanned(), self._parts.tasks.holders()
        # In a thread: listing processes and reading /proc may take many milliseconds, and requests wait for this loop.
        uses = await asyncio.to_thread(self._parts.use.read, readings.gpus, *running)
        watched = (problem for problem in readings.problems if problem != ADVICE)
        return replace(
            readings,
            gpus=self._with_health(readings.gpus),
            replicas=replicas,
            services=await self.router.read_services(),
            tasks=self._parts.tasks.read(),
            uses=uses,
            problems=(
                *watched,
                *self._parts.launcher.problems,
                *self._parts.workers.problems,
                *self._parts.tasks.problems,
                *slices,
                *self._problems(),
            ),
        )

    def _with_health(self, readings: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
        """The readings; a GPU that is condemned is not healthy, though it may answer."""
        condemned = self._parts.errors.condemned()
        indices = {gpu.index for gpu in self._parts.gpus if gpu.uuid in condemned}
        return tuple(
            structs.replace(gpu, healthy=gpu.healthy and gpu.index not in indices)
            for gpu in readings
        )

    async def poll(self, gpu_index: int) -> GpuPoll:
        # First, since asking the servers takes time that belongs to the next period.
        peak_power_w = await self.peak_power_w(gpu_index)
        serving = [
            view
            for view in self._parts.workers.replicas()
            if view.gpu_index == gpu_index and view.state in ("ready", "draining")
        ]
        asked = (self._parts.workers.metrics(view.id) for view in serving)
        try:
            async with asyncio.timeout(POLL_LIMIT_S):
                answers = await together(*asked)
        except TimeoutError as error:
            late = f"replicas of GPU {gpu_index} do not tell within {POLL_LIMIT_S:g} s what they did"
            raise DeviceError(late) from error
        found = []
        for view, counts in zip(serving, answers, strict=True):
            # The server may not see what waits in the router, nor the router what the server took in.
            queued = max(self.router.in_flight(view.id), counts.queued or 0)
            total = self.router.total(view.service)
            found.append(
                self._poll_counters.replica(view, counts, total, queued=queued)
            )
        self._poll_counters.end(gpu_index)
        return GpuPoll(peak_power_w=peak_power_w, replicas=tuple(found))

    async def peak_power_w(self, gpu_index: int) -> float:
        return await asyncio.to_thread(self._parts.power.peak_w, self._gpu(gpu_index))

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        # Measured now, and not remembered: a foreign process may have come since the command was made.
        gpus = [
            self._require_room(index, f"replica {replica.id}", replica.memory_mib)
            for index in gpus_of(replica, gpu_index)
        ]
        sharing = self._parts.sharings[gpu_index]
        environment = await environment_of(sharing, gpus, replica)
        await self._parts.workers.start(
            Launch(
                replica=replica,
                gpu_index=gpu_index,
                environment=environment,
                gpu_memory_mib=gpus[0].memory_mib,
            )
        )

    async def switch_routes(self, routes: tuple[ServiceRoute, ...]) -> None:
        # Only ready ones: the router would send requests to a server that does not listen yet.
        ready = {
            view.id: view.url
            for view in self._parts.workers.replicas()
            if view.state == "ready"
        }
        traits = {each: self._parts.workers.traits(each) for each in ready}
        try:
            await self.router.switch_routes(routes, ready, traits)
        except KeyError as error:
            raise UnknownPart(
                f"replica {error} is not ready and cannot take requests"
            ) from error

    async def drain(self, replica_id: str) -> None:
        await self._parts.workers.drain(replica_id)

    async def stop_replica(self, replica_id: str) -> None:
        await self._parts.workers.stop(replica_id)

    async def sleep(self, replica_id: str) -> None:
        await self._parts.workers.sleep(replica_id)

    async def wake(self, replica_id: str) -> None:
        for view in self._spanned():
            if view.id == replica_id and view.state == "asleep":
                more_mib = view.memory_mib * (1.0 / ASLEEP_SHARE - 1.0)
                self._require_room(view.gpu_index, f"replica {replica_id}", more_mib)
        await self._parts.workers.wake(replica_id)

    async def set_batch(self, replica_id: str, batch: int) -> None:
        if await self._parts.workers.set_batch(replica_id, batch) == "needs_restart":
            raise NotSupported(
                f"the server of replica {replica_id} takes no other batch while it runs; start another replica"
            )

    async def start_task(self, gpu_index: int, task: TaskCommand) -> None:
        gpu = self._require_room(gpu_index, f"task {task.name}", task.memory_mib)
        sharing = self._parts.sharings[gpu_index]
        environment = await environment_of(sharing, [gpu], task)
        await self._parts.tasks.start(
            TaskLaunch(
                command=task,
                gpu_index=gpu_index,
                environment=environment,
                gpu_memory_mib=gpu.memory_mib,
            )
        )

    async def stop_task(self, name: str) -> None:
        await self._parts.tasks.stop(name)

    async def swap_out(self, task: str) -> None:
        await self._parts.tasks.swap_out(task)

    async def swap_in(self, task: str) -> None:
        record = self._parts.tasks.record(task)
        self._require_room(record.gpu_index, f"task {task}", record.command.memory_mib)
        await self._parts.tasks.swap_in(task)

    async def lock_clock_mhz(self, gpu_index: int, clock_mhz: float | None) -> None:
        await self._turned.lock_clock_mhz(self._gpu(gpu_index), clock_mhz)

    async def limit_power_w(self, gpu_index: int, limit_w: float | None) -> None:
        await self._turned.limit_power_w(self._gpu(gpu_index), limit_w)

    async def acquit(self, gpu_index: int) -> None:
        self._parts.errors.acquit(self._gpu(gpu_index).uuid)

    async def close(self) -> None:
        """Whatever fails to close keeps nothing else from it, least of all the knobs."""
        # The stack runs from the last to the first: no request comes in while replicas end, the knobs are
        # restored when nothing runs any more, and telemetry, which closes the driver's library, comes at the end.
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(self._parts.telemetry.close)
            closing.push_async_callback(self._turned.close)
            closing.push_async_callback(asyncio.to_thread, self._parts.power.close)
            closing.push_async_callback(asyncio.to_thread, self._parts.errors.close)
            # The daemon of MPS has to live on for replicas that live on.
            if not self._keeps_replicas:
                closing.push_async_callback(self._end_sharing)
            closing.push_async_callback(self._parts.launcher.close)
            closing.push_async_callback(
                self._parts.tasks.close, keep=self._keeps_replicas
            )
            closing.push_async_callback(
                self._parts.workers.close, keep=self._keeps_replicas
            )
            closing.push_async_callback(self.router.close, keep=self._keeps_replicas)
            closing.push_async_callback(self._faults.close)

    async def _end_sharing(self) -> None:
        for index, sharing in sorted(self._parts.sharings.items()):
            try:
                await sharing.close()
            except DeviceError as error:
                log.error("GPU %d: %s", index, error)

    def _gpu_state(
        self,
        gpu: GpuState,
        replicas: tuple[ReplicaView, ...],
        holders: tuple[Holder, ...],
    ) -> GpuState:
        turned = self._turned.of(gpu.index)
        return replace(
            gpu,
            healthy=gpu.healthy
            and self._gpus[gpu.index].uuid not in self._parts.errors.condemned(),
            clock_mhz=turned.clock_mhz,
            power_limit_w=turned.power_limit_w,
            clocks_mhz=self._parts.capabilities[gpu.index].clocks_mhz,
            # A knob that was refused is reported as absent, so that enforcement does not ask for it every second.
            has_clock_lock="clock" not in turned.refused,
            has_power_limit="power limit" not in turned.refused,
            foreign_mib=self._parts.memory.mib(self._gpus[gpu.index], holders),
            replicas=tuple(
                view.running(self.router.in_flight(view.id))
                for view in replicas
                if view.gpu_index == gpu.index
            ),
            tasks=self._parts.tasks.running(gpu.index),
        )

    def _problems(self) -> tuple[str, ...]:
        sharing = (
            self._parts.sharings[index].problem
            for index in sorted(self._parts.sharings)
        )
        replicas = self._parts.workers.replicas()
        failed = (
            f"replica {view.id}: {view.pending or view.message}"
            for view in replicas
            if view.pending or view.state == "failed"
        )
        condemned = self._parts.errors.condemned()
        broken = (
            f"GPU {gpu.index}: {condemned[gpu.uuid]}"
            for gpu in self._parts.gpus
            if gpu.uuid in condemned
        )
        foreign = map(self._parts.memory.problem, self._parts.gpus)
        return tuple(
            problem
            for problem in (
                *broken,
                *sharing,
                *foreign,
                *self._turned.problems,
                *failed,
                *self._counters.problems,
                self._parts.errors.problem,
            )
            if problem
        )

    def _require_room(self, gpu_index: int, part: str, mib: float) -> GpuIdentity:
        gpu = self._gpu(gpu_index)
        require_room(self._parts.memory, gpu, self._holders(), part, mib)
        return gpu

    def _holders(self) -> tuple[Holder, ...]:
        return (*self._spanned(), *self._parts.tasks.holders())

    def _spanned(self) -> tuple[ReplicaView, ...]:
        return on_each_gpu(self._parts.workers.replicas())

    def _gpu(self, index: int) -> GpuIdentity:
        if index not in self._gpus:
            raise UnknownPart(f"no GPU {index}; this node has {sorted(self._gpus)}")
        return self._gpus[index]
