"""Survive: how many replicas a service needs, and how small they must be, so that enough of it is left after a loss.

Sets and parameters
    d ∈ D        what may be lost at once: GPUs, nodes or zones, as the service says
    λ            rps that are planned for; f ≤ λ: the part of them that is forecast, without reserve for bursts
    σ            share of f that must still be served after the loss of any one d

Variables
    N            replicas, at least;    c: rps that one replica may carry at most

Constraints
    planned − c ≥ σ f      whichever replica is lost, the others are planned for enough
    N c ≥ planned ≥ λ      N replicas of that size serve all of it

With σ ≤ 1/2 two replicas of λ/2 do, and nothing is planned beyond λ but what rounding c up takes. A larger share needs
more replicas, 1 / (1 − σ), or more than λ: at most MAX_REPLICAS share the loss, and what they lack is planned for
besides. Where the N replicas stand is up to `solvers.tick.spread`; what each loss leaves of a plan is judged by
`solvers.check_survival`, which shares no code with either. Language models have limits of their own
(`solvers.tick.survive_models`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from solvers.laws.colocation import alone_rps
from solvers.types.llm import LlmDemand
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType
from solvers.types.survival import LossKind, Survival, SurvivalGoal

MAX_REPLICAS = 4
"""Replicas over which a loss is shared: 4 of λ/3 survive any one whole, and cost a third more than λ."""
LossDomains: TypeAlias = Mapping[LossKind, Mapping[str, Mapping[str, int]]]
"""By kind of loss and GPU type, what may be lost at once, the ids of GPUs or nodes, or zones, each with the most GPUs
of the type that one node has there."""
_Limited = TypeVar("_Limited", ServiceDemand, LlmDemand)
_MIN_RPS = 1e-6
"""No limit is below it, where a service is hardly asked anything."""
_GRID = 1.1
"""Limits are powers of it, rounded up: one that followed every rate would end the policy's warm state each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalLimits:
    """What a plan must keep to for one service."""

    rate_rps: float
    """To be planned for, at least the rate that was asked for."""
    min_replicas: int
    max_replica_rps: float


def make_goal(
    service: str,
    forecast_rps: float,
    *,
    survival: Survival | None,
    default: Survival,
) -> SurvivalGoal | None:
    """What must be left of a service; None where nothing must."""
    wanted = survival or default
    if wanted.loss == "none" or forecast_rps <= 0.0:
        return None
    return SurvivalGoal(
        service=service,
        loss=wanted.loss,
        share=wanted.share,
        needed_rps=wanted.share * forecast_rps,
        is_asked=survival is not None,
    )


def with_limits(problem: Problem, domains: LossDomains) -> Problem:
    """The problem whose services are planned so that its goals can be reached.

    domains: of all GPUs that may be used. Where those on which a service can run are lost all at once, nothing would
    help, and nothing is asked for. A default goal asks for nothing where one replica could carry everything: it would
    take a second one.
    """
    by_name = {goal.service: goal for goal in problem.survival}
    services = []
    for service in problem.services:
        goal = by_name.get(service.name)
        limited = (
            service if goal is None else _with_goal(problem, service, goal, domains)
        )
        if goal is not None and limited is not service:
            by_name[service.name] = replace(
                goal,
                rate_rps=service.arrival_rate_rps,
                min_replicas=service.min_replicas,
            )
        services.append(limited)
    return replace(problem, services=tuple(services), survival=tuple(by_name.values()))


def without_goal(problem: Problem, goal: SurvivalGoal) -> Problem:
    """The problem as it would be if that service needed to survive nothing."""
    return replace(
        problem,
        services=tuple(_free(service, goal) for service in problem.services),
        llm_services=tuple(_free(model, goal) for model in problem.llm_services),
    )


def _free(service: _Limited, goal: SurvivalGoal) -> _Limited:
    """The service without the limits of that goal."""
    if service.name != goal.service or service.max_replica_rps is None:
        return service
    return replace(
        service,
        arrival_rate_rps=goal.rate_rps,
        min_replicas=goal.min_replicas,
        max_replica_rps=None,
    )


def survival_limits(
    rate_rps: float, goal: SurvivalGoal, domains: int, *, smallest_rps: float = 0.0
) -> SurvivalLimits:
    """The replicas that share the loss, and the rate that they must be planned for.

    domains: at least 2. smallest_rps: what the smallest replica carries; more of them than carry what is needed would
    only cost.
    """
    # Rounded, since 1 / (1 − 0.9) is a little more than 10.
    without_more = (
        math.ceil(round(1.0 / (1.0 - goal.share), 6)) if goal.share < 1.0 else domains
    )
    useful = 1 + math.floor(goal.needed_rps / smallest_rps) if smallest_rps else domains
    replicas = max(2, min(domains, without_more, useful, MAX_REPLICAS))
    # N replicas of which N − 1 carry what is needed; a larger one may carry what is planned for beyond that.
    limit_rps = max(
        goal.needed_rps / (replicas - 1), rate_rps - goal.needed_rps, _MIN_RPS
    )
    limit_rps = _GRID ** math.ceil(round(math.log(limit_rps, _GRID), 6))
    return SurvivalLimits(
        rate_rps=max(rate_rps, goal.needed_rps + limit_rps),
        min_replicas=replicas,
        max_replica_rps=limit_rps,
    )


def _with_goal(
    problem: Problem,
    service: ServiceDemand,
    goal: SurvivalGoal,
    domains: LossDomains,
) -> ServiceDemand:
    """The service as it must be planned for the goal; itself where nothing can be done, or need be."""
    reach = _reach(problem, service)
    if not goal.is_asked and reach.largest_rps >= service.arrival_rate_rps:
        return service
    places = _places(service, reach, domains[goal.loss])
    if places < 2:
        return service
    limits = survival_limits(
        service.arrival_rate_rps, goal, places, smallest_rps=reach.smallest_rps
    )
    # A default plans for nothing more: what rounding takes from the share, only who asks for it pays for.
    rate_rps = limits.rate_rps if goal.is_asked else service.arrival_rate_rps
    if not _can_carry(service, reach, rate_rps):
        return service
    return replace(
        service,
        arrival_rate_rps=rate_rps,
        min_replicas=max(service.min_replicas, limits.min_replicas),
        max_replica_rps=limits.max_replica_rps,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """Where a service can keep its SLO, and what a replica carries there at most, alone on a GPU."""

    gpu_types: tuple[str, ...]
    smallest_rps: float
    """On the smallest share of a GPU."""
    largest_rps: float


def _places(
    service: ServiceDemand, reach: _Reach, by_type: Mapping[str, Mapping[str, int]]
) -> int:
    """The number of domains that its replicas can stand in."""
    usable: set[str] = set()
    for name in reach.gpu_types:
        usable.update(by_type.get(name, {}))
    # A team's own limit of replicas comes first: fewer of them share the loss, and each is larger.
    if service.max_replicas is None:
        return len(usable)
    return min(len(usable), service.max_replicas)


def _can_carry(service: ServiceDemand, reach: _Reach, rate_rps: float) -> bool:
    """Whether as many replicas as its team allows can; what they cannot do, the plan's losses say."""
    if service.max_replicas is None:
        return True
    return service.max_replicas * reach.largest_rps >= rate_rps


def _reach(problem: Problem, service: ServiceDemand) -> _Reach:
    """What the GPU types give that it may use and has operating points for."""
    found: dict[float, float] = {}
    gpu_types = []
    for gpu_type in problem.gpu_types:
        rates = _useful_rps(problem, service, gpu_type)
        if rates:
            gpu_types.append(gpu_type.name)
        for share, rps in rates.items():
            found[share] = max(rps, found.get(share, 0.0))
    return _Reach(
        gpu_types=tuple(gpu_types),
        smallest_rps=found[min(found)] if found else 0.0,
        largest_rps=max(found.values(), default=0.0),
    )


def _useful_rps(
    problem: Problem, service: ServiceDemand, gpu_type: GpuType
) -> dict[float, float]:
    """What a replica carries there at most, by its share of the GPU; none where it carries nothing."""
    points = problem.points_of(service.network, gpu_type.name)
    if points is None or not points.rows or not service.allows(gpu_type.name):
        return {}
    found: dict[float, float] = {}
    for row in _rows_at_ends(points.rows):
        rps = alone_rps(problem, service, gpu_type, row)
        if rps > 0.0:
            found[row.sm_percent] = max(rps, found.get(row.sm_percent, 0.0))
    return found


def _rows_at_ends(rows: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Those of the smallest and of the largest share of a GPU: capacity grows with the SMs between them."""
    shares = [row.sm_percent for row in rows]
    ends = min(shares), max(shares)
    return [row for row in rows if row.sm_percent in ends]
