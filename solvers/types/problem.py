"""Problem: the one input of every policy (the contract's; its JSON is in `problem_json`)."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple

from solvers.types.llm import (
    LengthPairs,
    LlmDemand,
    LlmPoints,
    LlmReplicaPlan,
    LlmRow,
    StepLaw,
)
from solvers.types.plan import Plan
from solvers.types.slices import SlicePoint, SlicePoints
from solvers.types.state import GpuType
from solvers.types.survival import SurvivalGoal

Objective = Literal["min_cost", "max_goodput"]


class OperatingPoint(NamedTuple):
    """One way to run a network on a GPU type, alone on the GPU; times are those of one full batch."""

    # A NamedTuple, since `laws` makes one array of all rows; the order of its fields is that of the contract's rows.
    sm_percent: float
    batch: int
    clock_mhz: float
    transfer_ms: float
    launch_ms: float
    run_ms: float
    memory_mib: float
    power_w: float
    """Watts that a replica adds to the GPU's idle watts."""
    pressure: float
    """Load on the shared caches that the neighbours feel."""
    stall_ms: float = 0.0
    """Training: by how much it lengthens the 99th percentile of a neighbour's batches beyond what it does to their
    mean, since its longest kernels hold up a few of them. Ours: the contract's rows are written without it."""

    @property
    def solo_ms(self) -> float:
        """Execution time of one batch with no neighbours."""
        return self.transfer_ms + self.launch_ms + self.run_ms

    def slower(self, factor: float) -> "OperatingPoint":
        """The same where every part of the time takes `factor` times as long."""
        return self._replace(
            transfer_ms=factor * self.transfer_ms,
            launch_ms=factor * self.launch_ms,
            run_ms=factor * self.run_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoints:
    """All operating points of one network on one GPU type."""

    network: str
    gpu_type: str
    sensitivity: float
    """Growth of the run term per unit of the neighbours' summed pressure."""
    rows: tuple[OperatingPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLaw:
    """The highest utilisation at which a percentile of requests still finishes within ratio × execution time."""

    percentiles: tuple[float, ...]
    batches: tuple[int, ...]
    slo_ratios: tuple[float, ...]
    """Ascending, ≥ 1."""
    max_utilisation: tuple[tuple[tuple[float, ...], ...], ...]
    """(P, B, R): by percentile, batch and ratio; never falls along the ratio; 0 to 1."""

    def utilisation(self, percentile: float, batch: int, ratio: float) -> float:
        """Linear between grid ratios, 0 below the first, the last value from the last on.

        Raises ValueError when the law holds no such percentile or batch.
        """
        plane = self.max_utilisation[self.percentiles.index(percentile)]
        column = plane[self.batches.index(batch)]
        # Below its first ratio the law promises nothing.
        if ratio < self.slo_ratios[0]:
            return 0.0
        if ratio >= self.slo_ratios[-1]:
            return column[-1]
        right = bisect_right(self.slo_ratios, ratio)
        low = self.slo_ratios[right - 1]
        high = self.slo_ratios[right]
        rise = column[right] - column[right - 1]
        return column[right - 1] + rise * (ratio - low) / (high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDemand:
    """One service as a planner sees it: its SLO, the rate to serve, and its limits (the contract's `services[]`)."""

    name: str
    network: str
    slo_ms: float
    percentile: float
    arrival_rate_rps: float
    priority: float = 1.0
    """> 0, higher is more."""
    min_replicas: int = 0
    max_replicas: int | None = None
    allowed_gpu_types: tuple[str, ...] | None = None
    """None = all."""
    max_replica_rps: float | None = None
    """What counts of a replica's capacity, so that no loss takes too much at once; None = all of it. Ours, like the
    problem's power budget: the contract's JSON is written without it."""
    anti_affinity: frozenset[str] = frozenset()
    """Labels: services with a common one never share a GPU. In the contract from version 2 on."""

    def allows(self, gpu_type: str) -> bool:
        """Whether the service may run on that GPU type."""
        return self.allowed_gpu_types is None or gpu_type in self.allowed_gpu_types

    def may_share_with(self, other: "ServiceDemand") -> bool:
        """Whether a replica of each may be on one GPU."""
        return self.name != other.name and self.anti_affinity.isdisjoint(
            other.anti_affinity
        )


# Without slots, since the cached indices below need a __dict__.
@dataclass(frozen=True, kw_only=True)
class Problem:
    """What to decide on. Plain data, equal by value; read it from JSON with `problem_json`."""

    objective: Objective = "min_cost"
    energy_price_usd_per_kwh: float = 0.0
    max_replicas_per_gpu: int
    capacity_law: CapacityLaw
    gpu_types: tuple[GpuType, ...]
    services: tuple[ServiceDemand, ...]
    points: tuple[OperatingPoints, ...]
    """At most one entry per (network, GPU type); no entry: the network cannot run there."""
    slice_points: tuple[SlicePoints, ...] = ()
    """At most one entry per (network, GPU type, profile), for the types that are cut into slices."""
    llm_services: tuple[LlmDemand, ...] = ()
    llm_points: tuple[LlmPoints, ...] = ()
    """At most one entry per (service, GPU type); no entry: the service cannot run there."""
    step_laws: tuple[StepLaw, ...] = ()
    """What capacities of `llm_points` were found with, for audits; at most one per (network, GPU type, degree)."""
    length_tables: tuple[LengthPairs, ...] = ()
    """The same, by the names that services have as `lengths`."""
    current: Plan | None = None
    """The plan that is running now."""
    power_budget_w: float | None = None
    """That all used GPUs together may draw, idle watts included; None = no such limit. Ours: the contract's JSON has no
    such field, and is written without it."""
    survival: tuple[SurvivalGoal, ...] = ()
    """What losses must leave of services, by name. Ours, as the power budget is."""
    migration_cost_usd_per_hour: float = 0.0
    """Charged per replica beyond min(old, new) of the same (service, gpu_type, sm_percent)."""
    start_usd_per_second_and_gpu: float = 0.0
    """Charged besides per started replica of a language model, for each second of its start and each of its GPUs."""

    @cached_property
    def _gpu_type_by_name(self) -> Mapping[str, GpuType]:
        return {gpu_type.name: gpu_type for gpu_type in self.gpu_types}

    @cached_property
    def _service_by_name(self) -> Mapping[str, ServiceDemand]:
        return {service.name: service for service in self.services}

    @cached_property
    def _points_by_key(self) -> Mapping[tuple[str, str], OperatingPoints]:
        return {(points.network, points.gpu_type): points for points in self.points}

    @cached_property
    def _slice_points_by_key(self) -> Mapping[tuple[str, str, str], SlicePoints]:
        return {
            (points.network, points.gpu_type, points.profile): points
            for points in self.slice_points
        }

    @cached_property
    def _llm_points_by_key(self) -> Mapping[tuple[str, str], LlmPoints]:
        return {(points.service, points.gpu_type): points for points in self.llm_points}

    def llm_rows(self, service: str, gpu_type: str) -> tuple[LlmRow, ...]:
        """The ways to run a language model's service on a GPU type; none where it cannot."""
        points = self._llm_points_by_key.get((service, gpu_type))
        return () if points is None else points.rows

    def llm_row(self, replica: LlmReplicaPlan) -> LlmRow | None:
        """The row that a language model's replica is planned with; None where there is none."""
        wanted = (replica.tp, replica.max_num_batched_tokens, replica.max_num_seqs)
        for row in self.llm_rows(replica.service, replica.gpu_type):
            # To the digits at which the checker matches clocks.
            if row[:3] == wanted and abs(row.clock_mhz - replica.clock_mhz) <= 1e-3:
                return row
        return None

    @property
    def all_services(self) -> tuple[ServiceDemand | LlmDemand, ...]:
        """Services that share GPUs, then those of language models."""
        return (*self.services, *self.llm_services)

    def gpu_type(self, name: str) -> GpuType:
        """The GPU type of that name. Raises KeyError."""
        return self._gpu_type_by_name[name]

    def service(self, name: str) -> ServiceDemand:
        """The service of that name. Raises KeyError."""
        return self._service_by_name[name]

    @cached_property
    def has_labels(self) -> bool:
        """Whether any two services may not share a GPU."""
        return any(service.anti_affinity for service in self.services)

    def may_share(self, names: Iterable[str]) -> bool:
        """Whether no two of these services have a label in common. Raises KeyError for one that is not there."""
        # Most problems have no labels: then services need not be looked up.
        if not self.has_labels:
            return True
        services = map(self.service, names)
        return all(
            one.may_share_with(other) for one, other in combinations(services, 2)
        )

    def services_by_priority(self) -> list[ServiceDemand]:
        """The services from the most to the least important, equally important ones by name."""
        return sorted(self.services, key=lambda each: (-each.priority, each.name))

    def points_of(self, network: str, gpu_type: str) -> OperatingPoints | None:
        """The operating points of a network on a GPU type, or None when it cannot run there."""
        return self._points_by_key.get((network, gpu_type))

    def slice_rows(
        self, network: str, gpu_type: str, profile: str
    ) -> tuple[SlicePoint, ...]:
        """The ways to run a network in a slice of that profile; none where it cannot."""
        points = self._slice_points_by_key.get((network, gpu_type, profile))
        return () if points is None else points.rows
