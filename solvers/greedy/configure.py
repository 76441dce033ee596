"""Configurations: at which operating row a service would run on a GPU type, whatever its neighbours turn out to be.

HetSev profiles each service once per GPU type (its T_g). Here the profile is one operating row whose capacity holds
next to the *worst* neighbours that the GPU may hold, so that counting replicas and placing them can be done one after
the other without breaking a promise.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from solvers.laws.colocation import WorstNeighbours, capacities_rps, worst_neighbours
from solvers.types.documents.strict_json import MAX_NUMBER
from solvers.types.plan import replicas_of
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

KEEP_TOLERANCE = 1.15
"""A running row stays as long as its cost for the present rate is within this factor of the best row's: every other
row would restart all of the service's replicas on that GPU type."""

SEPARATE_NEIGHBOURS = 8
"""Up to this many services each gets its own worst neighbours, without itself. Beyond, one set of neighbours per GPU
type, which counts the service itself among its neighbours: a little more cautious, and linear instead of quadratic."""


Rank = tuple[float, float, int, float, int]
"""Rate that as many replicas as are allowed cannot carry, then cost, replicas, SM percent, batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One service on one GPU type: the row, and what it carries next to the worst neighbours."""

    service: str
    gpu_type: str
    row: OperatingPoint
    capacity_rps: float
    """> 0."""
    cost_usd_per_hour: float
    """Price of the part of a GPU that the replica occupies: its largest share of SMs, memory, watts or places."""


def configure(
    problem: Problem, *, keep_running: bool, sharers: int = 1
) -> tuple[Configuration, ...]:
    """The cheapest configuration per service and GPU type for the present rate; none where the SLO cannot be met.

    With `keep_running`, a row that runs now is preferred within KEEP_TOLERANCE. Where it can, each leaves room on its
    GPU for as many `sharers`, itself among them, that are as large: what is cheapest for a service alone may take whole
    GPUs, and where GPUs are short the others then get nothing.
    """
    chosen = []
    for gpu_type in problem.gpu_types:
        neighbour_sets = TypeNeighbours(problem, gpu_type)
        for service in problem.services:
            candidates = neighbour_sets.candidates(service)
            # A cost is a footprint times the price, so that 1/sharers of the price is a footprint with room for the
            # others.
            narrow_usd = gpu_type.price_usd_per_hour / sharers * (1.0 + 1e-9)
            candidates = [
                each for each in candidates if each.cost_usd_per_hour <= narrow_usd
            ] or candidates
            if candidates:
                chosen.append(
                    _choose(problem, service, candidates, keep_running=keep_running)
                )
    return tuple(chosen)


def planning_clock_mhz(problem: Problem, gpu_type: GpuType) -> float:
    """The clock that HetSev runs a GPU at: the highest of those at which most services have rows.

    HetSev does not choose clocks; but a type whose highest clock was not profiled would carry nothing.
    """
    networks = Counter(
        service.network for service in problem.services if service.allows(gpu_type.name)
    )
    profiled: Counter[float] = Counter()
    for network, services in networks.items():
        points = problem.points_of(network, gpu_type.name)
        for clock_mhz in {row.clock_mhz for row in points.rows} if points else ():
            profiled[clock_mhz] += services
    # Of equally common clocks the highest, at which a replica carries most.
    return max(
        gpu_type.clocks_mhz, key=lambda clock_mhz: (profiled[clock_mhz], clock_mhz)
    )


def fitting_rows(
    problem: Problem, service: ServiceDemand, gpu_type: GpuType, clock_mhz: float
) -> tuple[OperatingPoint, ...]:
    """The service's rows at that clock that an empty GPU has the memory and the watts for."""
    points = problem.points_of(service.network, gpu_type.name)
    watts = gpu_type.power_cap_w - gpu_type.idle_w
    return tuple(
        row
        for row in (points.rows if points else ())
        # Clocks are compared exactly, as `planning_clock_mhz` counts them.
        if row.clock_mhz == clock_mhz
        and row.memory_mib <= gpu_type.memory_mib
        and row.power_w <= watts
    )


class TypeNeighbours:
    """The worst neighbours of every service on one GPU type."""

    def __init__(self, problem: Problem, gpu_type: GpuType) -> None:
        self._problem = problem
        self._gpu_type = gpu_type
        clock_mhz = planning_clock_mhz(problem, gpu_type)
        self._rows = {
            service.name: fitting_rows(problem, service, gpu_type, clock_mhz)
            for service in problem.services
            if service.allows(gpu_type.name)
        }
        self._all = (
            self._neighbours_of(tuple(self._rows.values()))
            if len(self._rows) > SEPARATE_NEIGHBOURS
            else None
        )
        # No two replicas of a service share a GPU, so that one that is alone in the world pays for whole GPUs.
        needy = sum(
            bool(self._rows.get(each.name)) and _is_needy(each)
            for each in problem.services
        )
        self._places = max(1, min(problem.max_replicas_per_gpu, needy))

    def of(self, service: str) -> WorstNeighbours:
        """The worst neighbours of a service."""
        if self._all is not None:
            return self._all
        # Without itself, since no GPU holds two replicas of a service.
        return self._neighbours_of(
            tuple(rows for name, rows in self._rows.items() if name != service)
        )

    def rows(self, service: str) -> tuple[OperatingPoint, ...]:
        """The rows at the planning clock that fit on an empty GPU."""
        return self._rows.get(service, ())

    def candidates(self, service: ServiceDemand) -> list[Configuration]:
        """Every row with which the service meets its SLO next to the worst neighbours."""
        rows = self.rows(service.name)
        points = self._points(service)
        if not rows or points is None:
            return []
        executions = self.of(service.name).executions_ms(
            rows, sensitivity=points.sensitivity
        )
        capacities = capacities_rps(
            self._problem.capacity_law,
            rows,
            executions,
            percentile=service.percentile,
            slo_ms=service.slo_ms,
        )
        return [
            Configuration(
                service=service.name,
                gpu_type=self._gpu_type.name,
                row=row,
                # A plan travels as strict JSON, which has no larger number.
                capacity_rps=min(float(capacity), MAX_NUMBER),
                cost_usd_per_hour=self._cost_usd_per_hour(row),
            )
            for row, capacity in zip(rows, capacities, strict=True)
            if capacity >= MIN_CAPACITY_RPS
        ]

    def _neighbours_of(
        self, others: Sequence[Sequence[OperatingPoint]]
    ) -> WorstNeighbours:
        return worst_neighbours(
            others,
            gpu_type=self._gpu_type,
            max_replicas=self._problem.max_replicas_per_gpu,
        )

    def _points(self, service: ServiceDemand) -> OperatingPoints | None:
        return self._problem.points_of(service.network, self._gpu_type.name)

    def _cost_usd_per_hour(self, row: OperatingPoint) -> float:
        watts = self._gpu_type.power_cap_w - self._gpu_type.idle_w
        footprint = max(
            row.sm_percent / 100.0,
            row.memory_mib / self._gpu_type.memory_mib,
            row.power_w / watts if row.power_w > 0 else 0.0,
            # Replica slots run out as well: a tiny replica on a GPU for four blocks a quarter of it.
            1.0 / self._places,
        )
        return footprint * self._gpu_type.price_usd_per_hour


def _choose(
    problem: Problem,
    service: ServiceDemand,
    candidates: Sequence[Configuration],
    *,
    keep_running: bool,
) -> Configuration:
    """The candidate with the least cost of enough replicas; ties by fewer replicas, then by a smaller row."""
    gpu_type = candidates[0].gpu_type
    max_replicas = _max_replicas(service, problem.gpu_type(gpu_type))

    def rank(candidate: Configuration) -> Rank:
        return _rank(service, candidate, max_replicas)

    best = min(candidates, key=rank)
    running = _running_rows(problem, service.name, gpu_type) if keep_running else ()
    kept = [candidate for candidate in candidates if candidate.row[:3] in running]
    if not kept:
        return best
    favourite = min(kept, key=rank)
    return favourite if _is_close(rank(favourite), rank(best)) else best


def _max_replicas(service: ServiceDemand, gpu_type: GpuType) -> int | None:
    # No GPU holds two replicas of a service, so that the type's stock limits them as well.
    limits = (gpu_type.count, service.max_replicas)
    return min((limit for limit in limits if limit is not None), default=None)


def _rank(
    service: ServiceDemand, candidate: Configuration, max_replicas: int | None
) -> Rank:
    # 1e-9 of a replica is the rounding of the division, and must not ask for one more.
    needed = max(
        1,
        service.min_replicas,
        math.ceil(service.arrival_rate_rps / candidate.capacity_rps - 1e-9),
    )
    beyond = 0.0
    if max_replicas is not None and needed > max_replicas:
        carried_rps = max_replicas * candidate.capacity_rps
        beyond = max(0.0, service.arrival_rate_rps - carried_rps)
    return (
        beyond,
        needed * candidate.cost_usd_per_hour,
        needed,
        candidate.row.sm_percent,
        candidate.row.batch,
    )


def _is_close(rank: Rank, best: Rank) -> bool:
    """Whether a rank is nearly as good as the best one: restarts would cost more than they save."""
    beyond, cost, *_ = rank
    best_beyond, best_cost, *_ = best
    return beyond <= best_beyond and cost <= best_cost * KEEP_TOLERANCE


def _is_needy(service: ServiceDemand) -> bool:
    """Whether the service wants any replica."""
    return service.arrival_rate_rps > 0.0 or service.min_replicas > 0


def _running_rows(
    problem: Problem, service: str, gpu_type: str
) -> set[tuple[float, int, float]]:
    if problem.current is None:
        return set()
    return {
        (replica.sm_percent, replica.batch, gpu.clock_mhz)
        for gpu, replica in replicas_of(problem.current, service)
        if gpu.gpu_type == gpu_type
    }


MAX_REPLICAS = 10_000
"""No plan has more replicas, nor is more read of one entry of the running one; what more would serve is unserved."""
MIN_CAPACITY_RPS = 1e-6
"""A replica that serves less, one request in eleven days, counts as one that misses its SLO."""
