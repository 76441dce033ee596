"""GPUs filled with networks up to their knee points, each partitioned by the knees of who shares it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solvers.baselines.type_by_type import TypeStage
from solvers.greedy.arrange import obeys
from solvers.greedy.configure import MIN_CAPACITY_RPS
from solvers.greedy.routing import ArrangedReplica, Carrier
from solvers.laws.colocation import beside
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.papers.morak.knee_partition import ShareRequest, partition
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand


@dataclass(frozen=True, slots=True, kw_only=True)
class MorakTenant:
    """One service on one GPU type."""

    service: ServiceDemand
    knee_percent: float
    row: OperatingPoint
    """At its knee, with the largest batch within half the SLO."""
    rows: Mapping[tuple[float, float], tuple[OperatingPoint, ...]]
    """By (SM percent, clock), those up to that batch, by falling batch."""

    @property
    def wish(self) -> ShareRequest:
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


def packed(
    problem: Problem,
    stage: TypeStage,
    tenants: Mapping[str, MorakTenant],
    wanted: Mapping[str, int],
) -> list[Carrier]:
    """So many replicas on GPUs, widest knees first, each to the fullest that takes it; as far as there is room."""
    gpus: Counter[NeighbourSet] = Counter()
    carriers: dict[NeighbourSet, Carrier | None] = {(): None}
    room, stock = stage.room, stage.gpu_type.count

    def carrier_of(neighbours: NeighbourSet) -> Carrier | None:
        if neighbours not in carriers:
            carriers[neighbours] = _partitioned(
                problem, stage, [tenants[name] for name in neighbours]
            )
        return carriers[neighbours]

    for name in sorted(tenants, key=lambda name: (-tenants[name].knee_percent, name)):
        left = min(wanted[name], room)
        hosts = [
            neighbours
            for neighbours in gpus
            if name not in neighbours and _has_room(tenants, neighbours, name)
        ]
        for neighbours in sorted(
            hosts, key=lambda neighbours: (-_knees(tenants, neighbours), neighbours)
        ):
            grown = tuple(sorted((*neighbours, name)))
            count = min(left, gpus[neighbours])
            if count and carrier_of(grown) is not None:
                gpus[neighbours] -= count
                gpus[grown] += count
                left, room = left - count, room - count
        fresh = left if stock is None else min(left, stock - gpus.total())
        if fresh > 0 and carrier_of((name,)) is not None:
            gpus[(name,)] += fresh
            room -= fresh
        gpus = +gpus
    return [
        carrier
        for neighbours, count in sorted(gpus.items())
        if (carrier := carriers[neighbours])
        for _ in range(count)
    ]


def _knees(tenants: Mapping[str, MorakTenant], neighbours: NeighbourSet) -> float:
    return sum(tenants[name].knee_percent for name in neighbours)


def _has_room(
    tenants: Mapping[str, MorakTenant], neighbours: NeighbourSet, name: str
) -> bool:
    return (
        _knees(tenants, neighbours) + tenants[name].knee_percent
        <= 100.0 + SM_PERCENT_TOLERANCE
    )


def _partitioned(
    problem: Problem, stage: TypeStage, neighbours: Sequence[MorakTenant]
) -> Carrier | None:
    """A GPU partitioned among them, at the highest clock that keeps its rules; None where then some do not keep theirs.

    Where no clock keeps the cap with all SMs given away, each has its knee alone.
    """
    whole = partition([tenant.wish for tenant in neighbours]) or ()
    for shares in (whole, tuple(tenant.row.sm_percent for tenant in neighbours)):
        for clock_mhz in reversed(stage.gpu_type.clocks_mhz) if shares else ():
            carrier = _carrier(stage, neighbours, shares, clock_mhz)
            if carrier is not None and obeys(problem, carrier):
                return carrier if _keeps(problem, stage, carrier) else None
    return None


def _keeps(problem: Problem, stage: TypeStage, carrier: Carrier) -> bool:
    """Whether all run within half their SLO beside each other; of one alone, whether it can serve anything."""
    found = [
        beside(problem, stage.gpu_type, carrier.seats, at)
        for at in range(len(carrier.seats))
    ]
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
    rows = [
        tenant.at(share, clock_mhz)
        for tenant, share in zip(neighbours, shares, strict=True)
    ]
    seats = [
        ArrangedReplica(tenant.service.name, row)
        for tenant, row in zip(neighbours, rows, strict=True)
        if row is not None
    ]
    return (
        Carrier(gpu_type=stage.gpu_type.name, seats=tuple(seats))
        if len(seats) == len(neighbours)
        else None
    )
