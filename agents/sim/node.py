"""State of one simulated machine: GPUs, routes, and the counts of the window since the last reading.

All times are seconds of trace time. Nothing here knows a clock; `agents.sim.cluster` moves it.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from agents.base.device import (
    MEMORY_TOLERANCE,
    GpuLost,
    LaunchFailed,
    OutOfRange,
    ServiceRoute,
    UnknownPart,
    gpus_of,
)
from agents.base.protocol import ReplicaCommand, TaskCommand, TaskState
from agents.sim.gpu import SimGpu, SimReplica
from agents.sim.load.models import SimulatedModels
from agents.sim.pace import LOWEST_CLOCK_SHARE, PaceMaker, make_queue
from agents.sim.queues.engine_queue import EngineQueue
from agents.sim.queues.replica_queue import ReplicaQueue
from agents.sim.queues.tally import ServiceTally
from agents.sim.spec import SimulatedNodeSpec
from agents.sim.tasks import SimTask
from agents.sim.truth.truth import TruthError


class SimNode:
    """One simulated machine. Errors are those of `agents.base.device`."""

    def __init__(
        self,
        spec: SimulatedNodeSpec,
        paces: PaceMaker,
        random: np.random.Generator,
        models: SimulatedModels,
    ) -> None:
        self.spec = spec
        self.world = paces.world
        self.gpus = [SimGpu(gpu, index, paces) for index, gpu in enumerate(spec.gpus)]
        self._routes: tuple[ServiceRoute, ...] = ()
        self.changes = 0
        """How often routes, replicas, tasks or their states have changed."""
        self.tallies: dict[str, ServiceTally] = {}
        self._random, self._models = random, models
        (self._random_of_tasks,) = random.spawn(
            1
        )  # with or without tasks, replicas draw the same

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """To which of its replicas requests go."""
        return self._routes

    @routes.setter
    def routes(self, routes: tuple[ServiceRoute, ...]) -> None:
        self._routes = routes
        self.changes += 1

    def tally(self, service: str) -> ServiceTally:
        """The service's counts of this window."""
        return self.tallies.setdefault(service, ServiceTally())

    def replicas(self) -> Iterator[tuple[SimGpu, SimReplica]]:
        """Every replica with its GPU, by GPU and then by start."""
        return ((gpu, each) for gpu in self.gpus for each in gpu.replicas.values())

    def tasks(self) -> Iterator[tuple[SimGpu, SimTask]]:
        """Every task with its GPU, by GPU and then by start."""
        return ((gpu, each) for gpu in self.gpus for each in gpu.tasks.values())

    def find(self, replica_id: str) -> tuple[SimGpu, SimReplica]:
        """The replica of that id; raises UnknownPart."""
        for gpu, each in self.replicas():
            if each.command.id == replica_id:
                return gpu, each
        raise UnknownPart(f"no replica {replica_id} on node {self.spec.name}")

    def is_ready(self, replica_id: str) -> bool:
        """Whether a replica of that id is there and ready."""
        return any(
            each.command.id == replica_id and each.state == "ready"
            for _, each in self.replicas()
        )

    def find_task(self, name: str) -> tuple[SimGpu, SimTask]:
        """The task of that name; raises UnknownPart."""
        for gpu, each in self.tasks():
            if each.command.name == name:
                return gpu, each
        raise UnknownPart(f"no task {name} on node {self.spec.name}")

    def gpu(self, index: int) -> SimGpu:
        """The healthy GPU of that index; raises UnknownPart or GpuLost."""
        if not 0 <= index < len(self.gpus):
            raise UnknownPart(
                f"no GPU {index} on node {self.spec.name}; it has {len(self.gpus)}"
            )
        if not self.gpus[index].is_healthy:
            raise GpuLost(
                f"GPU {index} of node {self.spec.name} does not answer; reset it or replace it"
            )
        return self.gpus[index]

    def start(self, gpu_index: int, command: ReplicaCommand, now_s: float) -> None:
        """Begin to start a replica."""
        gpu, *others = self._gpus_of(command, gpu_index)
        # Ids are unique on a node, as processes' records are on a real one.
        if any(command.id in each.replicas for each in self.gpus):
            raise LaunchFailed(f"replica {command.id} runs already; stop it first")
        for each in (gpu, *others):
            _check_room(each, f"replica {command.id}", command.memory_mib)
        # The limit of MPS, so that a plan that breaks it fails here as it would on a real GPU.
        if len(gpu.replicas) >= gpu.spec.max_replicas:
            raise LaunchFailed(
                f"GPU {gpu_index} already has {gpu.spec.max_replicas} replicas"
            )
        replica = SimReplica(
            command,
            ready_at_s=now_s + self.spec.launch_s,
            queue=self._make_queue(command, gpu.spec.gpu_type),
        )
        gpu.replicas[command.id] = replica
        for each in others:
            each.spanned[command.id] = replica
        self.changes += 1
        self.launch_ends(now_s)  # Some need no time.

    def _gpus_of(self, command: ReplicaCommand, first: int) -> list[SimGpu]:
        """The healthy GPUs that a replica uses, that of its entry first; raises UnknownPart or GpuLost."""
        return [self.gpu(index) for index in gpus_of(command, first)]

    def _make_queue(
        self, command: ReplicaCommand, gpu_type: str
    ) -> ReplicaQueue | EngineQueue:
        """What a new replica works off; raises LaunchFailed or OutOfRange."""
        if command.engine is not None:
            return self._models.make_queue(command, gpu_type)
        self._check_batch(command)
        # Drawn at the start and used in turn: the same replica meets the same noise however time is cut.
        return make_queue(self.world, command.network, self._random)

    def start_task(self, gpu_index: int, command: TaskCommand, now_s: float) -> None:
        """Begin to start a task."""
        gpu = self.gpu(gpu_index)
        if any(command.name in each.tasks for each in self.gpus):
            raise LaunchFailed(f"task {command.name} runs already; stop it first")
        _check_room(gpu, f"task {command.name}", command.memory_mib)
        self._check_batch(command)
        gpu.tasks[command.name] = SimTask(
            command,
            ready_at_s=now_s + self.spec.launch_s,
            random=self._random_of_tasks,
            noise_cv=self.world.noise_cv(command.network),
        )
        self.changes += 1
        self.launch_ends(now_s)  # Some need no time.

    def launch_ends(self, now_s: float) -> None:
        """Every replica whose launch is over becomes ready, or fails where launches fail; a task runs, or is where it
        was to be moved."""
        for gpu, each in self.replicas():
            if each.state == "starting" and each.ready_at_s <= now_s:
                each.state = "failed" if gpu.launch_fails else "ready"
                self.changes += 1
                self.set_paces(gpu)
        for gpu, task in self.tasks():
            if task.due_s <= now_s:
                task.arrive(launch_fails=gpu.launch_fails)
                self._task_changed(gpu)

    def finish_tasks(self, now_s: float) -> None:
        """Every task that has done all its iterations has finished."""
        for gpu, task in self.tasks():
            if task.state == "running" and task.finish_s(now_s) <= now_s:
                task.finish()
                self._task_changed(gpu)

    def swap(self, name: str, becomes: TaskState, now_s: float) -> None:
        """Begin to move a task's memory out of its GPU or back to it; nothing where it is on its way or there."""
        gpu, task = self.find_task(name)
        if (task.state, becomes) == ("swapped", "running"):
            _check_room(gpu, f"task {name}", task.command.memory_mib)
        elif (task.state, becomes) != ("running", "swapped"):
            return
        task.swap(becomes, now_s)
        self._task_changed(gpu)
        self.launch_ends(now_s)

    def stop_task(self, name: str) -> None:
        """End a task, or forget it."""
        gpu, task = self.find_task(name)
        del gpu.tasks[name]
        # Its energy was drawn in this window, although the task is gone when it is read.
        gpu.departed_energy_j += task.energy_j
        self._task_changed(gpu)

    def drain(self, replica_id: str, now_s: float) -> None:
        """Take nothing more."""
        _, each = self.find(replica_id)
        if each.state == "ready":
            each.state, each.draining_since_s = "draining", now_s
            self.changes += 1

    def wake(self, replica_id: str) -> None:
        """Take requests again."""
        _, each = self.find(replica_id)
        if each.state == "draining":
            each.state, each.draining_since_s = "ready", np.inf
            self.changes += 1

    def stop(self, replica_id: str, now_s: float) -> None:
        """End a replica; its requests are lost."""
        gpu, each = self.find(replica_id)
        self._lose(each, now_s)
        del gpu.replicas[replica_id]
        self.changes += 1
        spanned = [other for other in self.gpus if other.spanned.pop(replica_id, None)]
        for used in (gpu, *spanned):
            used.departed_energy_j += each.queue.energy_j
        self.set_paces(gpu)

    def set_batch(self, replica_id: str, batch: int) -> None:
        """Change the largest batch."""
        gpu, each = self.find(replica_id)
        changed = msgspec.structs.replace(each.command, batch=batch)
        if not each.is_model:
            self._check_batch(changed)
        each.command = changed
        self.set_paces(gpu)

    def lock_clock(self, gpu_index: int, clock_mhz: float | None) -> None:
        """Lock the graphics clock, or unlock it."""
        gpu = self.gpu(gpu_index)
        lowest_mhz, highest_mhz = (
            gpu.spec.max_clock_mhz * LOWEST_CLOCK_SHARE,
            gpu.spec.max_clock_mhz,
        )
        if clock_mhz is not None and not lowest_mhz <= clock_mhz <= highest_mhz:
            raise OutOfRange(
                f"GPU {gpu_index} runs at {lowest_mhz:g} to {highest_mhz:g} MHz, not at {clock_mhz:g}"
            )
        gpu.clock_mhz = clock_mhz
        self.set_paces(gpu)

    def limit_power(self, gpu_index: int, limit_w: float | None) -> None:
        """Limit the board's power, or lift the limit."""
        gpu = self.gpu(gpu_index)
        idle_w = self.world.idle_w(gpu.spec.gpu_type)
        # No clock is low enough to bring a board below what it draws when idle.
        if limit_w is not None and limit_w <= idle_w:
            raise OutOfRange(
                f"GPU {gpu_index} draws {idle_w:g} W when idle and cannot be limited to {limit_w:g} W"
            )
        gpu.power_limit_w = limit_w
        self.set_paces(gpu)

    def lose_gpu(self, gpu: SimGpu, now_s: float) -> None:
        """The GPU stops answering: every replica and task on it fails."""
        gpu.is_healthy = False
        # A reset undoes them, as on a real board.
        gpu.clock_mhz = gpu.power_limit_w = None
        for each in gpu.carried:
            self._lose(each, now_s)
            each.state = "failed"
        for task in gpu.tasks.values():
            task.fail()
        self.changes += 1

    def set_paces(self, gpu: SimGpu) -> None:
        """Look the execution times on a GPU up again."""
        for each in gpu.carried:
            if isinstance(each.queue, EngineQueue):
                # Each step takes all of its GPUs, and as long as the slowest of them.
                each.queue.slowdown = max(
                    other.slowdown for other in self.gpus if each in other.carried
                )
        gpu.set_paces({route.service: route.slo_ms / 1000.0 for route in self.routes})

    def _lose(self, each: SimReplica, now_s: float) -> None:
        # What is lost has waited until now, and counts with that.
        age_s = each.queue.age_s(now_s)
        self.tally(each.command.service).reject(each.queue.drop(), after_s=age_s)

    def _task_changed(self, gpu: SimGpu) -> None:
        self.changes += 1
        self.set_paces(gpu)

    def _check_batch(self, command: ReplicaCommand | TaskCommand) -> None:
        try:
            largest = self.world.max_batch(command.network)
        except TruthError as error:
            raise LaunchFailed(str(error)) from error
        if command.batch > largest:
            raise OutOfRange(
                f"{command.network} was measured with batches 1 to {largest}, not {command.batch}"
            )


def _check_room(gpu: SimGpu, who: str, memory_mib: float) -> None:
    if gpu.memory_used_mib + memory_mib > gpu.spec.memory_mib * (
        1.0 + MEMORY_TOLERANCE
    ):
        free_mib = gpu.spec.memory_mib - gpu.memory_used_mib
        raise LaunchFailed(
            f"{who} needs {memory_mib:g} MiB, GPU {gpu.index} has {free_mib:g}"
        )
