"""Commands, states and a device on paper, for tests of the node side."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TypeVar

import msgspec
from hypothesis import strategies as st

from agents.base.device import (
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
)
from agents.base.protocol import (
    GovernorCommand,
    GpuCommand,
    GpuReading,
    NodeCommand,
    ReplicaCommand,
    Route,
    TaskCommand,
    TaskState,
)

GPU_TYPE = "V100-32GB"
Result = TypeVar("Result")
MEMORIES_MIB = st.sampled_from([50.0, 900.0])
TASKS = ("t0", "t1", "r0", "r1")
"""Names of random tasks; some are called like replicas."""


def run(coroutine: Coroutine[None, None, Result]) -> Result:
    """The result of a coroutine that never really waits, without the cost of an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waits; run it in an event loop")


def a_replica(
    replica_id: str = "r1",
    *,
    service: str = "chat",
    sm_percent: float = 50.0,
    batch: int = 4,
    memory_mib: float = 1000.0,
    rate_rps: float = 10.0,
) -> ReplicaCommand:
    return ReplicaCommand(
        id=replica_id,
        service=service,
        network="resnet50",
        sm_percent=sm_percent,
        batch=batch,
        memory_mib=memory_mib,
        arrival_rate_rps=rate_rps,
    )


def a_task(
    name: str = "t1",
    *,
    network: str = "resnet50",
    sm_percent: float = 30.0,
    batch: int = 4,
    memory_mib: float = 1000.0,
    iterations: int = 1000,
    done: float = 0.0,
    is_resident: bool = True,
) -> TaskCommand:
    return TaskCommand(
        name=name,
        kind="offline",
        network=network,
        batch=batch,
        sm_percent=sm_percent,
        memory_mib=memory_mib,
        iterations=iterations,
        done_iterations=done,
        is_resident=is_resident,
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


def a_gpu(
    *replicas: ReplicaCommand,
    tasks: tuple[TaskCommand, ...] = (),
    index: int = 0,
    clock_mhz: float = 1500.0,
    cap_w: float = 300.0,
    governor: GovernorCommand | None = None,
) -> GpuCommand:
    return GpuCommand(
        index=index,
        gpu_type=GPU_TYPE,
        clock_mhz=clock_mhz,
        power_cap_w=cap_w,
        replicas=replicas,
        tasks=tasks,
        governor=governor,
    )


def a_governor(name: str = "dfs", **changes: object) -> GovernorCommand:
    facts = {
        "clocks_mhz": tuple(float(clock) for clock in range(900, 1501, 15)),
        "power_limit_w": 330.0,
        **changes,
    }
    return GovernorCommand(name=name, **facts)  # type: ignore[arg-type]


def a_command(
    *gpus: GpuCommand,
    generation: int = 1,
    node: str = "n1",
    services: tuple[str, ...] = (),
) -> NodeCommand:
    named = {replica.service for gpu in gpus for replica in gpu.replicas} | set(
        services
    )
    routes = tuple(
        Route(service=each, slo_ms=100.0, percentile=0.98, arrival_rate_rps=10.0)
        for each in sorted(named)
    )
    return NodeCommand(node=node, generation=generation, gpus=gpus, routes=routes)


def an_empty_gpu(
    index: int = 0, *, memory_mib: float = 4000.0, max_replicas: int = 48
) -> GpuState:
    return GpuState(
        index=index, gpu_type=GPU_TYPE, memory_mib=memory_mib, max_replicas=max_replicas
    )


def an_empty_node(*gpus: GpuState) -> NodeState:
    return NodeState(gpus=gpus or (an_empty_gpu(),))


@st.composite
def commands(draw: st.DrawFn, generation: int) -> NodeCommand:
    """Any command that two GPUs of 4000 MiB can carry; ids return with other sizes, services and GPUs."""
    gpus = []
    free_ids = draw(st.permutations([f"r{number}" for number in range(6)]))
    for index in (0, 1):
        count = draw(st.integers(0, 3))
        ids, free_ids = free_ids[:count], free_ids[count:]
        replicas = [
            a_replica(
                each,
                service=draw(st.sampled_from(["a", "b"])),
                sm_percent=draw(st.sampled_from([10.0, 30.0])),
                batch=draw(st.sampled_from([1, 8])),
                memory_mib=draw(st.sampled_from([200.0, 1300.0])),
            )
            for each in ids
        ]
        if draw(st.booleans()):
            gpus.append(
                a_gpu(
                    *replicas,
                    index=index,
                    clock_mhz=draw(st.sampled_from([900.0, 1500.0])),
                )
            )
    return a_command(*gpus, generation=generation, services=("a", "b"))


@st.composite
def commands_with_tasks(draw: st.DrawFn, generation: int) -> NodeCommand:
    """As `commands`, with tasks on the memory and SMs that the replicas leave over."""
    command = draw(commands(generation))
    gpus, free_names = [], draw(st.permutations(TASKS))
    for gpu in command.gpus:
        free_mib = 4000.0 - sum(each.memory_mib for each in gpu.replicas)
        tasks = []
        for _ in range(draw(st.integers(0, 2))):
            memory_mib, is_resident = draw(MEMORIES_MIB), draw(st.booleans())
            if is_resident and memory_mib > free_mib:
                continue
            free_mib -= memory_mib if is_resident else 0.0
            sm_percent = draw(st.sampled_from([2.0, 4.0]))
            name, *free_names = free_names
            tasks.append(
                a_task(
                    name,
                    sm_percent=sm_percent,
                    memory_mib=memory_mib,
                    is_resident=is_resident,
                )
            )
        gpus.append(msgspec.structs.replace(gpu, tasks=tuple(tasks)))
    return msgspec.structs.replace(command, gpus=tuple(gpus))


@st.composite
def task_states(draw: st.DrawFn) -> NodeState:
    """Any tasks in any states on two GPUs of 4000 MiB."""
    gpus, names = [], iter(draw(st.permutations(TASKS)))
    states = ("starting", "running", "swapping", "swapped", "finished", "failed")
    for index in (0, 1):
        tasks = [
            a_running_task(
                a_task(
                    next(names),
                    sm_percent=draw(st.sampled_from([2.0, 4.0])),
                    memory_mib=draw(MEMORIES_MIB),
                ),
                draw(st.sampled_from(states)),
            )
            for _ in range(draw(st.integers(0, 2)))
        ]
        gpus.append(replace(an_empty_gpu(index), tasks=tuple(tasks)))
    return NodeState(gpus=tuple(gpus))


def paper_reading(gpu: GpuState, passed_s: float) -> GpuReading:
    """What a GPU that only keeps books tells of so many seconds: figures that every check lets pass."""
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
        """Raised by whoever asks how the device is."""
        self.polls: dict[int, GpuPoll] = {}
        """What is measured of each GPU; none = this cannot be measured."""
        self.switch_error: DeviceError | None = None
        self.is_closed = False
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
        )
        gpu = self._state.gpus[gpu_index]
        if len(gpu.replicas) >= gpu.max_replicas:
            raise DeviceError(f"GPU {gpu_index} has no slot")
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
        self.put(replica_id, state="draining")

    async def stop_replica(self, replica_id: str) -> None:
        self.log.append(f"stop {replica_id}")
        gpu, _ = self._find(replica_id)
        self._put_gpu(
            replace(
                gpu,
                replicas=tuple(each for each in gpu.replicas if each.id != replica_id),
            )
        )

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
                replace(gpu, tasks=(*gpu.tasks, a_running_task(task, "starting")))
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

    async def close(self) -> None:
        self.is_closed = True

    def replicas(self) -> tuple[RunningReplica, ...]:
        return tuple(replica for gpu in self._state.gpus for replica in gpu.replicas)

    def tasks(self) -> tuple[RunningTask, ...]:
        return tuple(task for gpu in self._state.gpus for task in gpu.tasks)

    def put(self, replica_id: str, **changes: object) -> None:
        """Change fields of one replica, as time would."""
        gpu, old = self._find(replica_id)
        new = replace(old, **changes)  # type: ignore[arg-type]
        self._put_gpu(
            replace(
                gpu,
                replicas=tuple(new if each is old else each for each in gpu.replicas),
            )
        )

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


def _with_room(gpu: GpuState) -> GpuState:
    """The GPU, unless what is alive on it exceeds its memory."""
    used_mib = sum(each.memory_mib for each in gpu.replicas if each.state != "failed")
    used_mib += sum(each.memory_mib for each in gpu.tasks if each.holds_memory)
    if used_mib > gpu.memory_mib:
        raise DeviceError(f"GPU {gpu.index} is out of memory")
    return gpu
