"""The nouns of governors: what they turn (Knobs), what they see (GpuPeriod), and how far they may go (Limits).

Standard library only: node agents import this package without anything else of the solvers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorKnobs:
    """What one GPU is set to, and what its governor wants to remember."""

    clock_mhz: float
    """The locked graphics clock."""
    batches: Mapping[str, int]
    """Largest batch by replica."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """The governor's own notes, handed back at its next step; empty at its first, and after every change of limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeriod:
    """What one replica did in the last period."""

    id: str
    batches: int
    """Batches that finished."""
    requests: int
    """Requests that finished with them."""
    queued: int
    """Requests that wait or run at the end of the period."""
    execution_ms: float
    """Mean time of those batches; 0 without any."""
    latency_ms: float
    """At the SLO's percentile, of the requests of its service that finished; 0 without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPeriod:
    """What one GPU did in the last period, with the knobs as they are."""

    peak_power_w: float
    replicas: tuple[ReplicaPeriod, ...] = ()
    """At most one entry for each replica of the limits."""

    @property
    def has_work(self) -> bool:
        """Whether any replica finished a batch."""
        return any(each.batches for each in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """How far one replica may be turned."""

    id: str
    latency_ms: float
    """The latency of its SLO."""
    largest_batch: int
    """The plan's: memory was set aside for so much; the smallest batch is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorTuning:
    """How `power_latency` goes about it: α, β and the largest step of Morak's algorithm 1, which has no figures."""

    steady_power_share: float = 0.98
    """α: from this share of the cap on, power is as high as it should be."""
    steady_latency_share: float = 0.9
    """β: from this share of its limit on, a latency is as high as it should be."""
    largest_clock_step: int = 10
    """Grid points of one step of the clock at most; failing periods double a step downwards."""

    @property
    def target_share(self) -> float:
        """Where a batch that is turned aims at: the middle between β and 1."""
        return (self.steady_latency_share + 1.0) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorLimits:
    """How far one GPU may be turned."""

    power_cap_w: float
    clocks_mhz: tuple[float, ...]
    """Clocks that may be locked, ascending, at least one."""
    replicas: tuple[ReplicaLimits, ...] = ()
    tuning: GovernorTuning = GovernorTuning()


def within(knobs: GovernorKnobs, limits: GovernorLimits) -> GovernorKnobs:
    """The knobs inside the limits: a clock of the grid, the highest that is not above; a batch for every replica.

    A replica that the knobs do not know gets its largest batch.
    """
    batches = {}
    for each in limits.replicas:
        batch = knobs.batches.get(each.id, each.largest_batch)
        # A governor may answer 0; a server with that batch would never start one.
        batches[each.id] = max(1, min(batch, each.largest_batch))
    position = clock_position(knobs.clock_mhz, limits.clocks_mhz)
    return replace(knobs, clock_mhz=limits.clocks_mhz[position], batches=batches)


def clock_position(clock_mhz: float, clocks_mhz: tuple[float, ...]) -> int:
    """Where in the grid the clock lies: the last position that is not above it, or 0."""
    return max(0, sum(each <= clock_mhz for each in clocks_mhz) - 1)
