"""What enforcement and governors do to a device, one noun each; `perform` carries them out."""

from dataclasses import dataclass
from typing import TypeAlias

from agents.device import ServiceRoute
from agents.protocol import ReplicaCommand, TaskCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
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
    Start | SwitchRoutes | Drain | Stop | SetBatch | LockClock | LimitPower | StartTask | StopTask | SwapOut | SwapIn
)
