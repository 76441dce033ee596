"""Routing: the rate of every replica of a finished arrangement, and what stays unserved."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from solvers.greedy.configure import MAX_REPLICAS
from solvers.laws.colocation import beside
from solvers.types.plan import (
    GpuPlan,
    Plan,
    ReplicaPlan,
    Unserved,
    UnservedReason,
    replica_order,
    served_rates_rps,
)
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand

SAFE = 1.0 - 1e-9
"""Rates stay this far below a replica's capacity, so that the checker's own rounding never finds them above."""
ROUNDING = 1e-7
"""A shortage below this share of the rate is rounding."""


class ArrangedReplica(NamedTuple):
    """One replica's place in an arrangement: its service and its operating row."""

    service: str
    row: OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """One GPU of an arrangement."""

    gpu_type: str
    seats: tuple[ArrangedReplica, ...]


def service_counts(carriers: Iterable[Carrier]) -> Counter[str]:
    """How many replicas there are of each service."""
    return Counter(seat.service for carrier in carriers for seat in carrier.seats)


Capacities = Callable[[Problem, Carrier], Sequence[float]]
"""What each replica of a GPU can serve, in rps, in the order of its seats."""


def true_capacities(problem: Problem, carrier: Carrier) -> list[float]:
    """What the capacity law gives each replica next to its neighbours."""
    gpu_type = problem.gpu_type(carrier.gpu_type)
    return [
        beside(problem, gpu_type, carrier.seats, position).capacity_rps
        for position in range(len(carrier.seats))
    ]


def route(
    problem: Problem,
    policy: str,
    carriers: Sequence[Carrier],
    reasons: Mapping[str, UnservedReason],
    *,
    capacities: Capacities = true_capacities,
) -> Plan:
    """The plan of an arrangement: each service's rate goes to its replicas in proportion to their capacities.

    What exceeds the capacities is unserved, for the reason given per service (default: stock). The clock of a GPU is
    that of its rows, which must agree. The order of carriers and seats changes nothing: sums are exact. Capacities
    other than the true ones are for baselines that believe in another rule; their plans may break promises.
    """
    carried = [
        (carrier, capacities(problem, carrier)) for carrier in carriers if carrier.seats
    ]
    used = _used_parts(problem, carried)
    gpus = [_gpu_plan(carrier, values, used) for carrier, values in carried]
    return Plan(
        policy=policy,
        gpus=merge_equal(gpus),
        unserved=_unserved(problem, gpus, service_counts(carriers), reasons),
    )


def reasons_short(
    problem: Problem, carriers: Sequence[Carrier], able: Container[str]
) -> dict[str, UnservedReason]:
    """Per service, what would stop it from being served in full; `able`: those that some GPU type can serve."""
    counts = service_counts(carriers)
    reasons: dict[str, UnservedReason] = {}
    for service in problem.services:
        # In the order of what an operator can do about it: an SLO that no GPU meets is not helped by more GPUs.
        if service.name not in able:
            reasons[service.name] = "slo"
        elif (
            service.max_replicas is not None
            and counts[service.name] >= service.max_replicas
        ):
            reasons[service.name] = "replicas"
        else:
            reasons[service.name] = (
                "budget" if counts.total() >= MAX_REPLICAS else "stock"
            )
    return reasons


def merge_equal(gpus: Sequence[GpuPlan]) -> tuple[GpuPlan, ...]:
    """Equal GPUs as one entry with a count, in a canonical order."""
    counts: Counter[GpuPlan] = Counter()
    for gpu in gpus:
        # Entries may stand for several GPUs already.
        counts[replace(gpu, count=1)] += gpu.count
    ordered = sorted(
        counts,
        key=lambda gpu: (
            gpu.gpu_type,
            gpu.clock_mhz,
            [replica_order(replica) for replica in gpu.replicas],
        ),
    )
    return tuple(replace(gpu, count=counts[gpu]) for gpu in ordered)


def total_capacity_rps(
    problem: Problem, carriers: Sequence[Carrier], service: str
) -> float:
    """What all replicas of a service carry together, next to the neighbours that they have."""
    return sum(
        beside(
            problem, problem.gpu_type(carrier.gpu_type), carrier.seats, position
        ).capacity_rps
        for carrier in carriers
        for position, seat in enumerate(carrier.seats)
        if seat.service == service
    )


def _used_parts(
    problem: Problem, carried: Iterable[tuple[Carrier, Sequence[float]]]
) -> dict[str, float]:
    """By service, the part of its replicas' capacities that its rate takes."""
    by_service: dict[str, list[float]] = defaultdict(list)
    for carrier, values in carried:
        for seat, capacity in zip(carrier.seats, values, strict=True):
            by_service[seat.service].append(capacity)
    return {
        service.name: _used(service, by_service[service.name])
        for service in problem.services
    }


def _used(service: ServiceDemand, capacities_rps: Sequence[float]) -> float:
    """The part of every replica's capacity that the service's rate takes."""
    # Exact sums do not depend on the order of the carriers, so that equal arrangements give equal plans.
    total_rps = math.fsum(capacities_rps)
    return min(SAFE, service.arrival_rate_rps / total_rps) if total_rps > 0.0 else 0.0


def _gpu_plan(
    carrier: Carrier, carried: Sequence[float], used: Mapping[str, float]
) -> GpuPlan:
    replicas = tuple(
        ReplicaPlan(
            service=seat.service,
            sm_percent=seat.row.sm_percent,
            batch=seat.row.batch,
            arrival_rate_rps=capacity * used[seat.service],
        )
        for seat, capacity in zip(carrier.seats, carried, strict=True)
    )
    return GpuPlan(
        gpu_type=carrier.gpu_type,
        clock_mhz=carrier.seats[0].row.clock_mhz,
        replicas=tuple(sorted(replicas, key=replica_order)),
    )


def _unserved(
    problem: Problem,
    gpus: Sequence[GpuPlan],
    counts: Mapping[str, int],
    reasons: Mapping[str, UnservedReason],
) -> tuple[Unserved, ...]:
    served = served_rates_rps(gpus)
    entries = (
        Unserved(
            service=service.name,
            rate_rps=_missing_rps(service, served[service.name]),
            reason=reasons.get(service.name, "stock"),
            replicas_missing=max(0, service.min_replicas - counts.get(service.name, 0)),
        )
        for service in sorted(problem.services, key=lambda service: service.name)
    )
    return tuple(one for one in entries if one.rate_rps or one.replicas_missing)


def _missing_rps(service: ServiceDemand, served_rps: Sequence[float]) -> float:
    missing_rps = service.arrival_rate_rps - math.fsum(served_rps)
    # SAFE may leave a billionth of a rate over, which is no shortage.
    return missing_rps if missing_rps > ROUNDING * service.arrival_rate_rps else 0.0
