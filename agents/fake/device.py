"""A node with fake GPUs and a real HTTP path: timed workers behind the router, on this machine's CPU.

Replicas are HTTP servers in this process on free ports of 127.0.0.1; requests come to the router's port. Execution
times come from an injected function, power is not faked; tasks only pass time (`agents.fake.tasks`). It shows
the whole path of a command on any laptop.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import aiohttp
from aiohttp import web

from agents.base.clock import Clock
from agents.base.device import (
    MEMORY_TOLERANCE,
    DeviceError,
    DeviceReadings,
    GpuPoll,
    GpuState,
    LaunchFailed,
    NodeState,
    NotSupported,
    RunningReplica,
    ServiceRoute,
    UnknownPart,
    gpus_of,
)
from agents.base.protocol import (
    GpuReading,
    ReplicaCommand,
    ReplicaReading,
    ReplicaState,
    TaskCommand,
)
from agents.fake.tasks import FakeTasks, IterationTime
from agents.fake.worker import FakeWorker
from agents.llm.scheduler import EngineSize, LlmScheduler
from agents.llm.server import LlmServer, StepTime
from agents.router.router import Router

STOP_S = 1.0
"""Wall seconds that a stopped worker's last requests get; it was drained before."""
_ANSWER = aiohttp.ClientTimeout(total=5.0)
NO_POWER = "fake GPUs draw no power that could be measured"

ExecutionTime: TypeAlias = Callable[[ReplicaCommand, GpuState, int], float]
"""(replica, its GPU as it is now, rows of the batch) → seconds. Raises LaunchFailed where it is unknown."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Replica:
    """One replica and its HTTP server."""

    command: ReplicaCommand
    gpu_index: int
    worker: FakeWorker
    runner: web.AppRunner
    launch: "asyncio.Task[None] | None" = None
    url: str = ""
    state: ReplicaState = "starting"
    draining_since_s: float = math.inf
    batches_read: int = 0
    requests_read: int = 0
    busy_read_s: float = 0.0


class FakeDevice:
    """Fake workers behind a router."""

    def __init__(
        self,
        gpus: tuple[GpuState, ...],
        *,
        execution_s: ExecutionTime,
        iteration_s: IterationTime,
        clock: Clock,
        launch_s: float = 1.0,
    ) -> None:
        """`gpus`: the fake GPUs, empty; `launch_s`: start of a replica or task, in seconds of the clock."""
        self.router = Router()
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._execution_s = execution_s
        self._clock = clock
        self._launch_s = launch_s
        self._replicas: dict[str, _Replica] = {}
        self._tasks = FakeTasks(iteration_s=iteration_s, clock=clock, launch_s=launch_s)
        self._window_start_s = clock.now_s()
        self._notify: Callable[[], None] = lambda: None

    async def state(self) -> NodeState:
        self._tasks.advance(self._gpus)
        return NodeState(
            gpus=tuple(map(self._filled, self._gpus.values())),
            routes=self.router.routes,
            stranded=self.router.stranded,
        )

    def on_change(self, notify: Callable[[], None]) -> None:
        self._notify = self.router.on_wait = notify

    async def read(self) -> DeviceReadings:
        now_s = self._clock.now_s()
        window_s, self._window_start_s = now_s - self._window_start_s, now_s
        self._tasks.advance(self._gpus)
        busy_s = {index: self._tasks.busy_s(index) for index in self._gpus}
        for each in self._replicas.values():
            # The replicas of a GPU overlap, so their sum would exceed the window.
            busy_s[each.gpu_index] = max(
                busy_s[each.gpu_index], each.worker.busy_s - each.busy_read_s
            )
        gpus = tuple(
            self._read_gpu(gpu, busy_s[gpu.index], window_s)
            for gpu in self._gpus.values()
        )
        replicas = tuple(map(_read_replica, self._replicas.values()))
        return DeviceReadings(
            gpus=gpus,
            replicas=replicas,
            services=self.router.read(),
            tasks=self._tasks.read(),
            problems=(NO_POWER,),
        )

    async def poll(self, gpu_index: int) -> GpuPoll:
        raise NotSupported(f"GPU {gpu_index} cannot be governed: {NO_POWER}")

    async def peak_power_w(self, gpu_index: int) -> float:
        return (await self.poll(gpu_index)).peak_power_w

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        gpu = self._filled(self._gpu(gpu_index))
        free_mib = min(map(self._free_mib, gpus_of(replica, gpu_index)))
        if replica.id in self._replicas:
            raise LaunchFailed(f"replica {replica.id} runs already; stop it first")
        if replica.memory_mib > free_mib:
            raise LaunchFailed(
                f"replica {replica.id} needs {replica.memory_mib:g} MiB, GPU {gpu_index} has {free_mib:g}"
            )
        # A network that was not measured must fail here, not in a batch.
        if replica.engine is None:
            self._execution_s(replica, gpu, replica.batch)
        worker = FakeWorker(
            replica.service,
            batch=replica.batch,
            execution_s=lambda size: self._execution_s(
                replica, self._gpus[gpu_index], size
            ),
            clock=self._clock,
        )
        app = worker.make_app() if replica.engine is None else _engine_app(replica)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=STOP_S, handler_cancellation=True
        )
        started = _Replica(
            command=replica, gpu_index=gpu_index, worker=worker, runner=runner
        )
        self._replicas[replica.id] = started
        # In the background, as a device must return at once: the next `state()` shows what became of it.
        started.launch = asyncio.create_task(self._launch(started))

    async def switch_routes(self, routes: tuple[ServiceRoute, ...]) -> None:
        ready = {
            each: running.url
            for each, running in self._replicas.items()
            if running.state == "ready"
        }
        try:
            self.router.switch(routes, ready)
        except KeyError as error:
            raise UnknownPart(
                f"replica {error} is not ready and cannot take requests"
            ) from error

    async def drain(self, replica_id: str) -> None:
        each = self._find(replica_id)
        if each.state == "ready":
            each.state, each.draining_since_s = "draining", self._clock.now_s()

    async def sleep(self, replica_id: str) -> None:
        raise NotSupported(f"replica {replica_id} cannot sleep: it has no GPU")

    async def wake(self, replica_id: str) -> None:
        each = self._find(replica_id)
        if each.state == "draining":
            each.state, each.draining_since_s = "ready", math.inf

    async def stop_replica(self, replica_id: str) -> None:
        each = self._find(replica_id)
        del self._replicas[replica_id]
        if each.launch is not None:
            each.launch.cancel()
            # Waited for: a launch that is still at work would open the port after the cleanup.
            await asyncio.wait({each.launch})
        await each.runner.cleanup()

    async def set_batch(self, replica_id: str, batch: int) -> None:
        """Ask the worker over HTTP, as a real one would be asked."""
        each = self._find(replica_id)
        url = f"{each.url}/batch"
        try:
            async with (
                aiohttp.ClientSession(timeout=_ANSWER) as session,
                session.put(url, json={"batch": batch}) as answer,
            ):
                if not answer.ok:
                    raise DeviceError(
                        f"replica {replica_id} does not take batch {batch}: {await answer.text()}"
                    )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DeviceError(
                f"replica {replica_id} does not answer: {error}"
            ) from error

    async def start_task(self, gpu_index: int, task: TaskCommand) -> None:
        self._tasks.start(
            self._gpu(gpu_index), task, free_mib=self._free_mib(gpu_index)
        )

    async def stop_task(self, name: str) -> None:
        self._tasks.stop(name)

    async def swap_out(self, task: str) -> None:
        self._tasks.advance(self._gpus)
        self._tasks.swap_out(task)

    async def swap_in(self, task: str) -> None:
        self._tasks.swap_in(task, free_mib=self._free_mib(self._tasks.gpu_of(task)))

    async def lock_clock_mhz(self, gpu_index: int, clock_mhz: float | None) -> None:
        self._gpus[gpu_index] = replace(self._gpu(gpu_index), clock_mhz=clock_mhz)

    async def limit_power_w(self, gpu_index: int, limit_w: float | None) -> None:
        self._gpus[gpu_index] = replace(self._gpu(gpu_index), power_limit_w=limit_w)

    async def acquit(self, gpu_index: int) -> None:
        """Nothing is wrong with a GPU that is not there."""

    async def close(self) -> None:
        # First, so that no request goes to a server that is being closed.
        self.router.switch((), {})
        self._tasks.clear()
        for replica_id in tuple(self._replicas):
            await self.stop_replica(replica_id)

    async def _launch(self, each: _Replica) -> None:
        """Open the worker's port and make it ready; a failure is a state, seen by the next `state()`."""
        try:
            await each.runner.setup()
            # Port 0: the kernel chooses, so that any number of nodes fit on one machine.
            await web.TCPSite(each.runner, "127.0.0.1", 0).start()
        except OSError as error:
            log.error("replica %s cannot start: %s", each.command.id, error)
            each.state = "failed"
            self._notify()
            return
        each.url = f"http://127.0.0.1:{each.runner.addresses[0][1]}"
        await self._clock.sleep(self._launch_s)
        each.state = "ready"
        self._notify()

    def _gpu(self, index: int) -> GpuState:
        if index not in self._gpus:
            raise UnknownPart(f"no GPU {index}; this node has {sorted(self._gpus)}")
        return self._gpus[index]

    def _find(self, replica_id: str) -> _Replica:
        if replica_id not in self._replicas:
            raise UnknownPart(f"no replica {replica_id} on this node")
        return self._replicas[replica_id]

    def _filled(self, gpu: GpuState) -> GpuState:
        mine = [
            each
            for each in self._replicas.values()
            if gpu.index in gpus_of(each.command, each.gpu_index)
        ]
        return replace(
            gpu,
            replicas=tuple(map(self._replica_state, mine)),
            tasks=self._tasks.on(gpu.index),
        )

    def _free_mib(self, gpu_index: int) -> float:
        """What is not held, with the rounding that sums may carry."""
        gpu = self._filled(self._gpu(gpu_index))
        # What was granted counts, not what is used, as on a real GPU: a replica may take all of it at any time.
        held_mib = sum(
            each.memory_mib for each in gpu.replicas if each.state != "failed"
        )
        held_mib += sum(each.memory_mib for each in gpu.tasks if each.holds_memory)
        return gpu.memory_mib * (1.0 + MEMORY_TOLERANCE) - held_mib

    def _replica_state(self, each: _Replica) -> RunningReplica:
        return RunningReplica(
            id=each.command.id,
            service=each.command.service,
            network=each.command.network,
            state=each.state,
            sm_percent=each.command.sm_percent,
            batch=each.worker.batch,
            memory_mib=each.command.memory_mib,
            in_flight=self.router.in_flight(each.command.id),
            draining_s=max(0.0, self._clock.now_s() - each.draining_since_s),
            drain_s=None
            if each.command.engine is None
            else each.command.engine.drain_s,
            can_return=each.state == "draining" and each.command.engine is not None,
        )

    def _read_gpu(self, gpu: GpuState, busy_s: float, window_s: float) -> GpuReading:
        """`busy_s`: of the busiest replica or task, a lower bound of the time in which any of them executed."""
        filled = self._filled(gpu)
        tasks_mib = sum(each.memory_mib for each in filled.tasks if each.holds_memory)
        return GpuReading(
            index=gpu.index,
            gpu_type=gpu.gpu_type,
            memory_mib=gpu.memory_mib,
            memory_used_mib=tasks_mib
            + sum(each.memory_mib for each in filled.replicas),
            # 0 and no estimate, which would be taken for a measurement.
            power_w=0.0,
            energy_j=0.0,
            clock_mhz=gpu.clock_mhz or 0.0,
            busy_percent=min(100.0, 100.0 * busy_s / window_s)
            if window_s > 0.0
            else 0.0,
        )


def _engine_app(replica: ReplicaCommand) -> web.Application:
    """A language model's stand-in, as its command wants it started."""
    assert replica.engine is not None
    size = EngineSize(
        max_num_batched_tokens=replica.engine.max_num_batched_tokens,
        max_num_seqs=replica.engine.max_num_seqs,
    )
    return LlmServer(replica.service, LlmScheduler(size), StepTime()).make_app()


def _read_replica(each: _Replica) -> ReplicaReading:
    """What the replica did since the last reading."""
    worker = each.worker
    batches = worker.batches.total() - each.batches_read
    finished = worker.requests - each.requests_read
    busy_s = worker.busy_s - each.busy_read_s
    each.batches_read, each.requests_read, each.busy_read_s = (
        worker.batches.total(),
        worker.requests,
        worker.busy_s,
    )
    return ReplicaReading(
        id=each.command.id,
        service=each.command.service,
        gpu_index=each.gpu_index,
        state=each.state,
        sm_percent=each.command.sm_percent,
        batch=worker.batch,
        memory_mib=each.command.memory_mib,
        batches=batches,
        requests=finished,
        execution_ms=1000.0 * busy_s / batches if batches else 0.0,
    )
