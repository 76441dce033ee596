"""What enforcement and governors do to a device, one noun each; `perform` carries them out."""

from dataclasses import dataclass
from typing import TypeAlias

from agents.base.device import Device, ServiceRoute
from agents.base.protocol import ReplicaCommand, TaskCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplica:
    """Start a replica on a GPU."""

    gpu_index: int
    replica: ReplicaCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRoutes:
    """Replace the routing table."""

    routes: tuple[ServiceRoute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Let a replica finish what it has."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a replica."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBatch:
    """Change the largest batch of a running replica."""

    replica_id: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockClock:
    """Lock a GPU's graphics clock; None unlocks it."""

    gpu_index: int
    clock_mhz: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPower:
    """Limit a GPU's power; None restores the board's own limit."""

    gpu_index: int
    limit_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    """Start a task on a GPU."""

    gpu_index: int
    task: TaskCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTask:
    """End a task, or forget one that has finished."""

    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOut:
    """Move a running task's memory to the host."""

    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapIn:
    """Move a swapped task's memory back to its GPU."""

    task: str


Action: TypeAlias = (
    StartReplica
    | SwitchRoutes
    | Drain
    | Stop
    | SetBatch
    | LockClock
    | LimitPower
    | StartTask
    | StopTask
    | SwapOut
    | SwapIn
)


async def perform(device: Device, action: Action) -> None:
    """Carry the action out; DeviceError passes through."""
    match action:
        case StartReplica(gpu_index=index, replica=replica):
            await device.start_replica(index, replica)
        case SwitchRoutes(routes=routes):
            await device.switch_routes(routes)
        case Drain(replica_id=replica_id):
            await device.drain(replica_id)
        case Stop(replica_id=replica_id):
            await device.stop_replica(replica_id)
        case SetBatch(replica_id=replica_id, batch=batch):
            await device.set_batch(replica_id, batch)
        case LockClock(gpu_index=index, clock_mhz=clock_mhz):
            await device.lock_clock_mhz(index, clock_mhz)
        case LimitPower(gpu_index=index, limit_w=limit_w):
            await device.limit_power_w(index, limit_w)
        case StartTask(gpu_index=index, task=task):
            await device.start_task(index, task)
        case StopTask(task=name):
            await device.stop_task(name)
        case SwapOut(task=name):
            await device.swap_out(name)
        case SwapIn(task=name):
            await device.swap_in(name)
