"""Spares: loaded replicas without a rate, on what a bound plan leaves over of its GPUs.

A spare costs memory and no SMs as long as it rests, so that it is there within the time of one request where a new
replica takes the time of a launch. One for each service, at most:

    where    on GPUs in use, and on idle ones that are paid for anyway; not beside a replica of its own service, nor
             where tasks run, whose left-over it would be. Nodes' routers give requests to the replicas of their own
             node alone, so that a spare helps only where its service stands: on one of those nodes, first on the one
             that carries most of its rate, where queues grow. A service that stands on a single node and is to survive
             the loss of it has its spare on another one, so that something is left. Where there is no room on such a
             node, on any other
    size     the smallest share of a GPU that carries as much as the largest replica of the service, else the largest
             that there is room for
    order    services whose spare runs already, then those on a single node, then by priority and rate

A spare stays where it runs for as long as there is room, unless it is on the wrong side of that choice of nodes and
another place is not; `bind` makes it a replica where the plan wants one on its GPU.
What is physical is judged with it (`solvers.check_residents`), promises without it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from solvers.laws.colocation import alone_rps
from solvers.tick.replica_ids import new_replica_id
from solvers.tick.spare_places import SparePlace, spare_places
from solvers.types.plan import SPARE_NUMBER, BoundPlan, BoundReplica
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Gpu, GpuId, Node, NodeId


def with_spares(
    problem: Problem,
    bound: BoundPlan,
    gpus: Sequence[Gpu],
    nodes: Sequence[Node],
    *,
    running: BoundPlan | None,
    generation: int,
    may_open: bool,
    avoided: Mapping[str, Set[GpuId]] | None = None,
) -> BoundPlan:
    """The plan with spares, whatever it had of them; its replicas and tasks stay as they are.

    running: the target, of whose spares those that still fit keep their ids; the others get new ones, of that
    generation. may_open: whether idle GPUs that are paid for may be used. avoided: GPUs that start no spare of a
    service, by service; what runs there stays. The order of the items changes nothing.
    """
    bare = without_spares(bound)
    places = spare_places(problem, bare, gpus, nodes, may_open=may_open)
    finder = _Finder(problem, places, avoided or {}, generation)
    former = _former(running, {place.gpu.id for place in places})
    served = _served(problem, bare)
    for service in _in_turn(problem, served, former):
        finder.place(service, served[service.name], former.get(service.name))
    used = {place.gpu.id: place.with_spares() for place in places if place.spares}
    kept = {gpu.id: gpu for gpu in bare.gpus}
    return replace(bound, gpus=tuple(gpu for _, gpu in sorted((kept | used).items())))


def without_spares(bound: BoundPlan) -> BoundPlan:
    """The plan with nothing but its replicas and tasks."""
    gpus = (replace(gpu, spares=()) for gpu in bound.gpus)
    return replace(bound, gpus=tuple(gpu for gpu in gpus if not gpu.is_empty))


def spares_of(plan: BoundPlan | None) -> frozenset[tuple[GpuId, BoundReplica]]:
    """(GPU, spare) of a plan."""
    return frozenset(
        (gpu.id, spare) for gpu in (plan.gpus if plan else ()) for spare in gpu.spares
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """A share of a GPU at its best batch for one service, alone."""

    row: OperatingPoint
    rps: float


@dataclass(slots=True)
class _Served:
    """What the plan has of one service."""

    must_survive: bool
    """Whether something of it must be left when a node or a zone is lost."""
    node_rps: dict[NodeId, float] = field(default_factory=dict)
    """What each node that has replicas of it is planned for."""
    rates_rps: list[float] = field(default_factory=list)
    """What each replica is planned for."""

    @property
    def largest_rps(self) -> float:
        """What the spare should carry."""
        return max(self.rates_rps)

    def is_right(self, node: NodeId) -> bool:
        """Whether the spare belongs on that node: on another one where all would be lost with one, else on its own."""
        is_elsewhere = self.must_survive and len(self.node_rps) == 1
        return (node not in self.node_rps) is is_elsewhere


class _Offer(NamedTuple):
    """A spare that a service may have."""

    place: SparePlace
    spare: BoundReplica
    size: _Size

    def worth(
        self, served: _Served, former: "_Former | None"
    ) -> tuple[bool, bool, float, bool, float]:
        """The larger, the better."""
        node = self.place.gpu.node
        return (
            served.is_right(node),
            # Before the rates, which change with every plan: a spare would move to and fro with them.
            former is not None and self.spare.id == former.spare.id,
            served.node_rps.get(node, 0.0),
            self.size.rps >= served.largest_rps,
            self.size.rps,
        )


class _Former(NamedTuple):
    """A spare that runs."""

    gpu: GpuId
    spare: BoundReplica


class _Finder:
    """Finds places for spares, one service after the other."""

    def __init__(
        self,
        problem: Problem,
        places: Sequence[SparePlace],
        avoided: Mapping[str, Set[GpuId]],
        generation: int,
    ) -> None:
        self._problem, self._places, self._avoided = problem, places, avoided
        self._generation = generation
        self._rows = _rows_by_clock(problem)
        # Services with the same network and SLO have the same sizes.
        self._sizes: dict[tuple[str, float, float, str, float], list[_Size]] = {}
        kinds = [(place.gpu.gpu_type, place.gpu.clock_mhz) for place in places]
        self._kinds = sorted(set(kinds))
        numbers = {kind: number for number, kind in enumerate(self._kinds)}
        self._kind = np.array([numbers[kind] for kind in kinds], np.int32)
        """(P,) the kind of each place."""
        self._room = np.array([place.room for place in places]).reshape(-1, 4)
        """(P, 4) what is left of each place, as `SparePlace.room` says it."""

    def place(
        self, service: ServiceDemand, served: _Served, former: _Former | None
    ) -> None:
        """Give the service a spare, if there is room for one."""
        sizes = [self._sizes_of(service, *kind) for kind in self._kinds]
        offers = [
            (offer, at)
            for at in self._with_room(sizes)
            if (
                offer := self._offer(service, sizes[self._kind[at]], at, served, former)
            )
        ]
        if offers:
            # The first of equal ones: places are sorted by id.
            best, at = max(offers, key=lambda offer: offer[0].worth(served, former))
            best.place.take(best.spare, best.size.row)
            self._room[at] = best.place.room

    def _with_room(self, sizes: Sequence[Sequence[_Size]]) -> list[int]:
        """The places in which the smallest size of their kind fits, memory apart.

        All at once, since most GPUs of a rented fleet have less left than the smallest share.
        """
        smallest = [each[0].row if each else None for each in sizes]
        needed = [
            (row.sm_percent, 0.0, row.power_w, 1.0) if row else (math.inf,) * 4
            for row in smallest
        ]
        has_room = np.array(needed).reshape(-1, 4)[self._kind] <= self._room
        found: list[int] = np.flatnonzero(has_room.all(axis=1)).tolist()
        return found

    def _offer(
        self,
        service: ServiceDemand,
        sizes: Sequence[_Size],
        at: int,
        served: _Served,
        former: _Former | None,
    ) -> _Offer | None:
        """The spare that the service would have there: the one that runs, else one of the right size."""
        place = self._places[at]
        gpu = place.gpu
        if not place.may_take(self._problem, service):
            return None
        if former is not None and former.gpu == gpu.id:
            again = _again(former.spare, place, sizes, service.network)
            if again is not None:
                return again
        if gpu.id in self._avoided.get(service.name, ()):
            return None
        fitting = [each for each in sizes if place.fits(each.row, each.row.memory_mib)]
        enough = (each for each in fitting if each.rps >= served.largest_rps)
        size = next(enough, fitting[-1] if fitting else None)
        if size is None:
            return None
        return _Offer(place, _spare(service, size.row, self._generation), size)

    def _sizes_of(
        self, service: ServiceDemand, gpu_type_name: str, clock_mhz: float
    ) -> list[_Size]:
        """The shares of such a GPU that are of use to the service, from the smallest on."""
        if not service.allows(gpu_type_name):
            return []
        key = (
            service.network,
            service.slo_ms,
            service.percentile,
            gpu_type_name,
            clock_mhz,
        )
        if key not in self._sizes:
            self._sizes[key] = self._find_sizes(service, gpu_type_name, clock_mhz)
        return self._sizes[key]

    def _find_sizes(
        self, service: ServiceDemand, gpu_type_name: str, clock_mhz: float
    ) -> list[_Size]:
        gpu_type = self._problem.gpu_type(gpu_type_name)
        best: dict[float, _Size] = {}
        for row in self._rows[service.network, gpu_type_name, clock_mhz]:
            rps = alone_rps(self._problem, service, gpu_type, row)
            known = best.get(row.sm_percent)
            if rps > (known.rps if known else 0.0):
                best[row.sm_percent] = _Size(row=row, rps=rps)
        return [best[share] for share in sorted(best)]


def _rows_by_clock(
    problem: Problem,
) -> defaultdict[tuple[str, str, float], list[OperatingPoint]]:
    """By network, GPU type and clock, so that not every service goes through all rows of its network."""
    rows: defaultdict[tuple[str, str, float], list[OperatingPoint]] = defaultdict(list)
    for points in problem.points:
        for row in points.rows:
            rows[points.network, points.gpu_type, row.clock_mhz].append(row)
    return rows


def _served(problem: Problem, bound: BoundPlan) -> dict[str, _Served]:
    """By service."""
    surviving = {
        goal.service for goal in problem.survival if goal.loss in ("node", "zone")
    }
    found: dict[str, _Served] = {}
    # By id, so that sums do not depend on the order of the plan.
    for gpu in sorted(bound.gpus, key=lambda gpu: gpu.id):
        for each in gpu.replicas:
            new = _Served(must_survive=each.service in surviving)
            served = found.setdefault(each.service, new)
            before_rps = served.node_rps.get(gpu.node, 0.0)
            served.node_rps[gpu.node] = before_rps + each.arrival_rate_rps
            served.rates_rps.append(each.arrival_rate_rps)
    return found


def _in_turn(
    problem: Problem, served: Mapping[str, _Served], former: Mapping[str, _Former]
) -> list[ServiceDemand]:
    """The services that may have a spare: those that are served, as far as their own limit of replicas goes."""

    def turn(service: ServiceDemand) -> tuple[bool, bool, float, float, str]:
        mine = served[service.name]
        return (
            service.name not in former,
            len(mine.node_rps) > 1,
            -service.priority,
            -math.fsum(mine.rates_rps),
            service.name,
        )

    def may_have_one(service: ServiceDemand) -> bool:
        mine = served.get(service.name)
        if mine is None or mine.largest_rps <= 0.0:
            return False
        limit = service.max_replicas
        return limit is None or len(mine.rates_rps) < limit

    return sorted(filter(may_have_one, problem.services), key=turn)


def _again(
    spare: BoundReplica, place: SparePlace, sizes: Sequence[_Size], network: str
) -> _Offer | None:
    """The spare that runs there, where it fits as it is."""
    same = (
        _Offer(place, spare, each)
        for each in sizes
        if each.row[:2] == (spare.sm_percent, spare.batch)
        and each.row.memory_mib <= spare.memory_mib
        and place.fits(each.row, spare.memory_mib)
    )
    return next(same, None) if spare.network == network else None


def _spare(
    service: ServiceDemand, row: OperatingPoint, generation: int
) -> BoundReplica:
    return BoundReplica(
        # A service has one spare.
        id=new_replica_id(service.name, generation, SPARE_NUMBER),
        service=service.name,
        network=service.network,
        sm_percent=row.sm_percent,
        batch=row.batch,
        arrival_rate_rps=0.0,
        memory_mib=row.memory_mib,
    )


def _former(running: BoundPlan | None, gpus: Set[GpuId]) -> dict[str, _Former]:
    """Where each service's spare runs, by service, on these GPUs."""
    return {
        spare.service: _Former(gpu.id, spare)
        for gpu in (running.gpus if running else ())
        if gpu.id in gpus
        for spare in gpu.spares
    }
