"""One service per GPU: as many GPUs as each service's rate needs, and what runs stays as long as it serves.

1. Of what runs, every GPU keeps one replica, that of the most important service; its batch and SM percent stay as they
   are, however a fill has set them (`solvers.policies.registry`).
2. Where a service's replicas carry less than its rate they are reset, those that carry least first: to another batch
   with their share, else to the whole GPU.
3. Where that is not enough it gets more GPUs, of the type that carries its rate at the least price; the most important
   service first, but each its first GPU before any a second.
4. A replica more than the rate needs for HOLD_S goes, the one that carries least.

Every replica gets the same rate, as far as it can carry it: equal GPUs leave equally much to tasks.

Source: Mudi (EuroSys 2025), whose GPUs carry one inference service each, next to which training runs. How many GPUs a
service has is given there; counting them is ours, as are the types.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from solvers.greedy.arrange import obeys, running_carriers
from solvers.greedy.configure import (
    MAX_REPLICAS,
    MIN_CAPACITY_RPS,
    fitting_rows,
    planning_clock_mhz,
)
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import (
    ROUNDING,
    SAFE,
    ArrangedReplica,
    Carrier,
    reasons_short,
    route,
)
from solvers.laws.colocation import capacity_rps
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType, Json, Observed

MEMORY_VERSION = 1
HOLD_S = 60.0
"""For so long a service must need fewer GPUs before one goes."""
ROOM = 1.1
"""Times the rate that the GPUs which stay must carry when one goes."""

Carries = Callable[[Problem, ServiceDemand, OperatingPoint], float]
"""What a replica alone on its GPU is taken to carry at a row, in rps."""


def by_law(problem: Problem, service: ServiceDemand, row: OperatingPoint) -> float:
    """What the capacity law says."""
    return capacity_rps(
        problem.capacity_law,
        percentile=service.percentile,
        batch=row.batch,
        slo_ms=service.slo_ms,
        execution_ms=row.solo_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePerGpu:
    """A policy that gives every replica a GPU, and what it takes its replicas to carry."""

    name: str
    carries: Carries = by_law

    def make_plan(
        self,
        problem: Problem,
        observed: Observed,
        memory: Json,
        budget: Budget,
    ) -> tuple[Plan, PlanReport, Json]:
        """The plan, its report, and since when each service has needed fewer GPUs than it has."""
        begun = budget.elapsed()
        counting = _Counting(problem, self.carries, _since(memory), observed.at_s)
        # In this order, so that a GPU more is asked for only where no other batch or share helps.
        counting.reset()
        counting.add()
        counting.drop()
        carriers = counting.carriers()
        plan = route(
            problem,
            self.name,
            carriers,
            reasons_short(problem, carriers, counting.able),
            capacities=_equal_parts(problem, carriers, self.carries),
        )
        report = heuristic_report(
            problem, plan, seconds=budget.elapsed() - begun, method=self.name
        )
        return (
            plan,
            report,
            {"version": MEMORY_VERSION, "surplus_since_s": counting.since_s},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One service on one GPU type."""

    gpu_type: str
    row: OperatingPoint
    """The widest share, with the batch that carries most."""
    rows: tuple[OperatingPoint, ...]
    capacity_rps: float


class _Counting:
    """The GPUs of each service while they are counted."""

    def __init__(
        self,
        problem: Problem,
        carries: Carries,
        since_s: Mapping[str, float],
        now_s: float,
    ) -> None:
        self._problem, self._carries = problem, carries
        self._before, self._now_s = since_s, now_s
        self._ways = {
            service.name: _ways(problem, service, carries)
            for service in problem.services
        }
        self._ordered = problem.services_by_priority()
        self._running: defaultdict[str, list[Carrier]] = defaultdict(list)
        self.able = {name for name, ways in self._ways.items() if ways}
        self.since_s: dict[str, float] = {}
        for carrier in running_carriers(problem):
            self._keep_one(carrier)

    def _keep_one(self, carrier: Carrier) -> None:
        """Keep the replica of a GPU's most important service; the others of another policy's plan go."""

        def key(seat: ArrangedReplica) -> tuple[float, str]:
            return -self._problem.service(seat.service).priority, seat.service

        seat = min(carrier.seats, key=key)
        mine = self._running[seat.service]
        if len(mine) < _max_replicas(self._problem.service(seat.service)):
            mine.append(Carrier(gpu_type=carrier.gpu_type, seats=(seat,)))

    def carriers(self) -> list[Carrier]:
        """All GPUs."""
        return [
            carrier for _, mine in sorted(self._running.items()) for carrier in mine
        ]

    def reset(self) -> None:
        """Let replicas that run carry more where their service falls short."""
        for service in self._ordered:
            # Another batch changes in place; a wider share is a new process.
            for change in (self._rebatched, self._on_entire_gpu):
                self._change_while_short(service, change)

    def _change_while_short(
        self,
        service: ServiceDemand,
        change: Callable[[ServiceDemand, Carrier], Carrier],
    ) -> None:
        mine = self._running[service.name]
        # Those that carry least have most to gain.
        for at in sorted(
            range(len(mine)), key=lambda at: (self._carried(service, mine[at]), at)
        ):
            if self._missing_rps(service) > 0.0:
                mine[at] = change(service, mine[at])

    def add(self) -> None:
        """Give services the GPUs that they lack, as far as there are any."""
        # Two rounds: each service its first GPU before any a second.
        for limit in (1, MAX_REPLICAS):
            for service in self._ordered:
                self._add_up_to(service, min(limit, _max_replicas(service)))

    def _add_up_to(self, service: ServiceDemand, limit: int) -> None:
        mine = self._running[service.name]
        while len(mine) < limit and (
            len(mine) < service.min_replicas or self._missing_rps(service) > 0.0
        ):
            way = self._next_way(service)
            if way is None:
                break
            mine.append(_alone(service, way.gpu_type, way.row))

    def drop(self) -> None:
        """Take a GPU from each service that has needed fewer for long."""
        for service in self._ordered:
            mine = self._running[service.name]
            # By what each could carry: a replica that a fill made narrow is not the weakest for that.
            carried = sorted(
                (self._best(service, carrier), -at) for at, carrier in enumerate(mine)
            )
            rest_rps = math.fsum(rps for rps, _ in carried[1:])
            is_needed = rest_rps < ROOM * service.arrival_rate_rps
            if len(mine) <= service.min_replicas or not mine or is_needed:
                continue
            # A clock that was set back must not make the drop wait for longer than the hold.
            since_s = min(self._before.get(service.name, self._now_s), self._now_s)
            if self._now_s - since_s >= HOLD_S:
                del mine[-carried[0][1]]
                self.reset()
            else:
                self.since_s[service.name] = since_s

    def _next_way(self, service: ServiceDemand) -> _Way | None:
        """The type with a GPU left whose GPUs carry what is missing at the least price."""
        used = self._used()
        if used.total() >= MAX_REPLICAS:
            return None
        missing_rps = self._missing_rps(service)

        def price(way: _Way) -> tuple[float, str]:
            gpus = max(1, math.ceil(missing_rps / way.capacity_rps - ROUNDING))
            gpu_type = self._problem.gpu_type(way.gpu_type)
            return gpus * gpu_type.price_usd_per_hour, way.gpu_type

        def is_left(way: _Way) -> bool:
            gpu_type = self._problem.gpu_type(way.gpu_type)
            return gpu_type.has_more_than(used[way.gpu_type])

        return min(filter(is_left, self._ways[service.name]), key=price, default=None)

    def _used(self) -> Counter[str]:
        """GPUs by type."""
        return Counter(
            carrier.gpu_type for mine in self._running.values() for carrier in mine
        )

    def _missing_rps(self, service: ServiceDemand) -> float:
        carried = math.fsum(
            self._carried(service, carrier) for carrier in self._running[service.name]
        )
        missing_rps = service.arrival_rate_rps - SAFE * carried
        return missing_rps if missing_rps > ROUNDING * service.arrival_rate_rps else 0.0

    def _carried(self, service: ServiceDemand, carrier: Carrier) -> float:
        return self._carries(self._problem, service, carrier.seats[0].row)

    def _best(self, service: ServiceDemand, carrier: Carrier) -> float:
        """What the replica would carry on the whole GPU."""
        return self._carried(service, self._on_entire_gpu(service, carrier))

    def _rebatched(self, service: ServiceDemand, carrier: Carrier) -> Carrier:
        """The replica with the batch that carries most at its share."""
        row = carrier.seats[0].row
        same = [
            each
            for way in self._ways[service.name]
            if way.gpu_type == carrier.gpu_type
            for each in way.rows
            if (each.sm_percent, each.clock_mhz) == (row.sm_percent, row.clock_mhz)
        ]
        return self._with_best(service, carrier, [row, *same])

    def _on_entire_gpu(self, service: ServiceDemand, carrier: Carrier) -> Carrier:
        """The replica on the whole GPU, if that carries more."""
        ways = [
            way.row
            for way in self._ways[service.name]
            if way.gpu_type == carrier.gpu_type
        ]
        return self._with_best(service, carrier, [carrier.seats[0].row, *ways])

    def _with_best(
        self,
        service: ServiceDemand,
        carrier: Carrier,
        rows: Sequence[OperatingPoint],
    ) -> Carrier:
        # The first of equals, which is the present row: nothing changes without need.
        best = max(rows, key=lambda row: self._carries(self._problem, service, row))
        return _alone(service, carrier.gpu_type, best)


def _alone(service: ServiceDemand, gpu_type: str, row: OperatingPoint) -> Carrier:
    seat = ArrangedReplica(service=service.name, row=row)
    return Carrier(gpu_type=gpu_type, seats=(seat,))


def _ways(
    problem: Problem,
    service: ServiceDemand,
    carries: Carries,
) -> tuple[_Way, ...]:
    """The GPU types on which a service can keep its SLO."""
    ways = []
    for gpu_type in problem.gpu_types:
        rows = _possible_rows(problem, service, gpu_type)
        rates_rps = {row: carries(problem, service, row) for row in rows}
        # Of equal rates the widest: nothing else needs the SMs, and tasks get what `fill` leaves them.
        best = max(rows, key=lambda row: (rates_rps[row], row.sm_percent), default=None)
        if best is not None and rates_rps[best] >= MIN_CAPACITY_RPS:
            ways.append(
                _Way(
                    gpu_type=gpu_type.name,
                    row=best,
                    rows=rows,
                    capacity_rps=rates_rps[best],
                )
            )
    return tuple(ways)


def _possible_rows(
    problem: Problem, service: ServiceDemand, gpu_type: GpuType
) -> tuple[OperatingPoint, ...]:
    """The rows at which a replica may run alone on such a GPU."""
    if not service.allows(gpu_type.name):
        return ()
    clock_mhz = planning_clock_mhz(problem, gpu_type)
    return tuple(
        row
        for row in sorted(fitting_rows(problem, service, gpu_type, clock_mhz))
        if obeys(problem, _alone(service, gpu_type.name, row))
    )


def _equal_parts(
    problem: Problem,
    carriers: Sequence[Carrier],
    carries: Carries,
) -> Callable[[Problem, Carrier], Sequence[float]]:
    """What each replica is to get: the same for all of a service, or less where it carries less."""

    def carried_rps(seat: ArrangedReplica) -> float:
        return carries(problem, problem.service(seat.service), seat.row)

    by_service: defaultdict[str, list[float]] = defaultdict(list)
    for carrier in carriers:
        (seat,) = carrier.seats
        by_service[seat.service].append(carried_rps(seat))
    levels = _levels(problem, by_service)

    # Given to `route` as capacities, which it fills in proportion: equal ones get equal rates.
    def parts(_: Problem, carrier: Carrier) -> list[float]:
        return [min(levels[seat.service], carried_rps(seat)) for seat in carrier.seats]

    return parts


def _levels(
    problem: Problem, capacities_rps: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """By service, what each of its replicas of these capacities is to get at most."""
    return {
        name: _level(problem.service(name).arrival_rate_rps, rates)
        for name, rates in capacities_rps.items()
    }


def _level(rate_rps: float, capacities_rps: Sequence[float]) -> float:
    """The least level with Σ min(level, capacity) ≥ rate / SAFE; infinite where all together carry less."""
    # Squared, so that the level lies above that of rate / SAFE by more than rounding.
    left_rps = rate_rps / SAFE**2
    ordered = sorted(capacities_rps)
    for at, capacity in enumerate(ordered):
        level = left_rps / (len(ordered) - at)
        if level <= capacity:
            return level
        left_rps -= capacity
    return math.inf


def _max_replicas(service: ServiceDemand) -> int:
    return MAX_REPLICAS if service.max_replicas is None else service.max_replicas


def _since(memory: Json) -> Mapping[str, float]:
    if isinstance(memory, Mapping) and memory.get("version") == MEMORY_VERSION:
        since_s = memory.get("surplus_since_s")
        if isinstance(since_s, Mapping):
            return {
                name: float(value)
                for name, value in since_s.items()
                if isinstance(value, int | float)
            }
    return {}
