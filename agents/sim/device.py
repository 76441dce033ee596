"""One node of a simulated cluster as a Device: the same protocol that a real machine has."""

from collections.abc import Callable

import numpy as np

from agents.base.device import (
    DeviceReadings,
    GpuPoll,
    GpuState,
    NodeState,
    NotSupported,
    RunningReplica,
    ServiceRoute,
)
from agents.base.protocol import (
    GpuReading,
    ReplicaCommand,
    ReplicaReading,
    ServiceReading,
    TaskCommand,
)
from agents.sim.cluster import SimulatedCluster
from agents.sim.gpu import SimGpu, SimReplica
from agents.sim.polls import PollWindows
from agents.sim.queues.engine_queue import EngineQueue
from agents.sim.queues.tally import Ints


class SimulatedDevice:
    """Every method first moves the whole cluster on to the clock's present."""

    def __init__(self, cluster: SimulatedCluster, node: str) -> None:
        """Raises UnknownPart when the cluster has no such node."""
        self._cluster = cluster
        self._node = cluster.node(node)
        self._poll_windows = PollWindows(self._node)
        self._window_start_s = cluster.advance()

    async def state(self) -> NodeState:
        now_s = self._cluster.advance()
        return NodeState(
            gpus=tuple(_gpu_state(gpu, now_s) for gpu in self._node.gpus),
            routes=self._node.routes,
        )

    def on_change(self, notify: Callable[[], None]) -> None:
        pass

    async def read(self) -> DeviceReadings:
        now_s = self._cluster.advance()
        # Before the counters are read and reset.
        self._poll_windows.end_window()
        window_s = now_s - self._window_start_s
        self._window_start_s = now_s
        readings = DeviceReadings(
            gpus=tuple(self._read_gpu(gpu, window_s) for gpu in self._node.gpus),
            replicas=tuple(
                _read_replica(gpu, each) for gpu, each in self._node.replicas()
            ),
            services=self._read_services(),
            tasks=tuple(each.read(gpu.index) for gpu, each in self._node.tasks()),
        )
        for gpu, reading in zip(self._node.gpus, readings.gpus, strict=True):
            # A GPU that was emptied within the window was in use for a part of it.
            if any(gpu.carried) or gpu.tasks or gpu.departed_energy_j > 0.0:
                gpu.used_energy_j += reading.energy_j
            gpu.busy_s += (reading.busy_percent or 0.0) / 100.0 * window_s
            gpu.departed_energy_j = 0.0
        for _, each in self._node.replicas():
            # Only now: the readings above were taken from these counters.
            each.queue.new_window()
        return readings

    async def poll(self, gpu_index: int) -> GpuPoll:
        self._cluster.advance()
        return self._poll_windows.take(self._node.gpu(gpu_index))

    async def peak_power_w(self, gpu_index: int) -> float:
        return (await self.poll(gpu_index)).peak_power_w

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        self._node.start(gpu_index, replica, self._cluster.advance())

    async def switch_routes(self, routes: tuple[ServiceRoute, ...]) -> None:
        self._cluster.advance()
        before, self._node.routes = self._node.routes, routes
        # Paces hold the SLO by which late requests are shed; weights do not affect them.
        if _slos(before) != _slos(routes):
            for gpu in self._node.gpus:
                self._node.set_paces(gpu)

    async def drain(self, replica_id: str) -> None:
        self._node.drain(replica_id, self._cluster.advance())

    async def sleep(self, replica_id: str) -> None:
        raise NotSupported(f"replica {replica_id} cannot sleep: it has no server")

    async def wake(self, replica_id: str) -> None:
        self._cluster.advance()
        self._node.wake(replica_id)

    async def stop_replica(self, replica_id: str) -> None:
        self._node.stop(replica_id, self._cluster.advance())

    async def set_batch(self, replica_id: str, batch: int) -> None:
        self._cluster.advance()
        self._node.set_batch(replica_id, batch)

    async def start_task(self, gpu_index: int, task: TaskCommand) -> None:
        self._node.start_task(gpu_index, task, self._cluster.advance())

    async def stop_task(self, name: str) -> None:
        self._cluster.advance()
        self._node.stop_task(name)

    async def swap_out(self, task: str) -> None:
        self._node.swap(task, "swapped", self._cluster.advance())

    async def swap_in(self, task: str) -> None:
        self._node.swap(task, "running", self._cluster.advance())

    async def lock_clock_mhz(self, gpu_index: int, clock_mhz: float | None) -> None:
        self._cluster.advance()
        self._node.lock_clock(gpu_index, clock_mhz)

    async def limit_power_w(self, gpu_index: int, limit_w: float | None) -> None:
        self._cluster.advance()
        self._node.limit_power(gpu_index, limit_w)

    async def acquit(self, gpu_index: int) -> None:
        """A simulated GPU is as its scenario says."""

    async def close(self) -> None:
        now_s = self._cluster.advance()
        self._node.routes = ()
        for gpu in self._node.gpus:
            for replica_id in tuple(gpu.replicas):
                self._node.stop(replica_id, now_s)
            for name in tuple(gpu.tasks):
                self._node.stop_task(name)
            gpu.clock_mhz = gpu.power_limit_w = None

    def _read_gpu(self, gpu: SimGpu, window_s: float) -> GpuReading:
        idle_w = self._cluster.world.idle_w(gpu.spec.gpu_type)
        works = [(each.queue.busy_s, each.queue.energy_j) for each in gpu.carried]
        works += [(each.busy_s, each.energy_j) for each in gpu.tasks.values()]
        energy_j = (
            idle_w * window_s
            + gpu.departed_energy_j
            + sum(work_j for _, work_j in works)
        )
        free = 1.0
        for busy_s, _ in works:  # as if the busy times were independent of each other
            free *= 1.0 - min(1.0, busy_s / window_s if window_s > 0.0 else 0.0)
        return GpuReading(
            index=gpu.index,
            gpu_type=gpu.spec.gpu_type,
            memory_mib=gpu.spec.memory_mib,
            memory_used_mib=gpu.memory_used_mib,
            power_w=energy_j / window_s if window_s > 0.0 else idle_w,
            energy_j=energy_j,
            clock_mhz=gpu.effective_clock_mhz,
            busy_percent=100.0 * (1.0 - free),
            healthy=gpu.is_healthy,
        )

    def _read_services(self) -> tuple[ServiceReading, ...]:
        cluster, node = self._cluster, self._node
        tallies = cluster.clear_tallies(node)
        names = {route.service for route in node.routes} | tallies.keys()
        if node is cluster.home:
            # The first node reports services without a replica anywhere, which would otherwise vanish from
            # the readings.
            names |= set(cluster.services)
        queued = dict.fromkeys(names, 0)
        for _, each in node.replicas():
            queued[each.command.service] = (
                queued.get(each.command.service, 0) + each.queue.in_flight
            )
        if node is cluster.home:
            queued = {
                service: count + cluster.waiting(service)
                for service, count in queued.items()
            }
        readings = []
        for service in sorted(queued):
            tally = tallies.get(service)
            readings.append(
                ServiceReading(
                    service=service,
                    arrivals=0,
                    served=0,
                    in_slo=0,
                    queued=queued[service],
                )
                if tally is None
                else ServiceReading(
                    service=service,
                    arrivals=tally.arrivals,
                    served=tally.served,
                    in_slo=tally.in_slo,
                    rejected=tally.rejected,
                    queued=queued[service],
                    output_tokens=tally.output_tokens,
                    latency_buckets=_counted(tally.buckets),
                )
            )
        return tuple(readings)


def _counted(buckets: Ints) -> tuple[tuple[int, int], ...]:
    places = np.flatnonzero(buckets)
    return tuple(zip(places.tolist(), buckets[places].tolist(), strict=True))


def _slos(routes: tuple[ServiceRoute, ...]) -> set[tuple[str, float]]:
    return {(route.service, route.slo_ms) for route in routes}


def _gpu_state(gpu: SimGpu, now_s: float) -> GpuState:
    return GpuState(
        index=gpu.index,
        gpu_type=gpu.spec.gpu_type,
        memory_mib=gpu.spec.memory_mib,
        healthy=gpu.is_healthy,
        clock_mhz=gpu.clock_mhz,
        power_limit_w=gpu.power_limit_w,
        clocks_mhz=gpu.clocks_mhz,
        max_replicas=gpu.spec.max_replicas,
        replicas=tuple(_replica_state(each, now_s) for each in gpu.carried),
        tasks=tuple(each.running_task() for each in gpu.tasks.values()),
    )


def _replica_state(each: SimReplica, now_s: float) -> RunningReplica:
    return RunningReplica(
        id=each.command.id,
        service=each.command.service,
        network=each.command.network,
        state=each.state,
        sm_percent=each.command.sm_percent,
        batch=each.command.batch,
        memory_mib=each.command.memory_mib,
        in_flight=each.queue.in_flight,
        draining_s=max(0.0, now_s - each.draining_since_s),
        drain_s=None if each.command.engine is None else each.command.engine.drain_s,
        can_return=each.state == "draining" and each.is_model,
    )


def _read_replica(gpu: SimGpu, each: SimReplica) -> ReplicaReading:
    queue = each.queue
    return ReplicaReading(
        id=each.command.id,
        service=each.command.service,
        gpu_index=gpu.index,
        state=each.state,
        sm_percent=each.command.sm_percent,
        batch=each.command.batch,
        memory_mib=each.command.memory_mib,
        batches=queue.batches,
        requests=queue.requests,
        execution_ms=1000.0 * queue.execution_s / queue.batches
        if queue.batches
        else 0.0,
        tokens=queue.tokens if isinstance(queue, EngineQueue) else None,
    )
