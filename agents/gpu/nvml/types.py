"""What is said about a GPU: identity, sample, capabilities, processes, critical errors. No driver needed.

Nouns of `agents.gpu.nvml.session`, which fills them:

    GpuIdentity      what never changes                     GpuProcess    who computes on it
    GpuSample        what it does now                       ProcessUse    how much of its SMs they kept busy
    GpuCapabilities  what it lets this process do, and why  XidEvent      a critical error, as it happens
                     not the rest

Slices have nouns of their own: `agents.gpu.nvml.mig_types`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from agents.gpu.nvml.xids import RecoveryAction


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """What never changes of one GPU."""

    index: int
    uuid: str
    name: str
    """As the driver says, e.g. `Tesla V100-SXM2-32GB`."""
    memory_mib: float
    """0: the driver does not tell it."""
    sm_count: int | None = None
    """SMs of this GPU or slice; None where the driver does not say (a whole GPU in MIG mode)."""
    part: "SlicePart | None" = None
    """What it is a slice of; None = it is a whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuListing:
    """The GPUs that the driver lists."""

    gpus: tuple[GpuIdentity, ...]
    """Those that answer, by index."""
    silent: tuple[tuple[int, str], ...] = ()
    """The places of the others in its list, each with what became of asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePart:
    """Which part of a whole GPU a slice is."""

    parent: GpuIdentity
    profile: str
    """As the driver calls it, e.g. `1g.10gb`."""
    sm_share: float
    """Its share of the SMs of all slices of the GPU, and so of the GPU's power and energy."""


def event_reasons(mask: int) -> tuple[str, ...]:
    """The names of the mask's bits, lowest first; `unknown 0x…` for those of newer drivers."""
    bits = (1 << place for place in range(mask.bit_length()))
    return tuple(
        _EVENT_REASONS.get(bit, f"unknown {bit:#x}") for bit in bits if mask & bit
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What one GPU does at this moment."""

    memory_used_mib: float | None
    """None here and below: the driver does not tell it of this GPU, as of many virtual, mobile and embedded ones."""
    power_w: float | None
    energy_j: float | None
    """Since the driver was loaded; None on GPUs older than Volta."""
    clock_mhz: float | None
    busy_percent: float | None
    """Share of the last second in which any kernel ran; None where the driver does not say (MIG)."""
    memory_reserved_mib: float = 0.0
    """What the driver keeps for itself; 0 with drivers that count it as used."""
    enforced_limit_w: float | None = None
    """The power limit that counts, which may be below the one that was set; None where the driver does not say."""
    event_reasons: tuple[str, ...] = ()
    """Why the clock is not higher, by name; see `event_reasons`."""
    recovery: RecoveryAction | int | None = None
    """What the driver asks for to clear a fault; a number where it has no name here, None where it does not say."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the driver does not tell of memory, power and clock, in words."""
        read = {
            "memory in use": self.memory_used_mib,
            "power": self.power_w,
            "clock": self.clock_mhz,
        }
        return tuple(name for name, value in read.items() if value is None)

    @property
    def held_back_by(self) -> tuple[str, ...]:
        """The reasons that power and heat give: a clock below the locked one is then no failure of the lock."""
        return tuple(reason for reason in self.event_reasons if reason in _HOLD_BACK)


class Capability(StrEnum):
    """What a GPU may let its agent do."""

    LOCK_CLOCK = "lock the clock"
    LIMIT_POWER = "limit power"
    COUNT_ENERGY = "count energy"
    PROCESS_USE = "measure processes"
    LIST_MPS = "list MPS clients"
    SM_ACTIVITY = "measure SM activity (GPM)"
    XID_EVENTS = "tell critical errors"
    MIG_LAYOUT = "read the MIG layout"
    KEEP_SETTINGS = "keep clocks and limits while idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRange:
    """Which power limits a GPU takes."""

    low_w: float
    high_w: float
    default_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCapabilities:
    """What one GPU lets this process do, found by trying."""

    why_not: tuple[tuple[Capability, str], ...] = ()
    """What it does not, each with the reason, in the order of `Capability`."""
    power_range: PowerRange | None = None
    """None where power cannot even be read."""
    clocks_mhz: tuple[float, ...] = ()
    """The clocks it can be locked at, ascending."""

    def can(self, capability: Capability) -> bool:
        """Whether the GPU does this."""
        return all(each != capability for each, _ in self.why_not)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    """In the PID namespace of the host."""
    memory_mib: float | None
    """None where the driver does not say."""
    is_mps: bool
    """It is a client of an MPS server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """How busy one process kept a GPU since it was asked last."""

    pid: int
    sm_percent: float
    at_us: int = field(default=0, compare=False)
    """When the driver looked, by its clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """A critical error that the driver tells of."""

    gpu_uuid: str
    """Empty where the driver no longer says which GPU: any of those that are watched."""
    xid: int
    """`agents.gpu.nvml.xids` knows them; 0 for an error of memory that could not be corrected (double-bit ECC)."""


NextXid: TypeAlias = Callable[[int], XidEvent | None]
"""Waits at most this number of milliseconds for the next critical error; None = there was none."""

POWER_LIMIT = "power limit"
_EVENT_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: POWER_LIMIT,
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clock",
    0x200: "board limit",
    0x400: "reliability",
}
"""By bit of NVML's mask of clock event reasons (before driver 535: throttle reasons)."""
_HOLD_BACK = frozenset(
    _EVENT_REASONS[bit] for bit in (0x4, 0x8, 0x20, 0x40, 0x80, 0x200, 0x400)
)
