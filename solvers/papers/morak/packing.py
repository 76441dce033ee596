"""GPUs filled with networks up to their knee points, each partitioned by the knees of who shares it, or by worth."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from solvers.baselines.type_by_type import TypeStage
from solvers.greedy.arrange import obeys
from solvers.greedy.configure import MIN_CAPACITY_RPS
from solvers.greedy.routing import ArrangedReplica, Carrier
from solvers.laws.colocation import (
    beside,
    capacities_rps,
    executions_ms,
    neighbours_of,
)
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.papers.morak.knee_partition import ShareRequest, partition
from solvers.sharing.division import DividedRow, divide
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand


@dataclass(frozen=True, slots=True, kw_only=True)
class MorakTenant:
    """One service on one GPU type."""

    service: ServiceDemand
    knee_percent: float
    row: OperatingPoint
    """The one at its knee, with the largest batch within half the SLO."""
    rows: Mapping[tuple[float, float], tuple[OperatingPoint, ...]]
    """By (SM percent, clock), those up to that batch, by falling batch."""

    @property
    def request(self) -> ShareRequest:
        """What it asks of a partition."""
        return ShareRequest(
            knee_percent=self.knee_percent,
            shares=tuple(sorted({percent for percent, _ in self.rows})),
        )

    def at(self, sm_percent: float, clock_mhz: float) -> OperatingPoint | None:
        """The row with the largest batch that runs within half the SLO, else with the smallest; None without any."""
        rows = self.rows.get((sm_percent, clock_mhz), ())
        return next(
            (row for row in rows if 2.0 * row.solo_ms <= self.service.slo_ms),
            rows[-1] if rows else None,
        )


NeighbourSet = tuple[str, ...]
"""Services that share a GPU, sorted."""


Partition = Callable[[Problem, TypeStage, Sequence[MorakTenant]], Carrier | None]
"""A GPU divided among the services that share it; None where then some do not keep their rules."""
CarrierOf = Callable[[NeighbourSet], Carrier | None]
"""The same by who shares it: costly, so that many packings ask one that remembers."""


def packed(
    stage: TypeStage,
    tenants: Mapping[str, MorakTenant],
    carrier_of: CarrierOf,
    wanted: Mapping[str, int],
) -> list[Carrier]:
    """The wanted replicas on GPUs, widest knees first, each to the fullest that takes it; as far as there is room."""
    packing = _Packing(stage, tenants, carrier_of)
    # Widest first, as bin packing goes by falling size: narrow knees fill what wide ones leave.
    for name in sorted(tenants, key=lambda name: (-tenants[name].knee_percent, name)):
        packing.add(name, wanted[name])
    return packing.all_carriers()


class _Packing:
    """GPUs as they fill up; those with the same services are counted, not listed."""

    def __init__(
        self,
        stage: TypeStage,
        tenants: Mapping[str, MorakTenant],
        carrier_of: CarrierOf,
    ) -> None:
        self._stage, self._tenants, self._carrier_of = stage, tenants, carrier_of
        self._room = stage.room
        self._gpus: Counter[NeighbourSet] = Counter()

    def add(self, name: str, wanted: int) -> None:
        """Seat a service's replicas: with others on the fullest GPUs first, then on GPUs of their own."""
        self._add_alone(name, self._add_beside(name, min(wanted, self._room)))
        # Sets that no GPU has any more would only be asked again by the next service.
        self._gpus = +self._gpus

    def _add_beside(self, name: str, left: int) -> int:
        """Seat as many next to others as have room there; how many are left."""
        for neighbours in self._with_room_for(name):
            grown = tuple(sorted((*neighbours, name)))
            count = min(left, self._gpus[neighbours])
            if count and self._carrier_of(grown) is not None:
                self._gpus[neighbours] -= count
                self._gpus[grown] += count
                self._room -= count
                left -= count
        return left

    def _add_alone(self, name: str, left: int) -> None:
        stock = self._stage.gpu_type.count
        fresh = left if stock is None else min(left, stock - self._gpus.total())
        if fresh > 0 and self._carrier_of((name,)) is not None:
            self._gpus[name,] += fresh
            self._room -= fresh

    def _with_room_for(self, name: str) -> list[NeighbourSet]:
        """The sets of neighbours whose knees leave room for this one's, the fullest first."""
        hosts = [
            neighbours
            for neighbours in self._gpus
            if name not in neighbours
            and self._knees(neighbours) + self._tenants[name].knee_percent
            <= 100.0 + SM_PERCENT_TOLERANCE
        ]
        return sorted(hosts, key=lambda each: (-self._knees(each), each))

    def _knees(self, neighbours: NeighbourSet) -> float:
        return sum(self._tenants[name].knee_percent for name in neighbours)

    def all_carriers(self) -> list[Carrier]:
        """One carrier per GPU."""
        return [
            carrier
            for neighbours, count in sorted(self._gpus.items())
            if (carrier := self._carrier_of(neighbours))
            for _ in range(count)
        ]


def divided_by_knees(
    problem: Problem,
    stage: TypeStage,
    neighbours: Sequence[MorakTenant],
) -> Carrier | None:
    """A GPU partitioned among them, at the highest clock that keeps its rules; None where then some do not keep theirs.

    Where no clock keeps the cap with all SMs given away, each has its knee alone.
    """
    all_sms = partition([tenant.request for tenant in neighbours]) or ()
    knees = tuple(tenant.row.sm_percent for tenant in neighbours)
    for shares in (all_sms, knees):
        # The governor climbs to that clock anyway (algorithm 1, lines 5 and 6): the plan counts with where it ends.
        for clock_mhz in reversed(stage.gpu_type.clocks_mhz) if shares else ():
            carrier = _carrier(stage, neighbours, shares, clock_mhz)
            if carrier is not None and obeys(problem, carrier):
                return carrier if _keeps(problem, stage, carrier) else None
    return None


def divided_by_worth(
    problem: Problem,
    stage: TypeStage,
    neighbours: Sequence[MorakTenant],
) -> Carrier | None:
    """The same with the shares and the clock at which the neighbours serve most together (`solvers.sharing.division`).

    Never worth less than by knees. What a neighbour costs is taken as the knees have it, and judged again in the end.
    """
    best = divided_by_knees(problem, stage, neighbours)
    # One alone has all there is either way.
    if len(neighbours) < 2:
        return best
    worth = _worth(problem, stage, best)
    for clock_mhz in reversed(stage.gpu_type.clocks_mhz):
        carrier, is_power_bound = _divided_at(problem, stage, neighbours, clock_mhz)
        # Judged with the neighbours that it really has: wider ones than at their knees may cost more than it wins.
        if (
            carrier is not None
            and obeys(problem, carrier)
            and _keeps(problem, stage, carrier)
            and _worth(problem, stage, carrier) > worth
        ):
            best, worth = carrier, _worth(problem, stage, carrier)
        # Where watts do not bind, every lower clock serves less at every share.
        if not is_power_bound:
            break
    return best


def _divided_at(
    problem: Problem,
    stage: TypeStage,
    neighbours: Sequence[MorakTenant],
    clock_mhz: float,
) -> tuple[Carrier | None, bool]:
    """The shares of most worth at one clock, None where none fit; and whether a lower clock may do more."""
    rows = [
        [row for share in tenant.request.shares if (row := tenant.at(share, clock_mhz))]
        for tenant in neighbours
    ]
    choices = [
        _choices(problem, stage, neighbours, at, of) for at, of in enumerate(rows)
    ]
    gpu_type = stage.gpu_type
    busy_w = gpu_type.power_cap_w - gpu_type.idle_w
    division = divide([list(of.values()) for of in choices], power_w=busy_w)
    if division is None:
        return None, True
    seats = (
        ArrangedReplica(tenant.service.name, list(of)[place])
        for tenant, of, place in zip(neighbours, choices, division.places, strict=True)
    )
    carrier = Carrier(gpu_type=gpu_type.name, seats=tuple(seats))
    return carrier, division.is_power_bound


def _choices(
    problem: Problem,
    stage: TypeStage,
    neighbours: Sequence[MorakTenant],
    at: int,
    rows: Sequence[OperatingPoint],
) -> dict[OperatingPoint, DividedRow]:
    """The rows that keep one's SLO next to the others, and what they are worth."""
    service = neighbours[at].service
    points = problem.points_of(service.network, stage.gpu_type.name)
    if not rows or points is None:
        return {}
    # A division is not known before it is made, so that the others count with what they draw at their knees.
    others = neighbours_of([tenant.row for tenant in neighbours], at)
    times_ms = executions_ms(
        rows, others, sensitivity=points.sensitivity, gpu_type=stage.gpu_type
    )
    law, percentile, slo_ms = problem.capacity_law, service.percentile, service.slo_ms
    rates_rps = capacities_rps(
        law, rows, times_ms, percentile=percentile, slo_ms=slo_ms
    )
    return {
        row: DividedRow(row.sm_percent, _worth_of(service, float(rate)), row.power_w)
        for row, time_ms, rate in zip(rows, times_ms, rates_rps, strict=True)
        # Rows that do not run within half the SLO next to others would be refused in the end.
        if 2.0 * time_ms <= slo_ms
    }


def _worth(problem: Problem, stage: TypeStage, carrier: Carrier | None) -> float:
    """What a GPU's replicas serve, by priority."""
    if carrier is None:
        return 0.0
    return sum(
        _worth_of(
            problem.service(seat.service),
            beside(problem, stage.gpu_type, carrier.seats, at).capacity_rps,
        )
        for at, seat in enumerate(carrier.seats)
    )


def _worth_of(service: ServiceDemand, rate_rps: float) -> float:
    # Beyond what is asked for, a higher rate serves no request.
    return service.priority * min(rate_rps, service.arrival_rate_rps)


def _keeps(problem: Problem, stage: TypeStage, carrier: Carrier) -> bool:
    """Whether all run within half their SLO next to each other; of one alone, whether it can serve anything."""
    found = [
        beside(problem, stage.gpu_type, carrier.seats, at)
        for at in range(len(carrier.seats))
    ]
    # It has no neighbours to protect: one that misses half its SLO at the clock that the cap leaves may serve all the
    # same, and no other partition would give it more.
    if len(found) == 1:
        return found[0].capacity_rps >= MIN_CAPACITY_RPS
    return all(
        2.0 * each.execution_ms <= problem.service(seat.service).slo_ms
        and each.capacity_rps >= MIN_CAPACITY_RPS
        for seat, each in zip(carrier.seats, found, strict=True)
    )


def _carrier(
    stage: TypeStage,
    neighbours: Sequence[MorakTenant],
    shares: Sequence[float],
    clock_mhz: float,
) -> Carrier | None:
    seats = []
    for tenant, share in zip(neighbours, shares, strict=True):
        row = tenant.at(share, clock_mhz)
        if row is None:
            return None
        seats.append(ArrangedReplica(tenant.service.name, row))
    return Carrier(gpu_type=stage.gpu_type.name, seats=tuple(seats))
