"""Which of its networks serves a service: the cheapest above its accuracy floor, by the laws that `joint` plans with.

Sets
    s ∈ S, v ∈ V_s      services, and their variants of at least the floor's accuracy
    g, i ∈ I_gv         GPU types that s may use; rows of v's network on g that fit a GPU by themselves
Parameters
    λ_s, m_s, M_s       rate, fewest and most replicas
    a_i                 rps that a replica at row i carries within the SLO, with no neighbours
    φ_i                 the part of a GPU that it takes: the greatest of SM percent / 100, memory and watts above idle
    n_i                 replicas: max(λ_s / a_i, m_s, 1), which may be fractions above 1; at most M_s
    c_i                 USD per hour: n_i · (φ_i · (price_g + e · idle_g) + e · watts_i), e the price of a watt
Variables               y_sv ∈ {0, 1}: v serves s
Objective               min Σ_s Σ_v y_sv · min over g, i of c_i
Constraints             Σ_v y_sv = 1 for every s

It falls into one choice per service. What is not in it (whole GPUs, neighbours' pressure, stock) is the planner's, who
then gets one network per service: to choose inside the planner would let a service be served by two networks at once.

So that choices do not flap with the rate, the network that serves goes on unless another saves more than `min_saving`
of its cost, or it cannot serve within the SLO any more. Equal costs go to the more accurate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solvers.laws.colocation import capacity_rps, execution_ms
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType, Service, Variant

MIN_SAVING = 0.1
"""A saving below this share of the cost is not worth restarting all replicas of a service."""
_W_PER_KW = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCost:
    """What a variant would cost."""

    variant: Variant
    usd_per_hour: float | None
    """None: it cannot serve within the SLO, or with so few replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantChoice:
    """The network that is to serve a service, and what it was compared with."""

    service: str
    network: str
    costs: tuple[VariantCost, ...]
    """All variants above the floor, the cheapest first; those that cannot serve last."""


def choose_variant(
    problem: Problem,
    service: Service,
    *,
    running: str | None = None,
    min_saving: float = MIN_SAVING,
) -> VariantChoice:
    """The choice for one service. O(rows of its variants).

    problem: with the service's demand, its capacity law for all batches, and operating points of all variants.
    running: the network that serves now; None: nothing does. The service's own network where no variant can serve, or
    none reaches the floor. Raises KeyError for a service that the problem lacks.
    """
    ranked = variant_costs(problem, service)
    costs = {each.variant.network: each.usd_per_hour for each in ranked}
    min_usd = ranked[0].usd_per_hour if ranked else None
    if min_usd is None:
        # A change would restart everything and still serve nothing.
        network = running if running in costs else None
        network = network or service.network
    else:
        now_usd = costs.get(running or "")
        # A network that cannot serve any more has no cost, so that it never stays.
        stays = now_usd is not None and min_usd >= now_usd * (1.0 - min_saving)
        network = running if stays and running else ranked[0].variant.network
    return VariantChoice(service=service.name, network=network, costs=ranked)


def variant_costs(problem: Problem, service: Service) -> tuple[VariantCost, ...]:
    """All variants that reach the floor with their costs, the cheapest first; those that cannot serve last.

    The problem is as for `choose_variant`. Raises KeyError for a service that it lacks.
    """
    demand = problem.service(service.name)
    able = (
        each for each in service.variants if each.accuracy >= service.accuracy_floor
    )
    costs = (
        VariantCost(variant=each, usd_per_hour=_cost(problem, demand, each.network))
        for each in able
    )
    return tuple(sorted(costs, key=_order))


def choose_variants(
    problem: Problem,
    services: Sequence[Service],
    running: Mapping[str, str],
) -> tuple[VariantChoice, ...]:
    """The choices of services that have variants, by name; running: the network that serves each now."""
    named = sorted(
        (each for each in services if each.variants), key=lambda each: each.name
    )
    return tuple(
        choose_variant(problem, each, running=running.get(each.name)) for each in named
    )


def _order(cost: VariantCost) -> tuple[bool, float, float, str]:
    usd = cost.usd_per_hour
    return (
        usd is None,
        usd if usd is not None else 0.0,
        -cost.variant.accuracy,
        cost.variant.network,
    )


def _cost(problem: Problem, demand: ServiceDemand, network: str) -> float | None:
    """USD per hour of the cheapest way to serve it with that network alone; None where there is none."""
    found = []
    for gpu_type in problem.gpu_types:
        points = problem.points_of(network, gpu_type.name)
        if points is not None and demand.allows(gpu_type.name) and gpu_type.count != 0:
            found += [
                _row_cost(problem, demand, gpu_type, points, row) for row in points.rows
            ]
    return min((usd for usd in found if usd is not None), default=None)


def _row_cost(
    problem: Problem,
    demand: ServiceDemand,
    gpu_type: GpuType,
    points: OperatingPoints,
    row: OperatingPoint,
) -> float | None:
    part = _part(gpu_type, row)
    carried_rps = capacity_rps(
        problem.capacity_law,
        percentile=demand.percentile,
        batch=row.batch,
        slo_ms=demand.slo_ms,
        # Alone: which neighbours it gets is the planner's choice, which comes after this one.
        execution_ms=execution_ms(
            row, sensitivity=points.sensitivity, gpu_type=gpu_type
        ),
    )
    if part > 1.0 or carried_rps <= 0.0:
        return None
    # Not rounded up: neighbours may fill what a fraction leaves, but nothing runs on less than one replica.
    replicas = max(
        demand.arrival_rate_rps / carried_rps, float(demand.min_replicas), 1.0
    )
    if demand.max_replicas is not None and replicas > demand.max_replicas:
        return None
    watt_price = problem.energy_price_usd_per_kwh / _W_PER_KW
    gpu_usd = gpu_type.price_usd_per_hour + watt_price * gpu_type.idle_w
    return replicas * (part * gpu_usd + watt_price * row.power_w)


def _part(gpu_type: GpuType, row: OperatingPoint) -> float:
    """What one replica takes of a GPU; above 1 where it does not fit."""
    room_w = gpu_type.power_cap_w - gpu_type.idle_w
    # With the cap at the idle watts only rows that draw nothing fit; any part above 1 means that one does not.
    if room_w <= 0.0 < row.power_w:
        return 2.0
    return max(
        row.sm_percent / 100.0,
        row.memory_mib / gpu_type.memory_mib,
        row.power_w / room_w if room_w > 0.0 else 0.0,
    )
