"""Device: what enforcement drives on one node, be it simulated or real, and the errors that it may raise.

A device carries replicas on GPUs behind one router. Its methods start things and return at once; what became of them
shows in the next `state()`:

    replica   starting ──▶ ready ──drain()──▶ draining ──stop_replica()──▶ gone
                 ▲          ▲                    ├──wake()──▶ ready
                 └──wake()──┼────── asleep ◀─────┴──sleep()
              starting ─────┴──▶ any ──▶ failed ──stop_replica()──▶ gone
    task      starting ──▶ running ──▶ finished ──stop_task()──▶ gone
                            │  ▲ swap_in()
                 swap_out() ▼  │
                         swapping ──▶ swapped;  any of these ──▶ failed ──stop_task()──▶ gone

Errors:

    DeviceError               base; the message says what was wrong, with the values, and what to do
    ├── NoDriver              no GPU driver answers: the agent runs without GPUs and tries again
    ├── NotPermitted          the driver refuses this user: needs CAP_SYS_ADMIN
    ├── NotSupported          this GPU has no such knob
    ├── OutOfRange            a value that this GPU does not take; names the range
    ├── GpuLost               the GPU no longer answers; only an operator brings it back
    ├── LaunchFailed          a replica or task could not be started
    └── UnknownPart           no GPU, replica or task of that name on this node
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import msgspec

from agents.base.protocol import (
    Amount,
    GpuReading,
    Iterations,
    ReplicaCommand,
    ReplicaReading,
    ReplicaState,
    ServiceReading,
    TaskCommand,
    TaskReading,
    TaskState,
    UseReading,
)

SWAP_MIB_PER_S = 10e9 / 2**20
"""What a copy between GPU and host reaches over PCIe 3 x16: 10 GB/s, as iGniter measured on a V100. Newer
boards are faster; 10 GiB take about a second here. Only simulated and fake tasks need it."""

Part: TypeAlias = tuple[Literal["replica", "task"], str]
"""A replica by its id or a task by its name: people name tasks, perhaps as some replica is called."""

MAX_REPLICAS = 48
"""Clients that one MPS server takes on Volta and newer."""

MEMORY_TOLERANCE = 1e-6
"""Relative rounding that a sum of memory needs may carry; the control plane's checker allows as much."""


class DeviceError(Exception):
    """Base of everything that a device raises on purpose."""


class NoDriver(DeviceError):
    """No GPU driver answers."""


class NotPermitted(DeviceError):
    """The driver refuses this user."""


class NotSupported(DeviceError):
    """This GPU has no such knob."""


class OutOfRange(DeviceError, ValueError):
    """A value that this GPU does not take."""


class GpuLost(DeviceError):
    """The GPU no longer answers."""


class LaunchFailed(DeviceError):
    """A replica could not be started."""


class UnknownPart(DeviceError, LookupError):
    """No GPU or replica of that name on this node."""


ASLEEP_SHARE = 1 / 9
"""The part of its memory that a replica may hold while it sleeps: engines take nine tenths of a GPU, so that the next
one has room next to what CUDA contexts and graphs still hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReplica:
    """One replica as it is now."""

    id: str
    service: str
    network: str
    state: ReplicaState
    sm_percent: float
    batch: int
    memory_mib: float
    """What it may hold now: of one that sleeps ASLEEP_SHARE of what it had."""
    has_live_batch: bool = True
    """Whether it takes another batch; False: a successor has to be started for it."""
    in_flight: int = 0
    """Requests that it has taken and not yet finished."""
    draining_s: float = 0.0
    """How long ago it began to drain, also of one that sleeps."""
    drain_s: float | None = None
    """It may drain so long; None = as long as the node's replicas do."""
    can_return: bool = False
    """Whether it drains, or sleeps, and may take requests again."""
    can_sleep: bool = False
    """Whether its server can give the GPU's memory back and keep its weights in the host's."""
    # Not None: it is compared with the UID that is wanted, which no -1 equals, so that an unknown one is replaced.
    uid: int = -1
    """Who it runs as; -1 = not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """One task as it is now."""

    name: str
    network: str
    batch: int
    state: TaskState
    sm_percent: float
    memory_mib: float
    uid: int = -1
    """Who it runs as; -1 = not known."""

    @property
    def holds_memory(self) -> bool:
        """Whether GPU memory is taken: all but what is swapped out or failed."""
        # "swapping" counts in both directions: the memory is not free until it has left, and is needed as it returns.
        return self.state not in ("swapped", "failed", "finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU as it is now."""

    index: int
    gpu_type: str
    memory_mib: float
    healthy: bool = True
    clock_mhz: float | None = None
    """The locked graphics clock; None = not locked, the GPU boosts as it likes."""
    power_limit_w: float | None = None
    """None = the board's own limit."""
    clocks_mhz: tuple[float, ...] = ()
    """Clocks that can be locked, ascending; none = not known."""
    has_clock_lock: bool = True
    """Whether the clock can be locked here at all; False: it is not asked."""
    has_power_limit: bool = True
    """The same of the power limit."""
    foreign_mib: float = 0.0
    """Memory that others than this node's replicas and tasks were found to hold."""
    max_replicas: int = MAX_REPLICAS
    replicas: tuple[RunningReplica, ...] = ()
    tasks: tuple[RunningTask, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRoute:
    """Where this node's router sends one service's requests."""

    service: str
    slo_ms: float
    shares: tuple[tuple[str, float], ...] = ()
    """(replica id, weight) of the replicas that take new requests, by id. Empty: requests are counted and wait.
    All weights zero: the replicas share evenly."""
    batches: tuple[tuple[str, int], ...] = ()
    """(replica id, its largest batch in force) of the replicas in `shares`, by id; 1 where none is given."""
    slo_itl_ms: float | None = None
    """From one token to the next; only language models have it, whose `slo_ms` is until the first one."""
    is_starting: bool = False
    """True: none takes requests yet, and one starts here, for which they wait however long it takes."""
    is_leaving: bool = False
    """True: the replicas serve on for a moment, but balancers that ask are told that the service is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTraits:
    """What a router needs to know of the server of a replica."""

    ready_path: str = "/v2/health/ready"
    """Where it says whether it takes requests."""
    is_binary: bool = True
    """Whether it takes tensors as bytes after the JSON, which the Open Inference Protocol calls an extension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node as it is now; GPUs by index, routes by service."""

    gpus: tuple[GpuState, ...] = ()
    routes: tuple[ServiceRoute, ...] = ()
    stranded: tuple[str, ...] = ()
    """Services without a route, which start on other nodes, and whose requests wait here still."""
    uids: Mapping[str, int] = field(default_factory=dict)
    """The UID that replicas and tasks must run as, by project; "": those of all others. Empty: any UID will do."""

    def is_user_of(self, project: str, uid: int) -> bool:
        """Whether what runs as that user may be the project's."""
        # Without any entry the UID is compared with itself, so that nothing is replaced.
        return uid == self.uids.get(project, self.uids.get("", uid))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReadings:
    """What was measured since the last time; counts, never rates."""

    gpus: tuple[GpuReading, ...] = ()
    replicas: tuple[ReplicaReading, ...] = ()
    services: tuple[ServiceReading, ...] = ()
    tasks: tuple[TaskReading, ...] = ()
    uses: tuple[UseReading, ...] = ()
    problems: tuple[str, ...] = ()
    """What the device cannot do, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPoll:
    """One replica since the last poll of its GPU."""

    id: str
    batches: int
    """Batches that finished."""
    requests: int
    """Requests that finished with them."""
    queued: int
    """Requests that wait or run now."""
    execution_ms: float
    """Mean time of those batches; 0 without any."""
    latency_buckets: tuple[tuple[int, int], ...] = ()
    """(bucket, count) pairs of the latencies of its service's requests here; see `latency_buckets.bucket_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPoll:
    """One GPU since the last poll of it."""

    peak_power_w: float
    replicas: tuple[ReplicaPoll, ...] = ()


class Device(Protocol):
    """One node's GPUs, replicas and router. Implementations: `agents.sim.device` (everything simulated),
    `agents.fake.device` (real HTTP, no GPU), `agents.gpu.node.device`, and `readonly_device` there (telemetry only)."""

    async def state(self) -> NodeState:
        """What is there now."""
        ...

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` from now on whenever a replica or task has come up, been moved, ended, failed or gone, or a
        first request waits for a replica; where that is not known, never."""
        ...

    # One call for the entire node: counts of GPUs that were read one after another would be of different windows.
    async def read(self) -> DeviceReadings:
        """What was measured since the last call (or since the start); reading starts a new window."""
        ...

    # Apart from `read`: a governor's period is shorter than an observation's window, which reading would cut off.
    async def poll(self, gpu_index: int) -> GpuPoll:
        """What a GPU did since the last poll of it, or since the last `read`; leaves the window of `read` alone.
        Raises NotSupported where this cannot be measured, UnknownPart or GpuLost."""
        ...

    async def peak_power_w(self, gpu_index: int) -> float:
        """A GPU's highest power since the last call; at most the GPU's next poll misses what came before.
        Raises NotSupported where this cannot be measured, UnknownPart or GpuLost."""
        ...

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        """Begin to start a replica. Raises LaunchFailed, UnknownPart or GpuLost."""
        ...

    # The entire table, since requests must never meet a switch of replicas that is half done.
    async def switch_routes(self, routes: tuple[ServiceRoute, ...]) -> None:
        """Replace the whole routing table at once; requests already taken stay where they are."""
        ...

    # A step of its own before the stop, since requests that were taken must not be lost.
    async def drain(self, replica_id: str) -> None:
        """Let a replica finish what it has and take nothing more."""
        ...

    async def stop_replica(self, replica_id: str) -> None:
        """End a replica; what it has not finished is lost."""
        ...

    async def sleep(self, replica_id: str) -> None:
        """Begin to put a drained replica to sleep; where that fails, or it is not woken for long, it is stopped."""
        ...

    async def wake(self, replica_id: str) -> None:
        """Let one that drains take requests again, or begin to wake one that sleeps."""
        ...

    async def set_batch(self, replica_id: str, batch: int) -> None:
        """Change a replica's largest batch at once."""
        ...

    async def start_task(self, gpu_index: int, task: TaskCommand) -> None:
        """Begin to start a task. Raises LaunchFailed, NotSupported, UnknownPart or GpuLost."""
        ...

    async def stop_task(self, name: str) -> None:
        """End a task, or forget one that has finished; what it has done since it was last reported may be lost."""
        ...

    # No stop: a task that gives way to a burst must not lose the iterations since its last checkpoint.
    async def swap_out(self, task: str) -> None:
        """Begin to move a running task's memory to the host; it makes no progress until it is swapped in."""
        ...

    async def swap_in(self, task: str) -> None:
        """Begin to move a swapped task's memory back to its GPU. Raises LaunchFailed where there is no room."""
        ...

    async def lock_clock_mhz(self, gpu_index: int, clock_mhz: float | None) -> None:
        """Lock the graphics clock; None unlocks it. Raises OutOfRange, NotSupported or NotPermitted."""
        ...

    async def limit_power_w(self, gpu_index: int, limit_w: float | None) -> None:
        """Limit the board's power; None restores its own limit. Raises OutOfRange, NotSupported or NotPermitted."""
        ...

    async def acquit(self, gpu_index: int) -> None:
        """Forget the critical errors that a GPU told so far; what is wrong with it still shows again."""
        ...

    async def close(self) -> None:
        """Stop every replica and restore the defaults of every GPU."""
        ...


def running_task(command: TaskCommand, state: TaskState) -> RunningTask:
    """The task as enforcement sees it."""
    # Without a UID: only real processes have a user, and their launcher adds it.
    return RunningTask(
        name=command.name,
        network=command.network,
        batch=command.batch,
        state=state,
        sm_percent=command.sm_percent,
        memory_mib=command.memory_mib,
    )


def task_reading(
    command: TaskCommand,
    state: TaskState,
    gpu_index: int,
    *,
    done_iterations: float,
    window_iterations: float,
    busy_s: float,
) -> TaskReading:
    """A task's reading; `window_iterations` in `busy_s` seconds are what it did since the reading before."""
    # A window without a step has no mean: 0 says so on the wire.
    has_steps = window_iterations > 0.0
    iteration_ms = 1000.0 * busy_s / window_iterations if has_steps else 0.0
    return TaskReading(
        name=command.name,
        gpu_index=gpu_index,
        state=state,
        sm_percent=command.sm_percent,
        batch=command.batch,
        done_iterations=within(done_iterations, Iterations),
        iteration_ms=within(iteration_ms, Amount),
    )


def within(value: float, kind: object) -> float:
    """The value where it lies within a type of this contract, else 0, which says on the wire: nothing known."""
    # One number out of its bounds would have the observation refused, and the bound itself would be as wrong.
    try:
        found: float = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return 0.0
    return found


def gpus_of(replica: ReplicaCommand, own: int) -> tuple[int, ...]:
    """Indices of the GPUs that it spans; `own`: that of its entry."""
    return (own,) if replica.engine is None else replica.engine.gpus
