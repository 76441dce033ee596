"""Policy `igniter`: iGniter's provisioning, which gives neighbours the extra SM percent that their interference takes.

1. Per service the appropriate batch and the least SM percent with which one replica, alone on a GPU, keeps half its SLO
   and serves its rate (`half_slo`).
2. Services in falling order of that SM percent. Each goes to the GPU on which the extra SM percent is least that it and
   its neighbours need to keep their rule next to each other (they are widened one step at a time, at the same batch,
   until all keep it); to a new GPU where none has the room.
3. One GPU type at a time, the cheapest is taken (`type_by_type`).

Source: Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the Cloud",
IEEE TPDS 2023, theorem 1 and algorithms 1 and 2. Changed, because a Problem holds rows and not iGniter's coefficients:
its closed form (which inverts its own latency terms) is the smallest row that suffices, of equal SM percent the one
with the most to spare; interference is the contract's, whose terms are iGniter's launch delay and cache term; its term
for the clock that falls under the power limit is left out, the limit is a rule instead. A rate beyond one whole GPU is
split evenly over as few replicas as can carry it: iGniter leaves that open.

Good as a baseline that knows interference: on its own V100 problems it needs about the GPUs that the paper's program
needs. Limits: it knows no queue (see `half_slo`), no priority, no price of a move; a service that finds no room stays
unserved though a part of it might fit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from solvers.baselines.half_slo import (
    SoloProfile,
    half_slo_rps,
    max_replicas,
    replicas_for,
)
from solvers.baselines.type_by_type import (
    TypePolicy,
    TypeStage,
    plan_type_by_type,
    replace_one,
)
from solvers.greedy.arrange import obeys
from solvers.greedy.routing import ArrangedReplica, Carrier
from solvers.laws.colocation import Neighbours, beside, neighbours_of
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Json, Observed

NAME = "igniter"

_GUARD = 1e-9
"""A shortage below this part of a rate is rounding."""

Seats = tuple[ArrangedReplica, ...]


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan that iGniter's algorithm makes for the Problem's rates, and its report; it remembers nothing."""
    del observed, memory
    plan, report = plan_type_by_type(
        problem, TypePolicy(name=NAME, fill=_fill, capacities=_capacities), budget
    )
    return plan, report, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """The replicas of one service, which share its rate evenly."""

    service: str
    replicas: int
    rate_rps: float
    """What each replica is to serve."""
    row: OperatingPoint
    """What one replica needs alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What every replica on a GPU type must keep, whatever its row."""

    profiles: Mapping[str, SoloProfile]
    rates_rps: Mapping[str, float]

    def are_met(self, seat: ArrangedReplica, neighbours: Neighbours) -> bool:
        rate_rps = self.profiles[seat.service].rate_rps(seat.row, neighbours)
        return rate_rps > 0.0 and rate_rps >= self.rates_rps[seat.service] * (
            1.0 - _GUARD
        )


def _capacities(problem: Problem, carrier: Carrier) -> list[float]:
    """What half the SLO gives each replica next to its neighbours."""
    gpu_type = problem.gpu_type(carrier.gpu_type)
    return [
        half_slo_rps(
            seat.row,
            beside(problem, gpu_type, carrier.seats, at).execution_ms,
            slo_ms=problem.service(seat.service).slo_ms,
        )
        for at, seat in enumerate(carrier.seats)
    ]


def _fill(problem: Problem, stage: TypeStage) -> list[Carrier]:
    workloads = _workloads(problem, stage)
    needs = _Needs(
        profiles=stage.profiles,
        rates_rps={one.service: one.rate_rps for one in workloads},
    )
    # Equal GPUs are one entry: they are equally good for the next replica.
    gpus: Counter[Seats] = Counter()
    room = stage.room
    for workload in workloads:
        seat = ArrangedReplica(service=workload.service, row=workload.row)
        for _ in range(min(workload.replicas, room)):
            if not _place(problem, stage, needs, gpus, seat):
                break
            room -= 1
    return [
        Carrier(gpu_type=stage.gpu_type.name, seats=seats)
        for seats, count in gpus.items()
        for _ in range(count)
    ]


def _workloads(problem: Problem, stage: TypeStage) -> list[_Workload]:
    workloads = (
        _workload(service, stage.profiles[service.name], stage.room)
        for service in problem.services
        if service.name in stage.profiles
    )
    # Widest first, while GPUs are empty: a wide replica would find no place later.
    return sorted(workloads, key=lambda one: (-one.row.sm_percent, one.service))


def _workload(service: ServiceDemand, profile: SoloProfile, room: int) -> _Workload:
    needed = replicas_for(service.arrival_rate_rps, profile.highest_rps)
    replicas = min(max(needed, service.min_replicas), max_replicas(service, room))
    # Where even as many replicas as are allowed cannot carry the rate, each carries what it can.
    rate_rps = min(service.arrival_rate_rps / max(1, replicas), profile.highest_rps)
    row = min(
        _sufficient(profile, rate_rps),
        key=lambda row: (row.sm_percent, -_spare(profile, row, rate_rps), row),
    )
    return _Workload(
        service=service.name, replicas=replicas, rate_rps=rate_rps, row=row
    )


def _sufficient(profile: SoloProfile, rate_rps: float) -> Iterator[OperatingPoint]:
    """The rows of the least SM percent that serves the rate alone; never empty for a rate up to the highest."""
    min_rps = rate_rps * (1.0 - _GUARD)
    for rows in profile.rows.values():
        enough = [row for row in rows if 0.0 < profile.rate_rps(row) >= min_rps]
        if enough:
            yield from enough
            return


def _spare(profile: SoloProfile, row: OperatingPoint, rate_rps: float) -> float:
    """By which factor the execution may grow before the replica misses half its SLO or its rate."""
    longest_ms = profile.slo_ms / 2.0
    if rate_rps > 0.0:
        longest_ms = min(longest_ms, 1000.0 * row.batch / rate_rps)
    return longest_ms / profile.execution_ms(row)


def _place(
    problem: Problem,
    stage: TypeStage,
    needs: _Needs,
    gpus: Counter[Seats],
    seat: ArrangedReplica,
) -> bool:
    """Put a replica where the extra SM percent is least, on a new GPU where no other has room; whether it was put."""
    change = _best_change(problem, stage, needs, gpus, seat)
    stock = stage.gpu_type.count
    if change is not None:
        replace_one(gpus, *change)
    elif stock is None or gpus.total() < stock:
        replace_one(gpus, None, (seat,))
    else:
        return False
    return True


def _best_change(
    problem: Problem,
    stage: TypeStage,
    needs: _Needs,
    gpus: Iterable[Seats],
    seat: ArrangedReplica,
) -> tuple[Seats, Seats] | None:
    """The GPU that needs the least extra SM percent for one replica more, before and after; None without room."""
    best: tuple[float, Seats, Seats] | None = None
    for seats in gpus:
        before = _percent(seats) + seat.row.sm_percent
        widened = _joined(problem, stage, needs, (*seats, seat))
        if widened is not None:
            extra = _percent(widened) - before
            # The first GPU of equals stays; the tolerance keeps rounding from deciding.
            if best is None or extra < best[0] - SM_PERCENT_TOLERANCE:
                best = extra, seats, widened
    return None if best is None else best[1:]


def _joined(
    problem: Problem,
    stage: TypeStage,
    needs: _Needs,
    seats: Seats,
) -> Seats | None:
    """The seats as wide as they must be together; None where one GPU cannot carry them."""
    # Rules that need no search first: most GPUs are too full for most replicas.
    if _percent(seats) > 100.0 + SM_PERCENT_TOLERANCE or any(
        other.service == seats[-1].service for other in seats[:-1]
    ):
        return None
    widened = _widen(needs, seats)
    if widened is None:
        return None
    carrier = Carrier(gpu_type=stage.gpu_type.name, seats=widened)
    return widened if obeys(problem, carrier) else None


def _widen(needs: _Needs, seats: Seats) -> Seats | None:
    """The seats with as much more SM percent as they need next to each other; None where a GPU has not so much."""
    widened = list(seats)
    is_settled = False
    while not is_settled:
        is_settled = True
        # A wider share presses more on the others, so that all are asked again until none has to grow.
        for at, seat in enumerate(widened):
            if needs.are_met(seat, neighbours_of([other.row for other in widened], at)):
                continue
            wider = _next_row(needs.profiles[seat.service], seat.row)
            if wider is None:
                return None
            widened[at] = ArrangedReplica(service=seat.service, row=wider)
            is_settled = False
        if _percent(widened) > 100.0 + SM_PERCENT_TOLERANCE:
            return None
    return tuple(widened)


def _next_row(profile: SoloProfile, row: OperatingPoint) -> OperatingPoint | None:
    """The row of the same batch with the next larger SM percent."""
    # The same batch, as iGniter sets it once, for the service alone, and gives neighbours more SMs instead.
    wider = (
        one
        for percent, rows in profile.rows.items()
        if percent > row.sm_percent
        for one in rows
    )
    return next((one for one in wider if one.batch == row.batch), None)


def _percent(seats: Sequence[ArrangedReplica]) -> float:
    return sum(seat.row.sm_percent for seat in seats)
