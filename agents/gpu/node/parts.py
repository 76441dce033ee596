"""What a node with GPUs is made of, and how often what costs time is looked at."""

from collections.abc import Mapping
from dataclasses import dataclass

from agents.gpu.knobs.applied_knobs import Turnable
from agents.gpu.mps.gpu_sharing import Sharing
from agents.gpu.node.devices import GpuErrors, Slices
from agents.gpu.node.foreign_memory import ForeignMemory
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.gpu.node.use import GpuUse
from agents.gpu.nvml.power_watch import PowerWatch
from agents.gpu.nvml.types import GpuCapabilities, GpuIdentity
from agents.processes.launcher import Launcher
from agents.replicas.replicas import Workers
from agents.router.request_router import RequestRouter
from agents.tasks.tasks import Tasks

FAULT_LOOK_S = 10.0
"""Between two looks for faults of MPS, each of which starts a process per GPU."""
COUNTS_S = 5.0
"""Between two questions to a replica's server for its counts, each of which takes a millisecond of the agent's time."""
POLL_LIMIT_S = 2.0
"""For the servers of a GPU to tell what they did: governors and the guard of power caps wait for the poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuParts:
    """What a node with GPUs is made of; all of it opened."""

    telemetry: ReadOnlyDevice
    gpus: tuple[GpuIdentity, ...]
    capabilities: Mapping[int, GpuCapabilities]
    """By index."""
    knobs: Turnable
    errors: GpuErrors
    power: PowerWatch
    memory: ForeignMemory
    use: GpuUse
    sharings: Mapping[int, Sharing]
    """By index."""
    launcher: Launcher
    workers: Workers
    tasks: Tasks
    slices: Slices
    router: RequestRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """How often what costs time is looked at, in seconds."""

    fault_s: float = FAULT_LOOK_S
    counts_s: float = COUNTS_S


DEFAULT_LOOKS = Looks()
