"""A device that only keeps books; a program which runs one loads no library of tests with it."""

from collections.abc import Callable
from dataclasses import replace

from agents.base.device import (
    ASLEEP_SHARE,
    DeviceError,
    DeviceReadings,
    GpuPoll,
    GpuState,
    LaunchFailed,
    NodeState,
    NotSupported,
    RunningReplica,
    RunningTask,
    ServiceRoute,
    UnknownPart,
    gpus_of,
)
from agents.base.protocol import (
    GpuReading,
    ReplicaCommand,
    ServiceReading,
    TaskCommand,
    TaskState,
)


def a_running_task(want: TaskCommand, state: TaskState = "running") -> RunningTask:
    return RunningTask(
        name=want.name,
        network=want.network,
        batch=want.batch,
        state=state,
        sm_percent=want.sm_percent,
        memory_mib=want.memory_mib,
    )


def paper_reading(gpu: GpuState, passed_s: float) -> GpuReading:
    """What a GPU that only keeps books tells of `passed_s` seconds: figures that every check lets pass."""
    return GpuReading(
        index=gpu.index,
        gpu_type=gpu.gpu_type,
        memory_mib=gpu.memory_mib,
        memory_used_mib=0.0,
        power_w=80.0,
        energy_j=80.0 * passed_s,
        clock_mhz=1000.0,
        busy_percent=10.0,
    )


class PaperDevice:
    """A device that only keeps books: replicas become ready or drained when the test says so.

    It refuses what no device may be asked: more memory or replicas than a GPU has, and unknown ids.
    """

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.log: list[str] = []
        self.fails_to_start: set[str] = set()
        self.readings = DeviceReadings()
        self.error: DeviceError | None = None
        """Raised in those who ask how the device is."""
        self.polls: dict[int, GpuPoll] = {}
        """What is measured of each GPU; none = this cannot be measured."""
        self.switch_error: DeviceError | None = None
        self.can_sleep = False
        """Whether language models' servers do."""
        self.is_closed = False
        self.acquitted: list[int] = []
        self.notify: Callable[[], None] = lambda: None
        """A test calls it as a device would that has changed."""
        self._swaps: dict[str, TaskState] = {}
        """What tasks that are being moved become."""

    async def state(self) -> NodeState:
        if self.error is not None:
            raise self.error
        return self._state

    def on_change(self, notify: Callable[[], None]) -> None:
        self.notify = notify

    async def read(self) -> DeviceReadings:
        if self.error is not None:
            raise self.error
        return self.readings

    async def poll(self, gpu_index: int) -> GpuPoll:
        if self.error is not None:
            raise self.error
        if gpu_index not in self.polls:
            raise NotSupported("nothing is measured here")
        return self.polls[gpu_index]

    async def peak_power_w(self, gpu_index: int) -> float:
        return (await self.poll(gpu_index)).peak_power_w

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        self.log.append(f"start {replica.id}")
        if replica.id in self.fails_to_start:
            raise LaunchFailed(f"{replica.id} does not start")
        if any(running.id == replica.id for running in self.replicas()):
            raise DeviceError(f"{replica.id} runs already")
        started = RunningReplica(
            id=replica.id,
            service=replica.service,
            network=replica.network,
            state="starting",
            sm_percent=replica.sm_percent,
            batch=replica.batch,
            memory_mib=replica.memory_mib,
            drain_s=None if replica.engine is None else replica.engine.drain_s,
            can_sleep=replica.engine is not None and self.can_sleep,
            uid=self._uid(replica.project),
        )
        for index in gpus_of(replica, gpu_index):
            gpu = self._state.gpus[index]
            if len(gpu.replicas) >= gpu.max_replicas:
                raise DeviceError(f"GPU {index} has no slot")
            self._put_gpu(_with_room(replace(gpu, replicas=(*gpu.replicas, started))))

    async def switch_routes(self, routes: tuple[ServiceRoute, ...]) -> None:
        if self.switch_error is not None:
            raise self.switch_error
        shares = {
            route.service: [replica_id for replica_id, _ in route.shares]
            for route in routes
        }
        self.log.append(f"route {shares}")
        self._state = replace(self._state, routes=routes)

    async def drain(self, replica_id: str) -> None:
        self.log.append(f"drain {replica_id}")
        _, each = self._find(replica_id)
        self.put(replica_id, state="draining", can_return=each.drain_s is not None)

    async def sleep(self, replica_id: str) -> None:
        self.log.append(f"sleep {replica_id}")
        _, each = self._find(replica_id)
        held_mib = each.memory_mib * ASLEEP_SHARE
        self.put(replica_id, state="asleep", memory_mib=held_mib)

    async def wake(self, replica_id: str) -> None:
        self.log.append(f"wake {replica_id}")
        _, each = self._find(replica_id)
        if each.state == "draining":
            self.put(replica_id, state="ready", can_return=False)
            return
        full_mib = each.memory_mib / ASLEEP_SHARE
        self.put(replica_id, state="starting", memory_mib=full_mib, can_return=False)
        for gpu in self._state.gpus:
            _with_room(gpu)

    async def stop_replica(self, replica_id: str) -> None:
        self.log.append(f"stop {replica_id}")
        self._find(replica_id)
        for gpu in self._state.gpus:
            left = tuple(each for each in gpu.replicas if each.id != replica_id)
            self._put_gpu(replace(gpu, replicas=left))

    async def set_batch(self, replica_id: str, batch: int) -> None:
        self.log.append(f"batch {replica_id} {batch}")
        self.put(replica_id, batch=batch)

    async def start_task(self, gpu_index: int, task: TaskCommand) -> None:
        self.log.append(f"start task {task.name}")
        if task.name in self.fails_to_start:
            raise LaunchFailed(f"{task.name} does not start")
        if any(running.name == task.name for running in self.tasks()):
            raise DeviceError(f"{task.name} runs already")
        gpu = self._state.gpus[gpu_index]
        self._put_gpu(
            _with_room(
                replace(
                    gpu,
                    tasks=(
                        *gpu.tasks,
                        replace(
                            a_running_task(task, "starting"),
                            uid=self._uid(task.project),
                        ),
                    ),
                )
            )
        )

    async def stop_task(self, name: str) -> None:
        self.log.append(f"stop task {name}")
        gpu, _ = self._find_task(name)
        self._put_gpu(
            replace(gpu, tasks=tuple(each for each in gpu.tasks if each.name != name))
        )

    async def swap_out(self, task: str) -> None:
        self.log.append(f"swap out {task}")
        self.put_task(task, state="swapping")
        self._swaps[task] = "swapped"

    async def swap_in(self, task: str) -> None:
        self.log.append(f"swap in {task}")
        self.put_task(task, state="swapping")
        self._swaps[task] = "running"

    async def lock_clock_mhz(self, gpu_index: int, clock_mhz: float | None) -> None:
        self.log.append(f"clock {gpu_index} {clock_mhz}")
        self._put_gpu(replace(self._state.gpus[gpu_index], clock_mhz=clock_mhz))

    async def limit_power_w(self, gpu_index: int, limit_w: float | None) -> None:
        self.log.append(f"power {gpu_index} {limit_w}")
        self._put_gpu(replace(self._state.gpus[gpu_index], power_limit_w=limit_w))

    async def acquit(self, gpu_index: int) -> None:
        if gpu_index >= len(self._state.gpus):
            raise UnknownPart(f"no GPU {gpu_index}")
        self.acquitted.append(gpu_index)

    async def close(self) -> None:
        self.is_closed = True

    def replicas(self) -> tuple[RunningReplica, ...]:
        return tuple(replica for gpu in self._state.gpus for replica in gpu.replicas)

    def tasks(self) -> tuple[RunningTask, ...]:
        return tuple(task for gpu in self._state.gpus for task in gpu.tasks)

    def put(self, replica_id: str, **changes: object) -> None:
        """Change fields of one replica, as time would."""
        _, old = self._find(replica_id)
        new = replace(old, **changes)  # type: ignore[arg-type]
        # One that spans GPUs stands on each of them.
        for gpu in self._state.gpus:
            replicas = tuple(
                new if each.id == old.id else each for each in gpu.replicas
            )
            self._put_gpu(replace(gpu, replicas=replicas))

    def make_ready(self) -> None:
        """Every starting replica becomes ready, every starting task runs, every swap ends."""
        for replica in self.replicas():
            if replica.state == "starting":
                self.put(replica.id, state="ready")
        for task in self.tasks():
            if task.state == "starting":
                self.put_task(task.name, state="running")
            elif task.state == "swapping":
                self.put_task(task.name, state=self._swaps.get(task.name, "swapped"))

    def put_task(self, name: str, **changes: object) -> None:
        """Change fields of one task, as time would; raises where that takes more memory than there is."""
        gpu, old = self._find_task(name)
        new = replace(old, **changes)  # type: ignore[arg-type]
        self._put_gpu(
            _with_room(
                replace(
                    gpu, tasks=tuple(new if each is old else each for each in gpu.tasks)
                )
            )
        )

    def _uid(self, project: str) -> int:
        return self._state.uids.get(project, self._state.uids.get("", -1))

    def _find(self, replica_id: str) -> tuple[GpuState, RunningReplica]:
        return next(
            (gpu, each)
            for gpu in self._state.gpus
            for each in gpu.replicas
            if each.id == replica_id
        )

    def _find_task(self, name: str) -> tuple[GpuState, RunningTask]:
        return next(
            (gpu, each)
            for gpu in self._state.gpus
            for each in gpu.tasks
            if each.name == name
        )

    def _put_gpu(self, gpu: GpuState) -> None:
        gpus = tuple(
            gpu if each.index == gpu.index else each for each in self._state.gpus
        )
        self._state = replace(self._state, gpus=gpus)


class BusyPaperDevice(PaperDevice):
    """Replicas are ready at once; every reading is of the same seconds, and has the same load."""

    def __init__(
        self,
        state: NodeState,
        *,
        passed_s: float,
        load: tuple[ServiceReading, ...] = (),
    ) -> None:
        super().__init__(state)
        self.passed_s, self.load = passed_s, load

    async def read(self) -> DeviceReadings:
        self.make_ready()
        gpus = tuple(paper_reading(gpu, self.passed_s) for gpu in self._state.gpus)
        return DeviceReadings(gpus=gpus, services=self.load)


def _with_room(gpu: GpuState) -> GpuState:
    """The GPU, unless what is alive on it exceeds its memory."""
    used_mib = sum(each.memory_mib for each in gpu.replicas if each.state != "failed")
    used_mib += sum(each.memory_mib for each in gpu.tasks if each.holds_memory)
    if used_mib > gpu.memory_mib:
        raise DeviceError(f"GPU {gpu.index} is out of memory")
    return gpu
