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
class Sleep:
    """Put a drained replica to sleep."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Put a replica to work again that drains or sleeps."""

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
    | Sleep
    | Wake
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
        case StartReplica():
            await device.start_replica(action.gpu_index, action.replica)
        case SwitchRoutes():
            await device.switch_routes(action.routes)
        case Drain():
            await device.drain(action.replica_id)
        case Stop():
            await device.stop_replica(action.replica_id)
        case Sleep():
            await device.sleep(action.replica_id)
        case Wake():
            await device.wake(action.replica_id)
        case SetBatch():
            await device.set_batch(action.replica_id, action.batch)
        case LockClock():
            await device.lock_clock_mhz(action.gpu_index, action.clock_mhz)
        case LimitPower():
            await device.limit_power_w(action.gpu_index, action.limit_w)
        case StartTask():
            await device.start_task(action.gpu_index, action.task)
        case StopTask():
            await device.stop_task(action.task)
        case SwapOut():
            await device.swap_out(action.task)
        case SwapIn():
            await device.swap_in(action.task)
