"""What every replica of a plan can carry next to its neighbours, and which limits of its GPU are full.

By the problem's own rows, so that a plan of any policy can be looked at.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solvers.explain.types import Binding, LimitUse, Rule
from solvers.laws.colocation import beside, capacities_rps, executions_ms, neighbours_of
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ, OperatingRows
from solvers.types.outcome import Prices
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, gpu_counts, replicas_of
from solvers.types.problem import OperatingPoint, OperatingPoints, Problem

_TOLERANCE = 1e-6
"""Relative, as the contract's."""
_SLO_IS_FREE = 0.98
"""A replica that may be loaded to this share of the law's highest utilisation is not held back by its SLO."""

_NEEDS = tuple(
    OperatingPoint._fields.index(name)
    for name in ("sm_percent", "memory_mib", "power_w")
)


_DETAILS: dict[Rule, str] = {
    "sm": "no SM percent is left to give it more",
    "memory": "a larger batch needs more memory than is free",
    "power": "more SM percent draws more watts than the cap leaves",
    "slo": "more SM percent would slow a neighbour below its rate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica at its row next to its neighbours."""

    replica: ReplicaPlan
    row: OperatingPoint
    execution_ms: float
    capacity_rps: float


class NeighbourReader:
    """Reads plans of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._rows = OperatingRows(problem)
        self._names = {service.name for service in problem.services}
        self._types = {gpu_type.name for gpu_type in problem.gpu_types}
        self._at_clock: dict[
            tuple[str, str, float], tuple[OperatingPoints, tuple[OperatingPoint, ...]]
        ] = {}
        self._seated: dict[GpuPlan, tuple[ReplicaRow, ...] | None] = {}

    def seats(self, gpu: GpuPlan) -> tuple[ReplicaRow, ...] | None:
        """The replicas of a GPU in its order; None where one has no row in the problem."""
        # Reliefs, limits and prices all ask for the same GPUs, and the laws take long.
        if gpu not in self._seated:
            rows = [self._row(gpu, replica) for replica in gpu.replicas]
            known = [row for row in rows if row is not None]
            self._seated[gpu] = (
                None if len(known) < len(rows) else self._seats(gpu, known)
            )
        return self._seated[gpu]

    def seat(self, gpu: GpuPlan, replica: ReplicaPlan) -> ReplicaRow | None:
        """One replica of a GPU; None where it or a neighbour has no row in the problem."""
        seats = self.seats(gpu)
        return None if seats is None else seats[gpu.replicas.index(replica)]

    def uses(self, gpu: GpuPlan) -> tuple[LimitUse, ...]:
        """SM percent, memory, watts and replicas of a GPU. Raises InvalidInput for a replica without a row."""
        gpu_type = self.problem.gpu_type(gpu.gpu_type)
        rows = [self._rows.row_of(gpu, replica) for replica in gpu.replicas]
        others = tuple(self._others(gpu))
        sm, memory, power = _needs(rows)
        # A limit is full when not even the smallest row that might come fits, however much seems free.
        more_sm, more_memory, more_power = _min_needs(others)
        max_replicas = float(self.problem.max_replicas_per_gpu)
        watts = gpu_type.idle_w + power
        return (
            _use("sm", sm, gpu_type.max_sm_percent(int(max_replicas)), more_sm),
            _use("memory", memory, gpu_type.memory_mib, more_memory),
            _use("power", watts, gpu_type.power_cap_w, more_power),
            _use("replicas_per_gpu", float(len(rows)), max_replicas, 1.0),
        )

    def bindings(
        self,
        plan: Plan,
        service: str,
        prices: Prices | None = None,
    ) -> tuple[Binding, ...]:
        """What keeps the replicas of a service from carrying more, most frequent first; then limits of the service.

        Nothing is said of a GPU type that is used up but of which one more would be worth nothing at the prices, nor of
        a service that the problem lacks.
        """
        if service not in self._names:
            return ()
        counts = Counter[tuple[Rule, str]]()
        for gpu, replica in replicas_of(plan, service):
            for key in self._held_by(gpu, replica):
                counts[key] += gpu.count
        found = [
            Binding(rule=rule, replicas=count, detail=detail)
            for (rule, detail), count in counts.items()
        ]
        found.sort(key=lambda binding: (-binding.replicas, binding.rule))
        return (*found, *self._of_service(plan, service, prices))

    def types_held_by(self, plan: Plan, rule: Rule) -> set[str]:
        """GPU types on which a limit keeps some replica from carrying more, or another one from coming."""
        known = (gpu for gpu in plan.gpus if self.seats(gpu) is not None)
        return {gpu.gpu_type for gpu in known if self._is_held_by(gpu, rule)}

    def _is_held_by(self, gpu: GpuPlan, rule: Rule) -> bool:
        if any(use.rule == rule and use.is_full for use in self.uses(gpu)):
            return True
        return any(
            held == rule
            for replica in gpu.replicas
            for held, _ in self._held_by(gpu, replica)
        )

    def _held_by(
        self,
        gpu: GpuPlan,
        replica: ReplicaPlan,
    ) -> Iterator[tuple[Rule, str]]:
        seats = self.seats(gpu)
        if seats is None:
            return
        seat = seats[gpu.replicas.index(replica)]
        # The SLO limits the load even where the GPU is empty otherwise.
        if self._is_slo_tight(seat):
            yield "slo", "a looser SLO would let the same replica take more"
        rules = [
            self._broken(gpu, seats, seat, row)
            for row in self._larger(gpu, seat, seats)
        ]
        # Where some larger row breaks no rule, the replica could grow: no limit holds it back.
        if not rules or () in rules:
            return
        # The rows that break the fewest rules are nearest to being possible: theirs are the rules to name.
        min_broken = min(len(each) for each in rules)
        nearest = (rule for each in rules if len(each) == min_broken for rule in each)
        for rule in dict.fromkeys(nearest):
            yield rule, _DETAILS[rule]

    def _larger(
        self,
        gpu: GpuPlan,
        seat: ReplicaRow,
        seats: Sequence[ReplicaRow],
    ) -> list[OperatingPoint]:
        """Rows of the network at the GPU's clock with which the replica would carry more, all else as it is."""
        service = self.problem.service(seat.replica.service)
        gpu_type = self.problem.gpu_type(gpu.gpu_type)
        points, rows = self._rows_at(service.network, gpu.gpu_type, gpu.clock_mhz)
        neighbours = neighbours_of([other.row for other in seats], seats.index(seat))
        durations_ms = executions_ms(
            rows,
            neighbours,
            sensitivity=points.sensitivity,
            gpu_type=gpu_type,
        )
        carried = capacities_rps(
            self.problem.capacity_law,
            rows,
            durations_ms,
            percentile=service.percentile,
            slo_ms=service.slo_ms,
        )
        more = carried > seat.capacity_rps * (1.0 + _TOLERANCE)
        return [row for row, is_one in zip(rows, more.tolist(), strict=True) if is_one]

    def _rows_at(
        self,
        network: str,
        gpu_type: str,
        clock_mhz: float,
    ) -> tuple[OperatingPoints, tuple[OperatingPoint, ...]]:
        """A network's points on a type, and those at one clock."""
        key = (network, gpu_type, clock_mhz)
        if key not in self._at_clock:
            points = self.problem.points_of(network, gpu_type)
            assert points is not None, "a replica runs there, or may"
            near = (
                row
                for row in points.rows
                if abs(row.clock_mhz - clock_mhz) <= CLOCK_TOLERANCE_MHZ
            )
            self._at_clock[key] = points, tuple(near)
        return self._at_clock[key]

    def _broken(
        self,
        gpu: GpuPlan,
        seats: Sequence[ReplicaRow],
        seat: ReplicaRow,
        row: OperatingPoint,
    ) -> tuple[Rule, ...]:
        """The rules that the GPU would break with that row in place of the replica's."""
        gpu_type = self.problem.gpu_type(gpu.gpu_type)
        rows = [row if other is seat else other.row for other in seats]
        sm, memory, power = _needs(rows)
        neighbours = [
            after
            for after, before in zip(self._seats(gpu, rows), seats, strict=True)
            if before is not seat
        ]
        rules: dict[Rule, bool] = {
            "sm": _exceeds(sm, gpu_type.max_sm_percent(len(rows))),
            "memory": _exceeds(memory, gpu_type.memory_mib),
            "power": _exceeds(gpu_type.idle_w + power, gpu_type.power_cap_w),
            "slo": any(map(_is_too_slow, neighbours)),
        }
        return tuple(rule for rule, is_broken in rules.items() if is_broken)

    def _of_service(
        self,
        plan: Plan,
        name: str,
        prices: Prices | None,
    ) -> Iterator[Binding]:
        service = self.problem.service(name)
        # A GPU carries a service at most once, so that its GPUs are its replicas.
        own = [
            gpu
            for gpu in plan.gpus
            if any(replica.service == name for replica in gpu.replicas)
        ]
        count = sum(gpu.count for gpu in own)
        if service.max_replicas is not None and count >= service.max_replicas:
            yield Binding(
                rule="max_replicas",
                replicas=count,
                detail=f"no more than {service.max_replicas} may run",
            )
        if 0 < count <= service.min_replicas:
            yield Binding(
                rule="min_replicas",
                replicas=count,
                detail=f"no fewer than {service.min_replicas} may run",
            )
        yield from self._used_up(plan, own, prices)

    def _used_up(
        self,
        plan: Plan,
        own: Sequence[GpuPlan],
        prices: Prices | None,
    ) -> Iterator[Binding]:
        """Stocks of which nothing is left, of the GPU types that a service runs on."""
        used = gpu_counts(plan.gpus)
        replicas = gpu_counts(own)
        # A plan that was made for another problem may name types that this one lacks.
        for kind in sorted(replicas.keys() & self._types):
            gpu_type = self.problem.gpu_type(kind)
            is_worthless = prices is not None and prices.of_gpu_type(kind) <= 0.0
            if gpu_type.has_more_than(used[kind]) or is_worthless:
                continue
            all_of_it = f"all {gpu_type.count} {kind} are in use"
            detail = f"the only {kind} is in use" if gpu_type.count == 1 else all_of_it
            yield Binding(rule="stock", replicas=replicas[kind], detail=detail)

    def _others(self, gpu: GpuPlan) -> Iterator[OperatingPoint]:
        """Rows that might still come to the GPU: of services that are not there."""
        here = {replica.service for replica in gpu.replicas}
        networks = {
            service.network
            for service in self.problem.services
            if service.name not in here and service.allows(gpu.gpu_type)
        }
        for network in sorted(networks):
            if self.problem.points_of(network, gpu.gpu_type) is not None:
                yield from self._rows_at(network, gpu.gpu_type, gpu.clock_mhz)[1]

    def _seats(
        self,
        gpu: GpuPlan,
        rows: Sequence[OperatingPoint],
    ) -> tuple[ReplicaRow, ...]:
        gpu_type = self.problem.gpu_type(gpu.gpu_type)
        named = [
            (replica.service, row)
            for replica, row in zip(gpu.replicas, rows, strict=True)
        ]
        seats = []
        for at, (replica, row) in enumerate(zip(gpu.replicas, rows, strict=True)):
            execution_ms, capacity_rps = beside(self.problem, gpu_type, named, at)
            seats.append(
                ReplicaRow(
                    replica=replica,
                    row=row,
                    execution_ms=execution_ms,
                    capacity_rps=capacity_rps,
                )
            )
        return tuple(seats)

    def _is_slo_tight(self, seat: ReplicaRow) -> bool:
        """Whether a looser SLO would let the replica be loaded notably more."""
        service = self.problem.service(seat.replica.service)
        # Without any SLO the ratio is infinite: the law is flat beyond its last ratio.
        allowed, highest = (
            self.problem.capacity_law.utilisation(
                service.percentile, seat.row.batch, ratio
            )
            for ratio in (service.slo_ms / seat.execution_ms, math.inf)
        )
        return allowed < _SLO_IS_FREE * highest

    def _row(self, gpu: GpuPlan, replica: ReplicaPlan) -> OperatingPoint | None:
        if replica.service not in self._names or gpu.gpu_type not in self._types:
            return None
        network = self.problem.service(replica.service).network
        return self._rows.find(
            network,
            gpu.gpu_type,
            (replica.sm_percent, replica.batch, gpu.clock_mhz),
        )


def _needs(rows: Sequence[OperatingPoint]) -> tuple[float, ...]:
    """What rows take together of the resources `_NEEDS`."""
    return tuple(math.fsum(row[at] for row in rows) for at in _NEEDS)


def _min_needs(rows: Sequence[OperatingPoint]) -> tuple[float, ...]:
    """The least that a row takes of each of these resources; 0 without rows."""
    return tuple(min((row[at] for row in rows), default=0.0) for at in _NEEDS)


def _is_too_slow(seat: ReplicaRow) -> bool:
    rate_rps = seat.replica.arrival_rate_rps
    return seat.capacity_rps < rate_rps * (1.0 - _TOLERANCE)


def _use(rule: Rule, used: float, limit: float, more: float) -> LimitUse:
    """more: the least that whatever came next would need."""
    is_full = _exceeds(used + more, limit)
    return LimitUse(rule=rule, used=used, limit=limit, is_full=is_full)


def _exceeds(value: float, limit: float) -> bool:
    return value > limit * (1.0 + _TOLERANCE)
