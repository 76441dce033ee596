"""The pods of a Kubernetes cluster on its GPUs: what they ask for, how they run, and where there is room for them.

A GPU is one device of the cluster, or equal parts of one, each a device: the pods of `k8s_hpa`, which says what
NVIDIA's device plugin makes of that. Which pods there are to be is decided there.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from solvers.baselines.one_per_gpu import by_law
from solvers.greedy.configure import (
    MAX_REPLICAS,
    MIN_CAPACITY_RPS,
    planning_clock_mhz,
)
from solvers.greedy.scaling_rules import HpaRule
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType, Json

MAX_PARTS = 48
"""Clients that one MPS server takes on Volta and newer."""
MAX_TARGET = 2.0
"""Far more than any SLO bears: it only keeps out percentages (80 for 0.8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What the pods of a service ask for, and when there are more of them. Raises ValueError for what cannot be."""

    gpu_type: str | None = None
    """The only GPU type that they run on, as a node selector says; None = drawn for each new replica."""
    parts: int = 1
    """Equal parts of a GPU of which each gets one, by NVIDIA MPS; 1 = entire GPUs. 1 to 48."""
    target: float = 0.8
    """The target metric, as a part of the profiled capacity; above 0, at most 2."""
    scale_down_s: float = 300.0
    """Kubernetes' `stabilizationWindowSeconds`, for fewer replicas."""

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= MAX_PARTS:
            raise ValueError(
                f"parts must be from 1 to {MAX_PARTS}, as many clients as MPS takes, not {self.parts}"
            )
        if not 0.0 < self.target <= MAX_TARGET:
            raise ValueError(
                f"target must be above 0 and at most {MAX_TARGET:g}, not {self.target:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWay:
    """How a service runs on one GPU type, whatever its neighbours are."""

    row: OperatingPoint
    capacity_rps: float
    """Under the SLO, alone on the GPU."""


@dataclass(slots=True, kw_only=True, eq=False)
class PodGpu:
    """One GPU that carries something; compared by identity."""

    gpu_type: str
    parts: int
    services: list[str] = field(default_factory=list)


class PodCluster:
    """The GPUs while the plan is made."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._gpus: list[PodGpu] = []
        self._places: dict[Hashable, PodGpu | None] = {}
        # As many as a plan may use: stock may be unlimited, or beyond all measure.
        self._free = {
            gpu_type.name: MAX_REPLICAS
            if gpu_type.count is None
            else min(gpu_type.count, MAX_REPLICAS)
            for gpu_type in problem.gpu_types
        }

    def place(self, place: Hashable, gpu_type: str, fleet: "PodFleet") -> PodGpu | None:
        """The GPU of a place in the current plan: who shares it goes on sharing it, where their parts are equal."""
        if place not in self._places:
            self._places[place] = self._idle(gpu_type, fleet)
        gpu = self._places[place]
        return gpu if gpu is not None and _takes(gpu, fleet) else None

    def room(self, gpu_type: str, fleet: "PodFleet") -> PodGpu | None:
        """The fullest GPU of that type that takes another replica of the service, else an idle one; None = no room."""
        # One that is not shared has no room once it carries something: nothing is looked for.
        shared = [
            gpu
            for gpu in (self._gpus if fleet.parts > 1 else ())
            if gpu.gpu_type == gpu_type and _takes(gpu, fleet)
        ]
        # The first of equals, so that the same GPUs give the same plan.
        fullest = max(shared, key=lambda gpu: len(gpu.services), default=None)
        return fullest or self._idle(gpu_type, fleet)

    def _idle(self, gpu_type: str, fleet: "PodFleet") -> PodGpu | None:
        is_free = self._free[gpu_type] > 0
        return PodGpu(gpu_type=gpu_type, parts=fleet.parts) if is_free else None

    def add(self, fleet: "PodFleet", gpu: PodGpu) -> None:
        """A replica of the service, its newest, on a GPU that has room for it."""
        if not gpu.services:
            self._gpus.append(gpu)
            self._free[gpu.gpu_type] -= 1
        gpu.services.append(fleet.service.name)
        fleet.gpus.append(gpu)

    def remove(self, fleet: "PodFleet", gpu: PodGpu) -> None:
        """The service's replica on that GPU goes."""
        gpu.services.remove(fleet.service.name)
        fleet.gpus.remove(gpu)
        if not gpu.services:
            self._gpus.remove(gpu)
            self._free[gpu.gpu_type] += 1


def _takes(gpu: PodGpu, fleet: "PodFleet") -> bool:
    """Whether the GPU has a part for another replica of the service."""
    return (
        gpu.parts == fleet.parts > len(gpu.services)
        and fleet.service.name not in gpu.services
    )


@dataclass(slots=True, kw_only=True)
class PodFleet:
    """One service's replicas while the plan is made."""

    service: ServiceDemand
    pods: PodOptions
    parts: int
    """As many as a GPU may carry replicas, at most."""
    ways: Mapping[str, PodWay]
    """By GPU type, in the order of names: those that meet the SLO."""
    gpus: list[PodGpu] = field(default_factory=list)
    """One entry per replica, oldest first."""
    wanted: int | None = None
    """What the autoscaler wants; None = what the target needs, because nothing runs yet."""
    draws: int = 0
    """GPU types drawn so far, ever."""
    hpa: Json = None
    """The autoscaler's memory."""

    @property
    def capacity_rps(self) -> float:
        """What all replicas can serve under the SLO, neighbours not reckoned with."""
        return sum(self.ways[gpu.gpu_type].capacity_rps for gpu in self.gpus)

    @property
    def rule(self) -> HpaRule:
        """Kubernetes runs at least one replica, unless even one is more than the service allows."""
        limit = self.service.max_replicas
        replicas = max(1, self.service.min_replicas)
        if limit is not None:
            replicas = min(replicas, limit)
        return HpaRule(
            min_replicas=replicas,
            max_replicas=limit,
            scale_down_window_s=self.pods.scale_down_s,
        )


def pod_ways(
    problem: Problem, service: ServiceDemand, pods: PodOptions, parts: int
) -> dict[str, PodWay]:
    """How the service runs in one of `parts` parts of a GPU, by GPU type, where it meets its SLO."""
    ways = {}
    for gpu_type in sorted(problem.gpu_types, key=lambda gpu_type: gpu_type.name):
        points = problem.points_of(service.network, gpu_type.name)
        is_allowed = pods.gpu_type in (None, gpu_type.name)
        if points is None or not is_allowed or not service.allows(gpu_type.name):
            continue
        rows = _rows(problem, gpu_type, points.rows, parts)
        found = [
            PodWay(row=row, capacity_rps=by_law(problem, service, row)) for row in rows
        ]
        best = max(found, key=_preference, default=None)
        if best is not None and best.capacity_rps >= MIN_CAPACITY_RPS:
            ways[gpu_type.name] = best
    return ways


def _preference(way: PodWay) -> tuple[float, float, int]:
    # Of equal capacities the one that draws less, then the one that makes requests wait for fewer others.
    return way.capacity_rps, -way.row.power_w, -way.row.batch


def _rows(
    problem: Problem, gpu_type: GpuType, rows: Sequence[OperatingPoint], parts: int
) -> list[OperatingPoint]:
    """Those at which a replica may run in one of `parts` equal parts of a GPU."""
    limit = 100.0 / parts + SM_PERCENT_TOLERANCE
    # Where a part as wide was not profiled, the widest narrower share stands for it.
    widest = max((row.sm_percent for row in rows if row.sm_percent <= limit), default=0)
    # Neighbours have one clock; a replica that is alone may have any.
    clocks_mhz = (
        gpu_type.clocks_mhz if parts == 1 else (planning_clock_mhz(problem, gpu_type),)
    )
    watts = gpu_type.power_cap_w - gpu_type.idle_w
    return [
        row
        for row in rows
        if row.sm_percent == widest
        and row.clock_mhz in clocks_mhz
        # Any neighbours fit next to it, since theirs is no more than an equal part either.
        and parts * row.memory_mib <= gpu_type.memory_mib
        and parts * row.power_w <= watts
    ]
