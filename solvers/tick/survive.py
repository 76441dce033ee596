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
`solvers.check_survival`, which shares no code with either.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.laws.colocation import alone_rps
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.survival import LossKind, Survival, SurvivalGoal

MAX_REPLICAS = 4
"""Replicas over which a loss is shared: 4 of λ/3 survive any one whole, and cost a third more than λ."""
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


def with_limits(problem: Problem, domains: Mapping[LossKind, int]) -> Problem:
    """The problem whose services are planned so that its goals can be reached.

    domains: how many GPUs, nodes and zones there are to choose from. Where there is only one, nothing would help, and
    nothing is asked for. A default goal asks for nothing where one replica could carry everything: it would take a
    second one.
    """
    by_name = {goal.service: goal for goal in problem.survival}
    services = []
    for service in problem.services:
        goal = by_name.get(service.name)
        limited = service
        if goal is not None and domains[goal.loss] > 1:
            limited = _with_goal(problem, service, goal, domains[goal.loss])
            by_name[service.name] = replace(
                goal,
                rate_rps=service.arrival_rate_rps,
                min_replicas=service.min_replicas,
            )
        services.append(limited)
    return replace(problem, services=tuple(services), survival=tuple(by_name.values()))


def without_goal(problem: Problem, goal: SurvivalGoal) -> Problem:
    """The problem as it would be if that service needed to survive nothing."""
    services = (
        replace(
            service,
            arrival_rate_rps=goal.rate_rps,
            min_replicas=goal.min_replicas,
            max_replica_rps=None,
        )
        if service.name == goal.service and service.max_replica_rps is not None
        else service
        for service in problem.services
    )
    return replace(problem, services=tuple(services))


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
    problem: Problem, service: ServiceDemand, goal: SurvivalGoal, domains: int
) -> ServiceDemand:
    smallest_rps, largest_rps = _replica_rps(problem, service)
    if not goal.is_asked and largest_rps >= service.arrival_rate_rps:
        return service
    limits = survival_limits(
        service.arrival_rate_rps, goal, domains, smallest_rps=smallest_rps
    )
    allowed = math.inf if service.max_replicas is None else service.max_replicas
    # A team's own limit of replicas comes first; what that leaves undone, the plan's losses say.
    if allowed < limits.min_replicas:
        return service
    # A default plans for nothing more: what rounding takes from the share, only who asks for it pays for.
    rate_rps = limits.rate_rps if goal.is_asked else service.arrival_rate_rps
    return replace(
        service,
        arrival_rate_rps=rate_rps,
        min_replicas=max(service.min_replicas, limits.min_replicas),
        max_replica_rps=limits.max_replica_rps,
    )


def _replica_rps(problem: Problem, service: ServiceDemand) -> tuple[float, float]:
    """What a replica on the smallest share of a GPU, and one on the largest, can carry at most, alone on it."""
    found: dict[float, float] = {}
    for gpu_type in problem.gpu_types:
        points = problem.points_of(service.network, gpu_type.name)
        if points is None or not points.rows or not service.allows(gpu_type.name):
            continue
        for row in _rows_at_ends(points.rows):
            rps = alone_rps(problem, service, gpu_type, row)
            found[row.sm_percent] = max(rps, found.get(row.sm_percent, 0.0))
    useful = {share: rps for share, rps in found.items() if rps > 0.0}
    if not useful:
        return 0.0, 0.0
    return useful[min(useful)], max(useful.values())


def _rows_at_ends(rows: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Those of the smallest and of the largest share of a GPU: capacity grows with the SMs between them."""
    shares = {row.sm_percent for row in rows}
    return [row for row in rows if row.sm_percent in (min(shares), max(shares))]
