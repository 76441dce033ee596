"""How many replicas Morak wants of a service: what its rate needs at its knee, then what neighbours and clocks cost."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from solvers.baselines.half_slo import max_replicas, replicas_for
from solvers.baselines.type_by_type import TypeStage
from solvers.greedy.configure import MIN_CAPACITY_RPS
from solvers.greedy.routing import ROUNDING, Carrier, true_capacities
from solvers.laws.colocation import beside
from solvers.papers.morak.packing import MorakTenant
from solvers.types.problem import Problem, ServiceDemand


def first_count(problem: Problem, stage: TypeStage, tenant: MorakTenant) -> int:
    """Replicas that carry the rate at the knee without neighbours."""
    service = tenant.service
    alone_rps = beside(
        problem, stage.gpu_type, [(service.name, tenant.row)], 0
    ).capacity_rps
    needed = replicas_for(service.arrival_rate_rps, max(alone_rps, MIN_CAPACITY_RPS))
    return min(max(needed, service.min_replicas), _max_count(service, stage))


def _max_count(service: ServiceDemand, stage: TypeStage) -> int:
    """How many replicas the limits allow: no GPU carries two replicas of a service."""
    stock = stage.gpu_type.count
    return max_replicas(
        service, stage.room if stock is None else min(stage.room, stock)
    )


def more_replicas(
    problem: Problem,
    stage: TypeStage,
    tenants: Mapping[str, MorakTenant],
    carriers: Sequence[Carrier],
) -> dict[str, int]:
    """Replicas that each service needs if its next ones carry as much as those that it has."""
    counts, carried_rps = _carried(problem, carriers)
    wanted = {}
    for name, tenant in tenants.items():
        service = tenant.service
        count = counts[name]
        needed_rps = service.arrival_rate_rps
        has_rps = carried_rps[name]
        if 0.0 < has_rps < needed_rps * (1.0 - ROUNDING):
            count = math.ceil(count * min(needed_rps / has_rps, float(stage.room)))
        wanted[name] = min(max(counts[name], count), _max_count(service, stage))
    return wanted


def _carried(
    problem: Problem,
    carriers: Sequence[Carrier],
) -> tuple[Counter[str], defaultdict[str, float]]:
    """By service, how many replicas it has and what they carry together."""
    counts: Counter[str] = Counter()
    carried_rps: defaultdict[str, float] = defaultdict(float)
    # Most GPUs are copies of few: what their replicas carry is worked out once.
    for carrier, copies in Counter(carriers).items():
        capacities = true_capacities(problem, carrier)
        for seat, rps in zip(carrier.seats, capacities, strict=True):
            carried_rps[seat.service] += copies * rps
            counts[seat.service] += copies
    return counts, carried_rps
