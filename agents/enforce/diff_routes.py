"""The routing table for now: ready wanted replicas, and old ones for as long as a successor is awaited."""

from collections.abc import Collection

from agents.base.device import NodeState, ServiceRoute
from agents.base.protocol import NodeCommand
from agents.enforce.gpu_diff import GpuDiff

RATE_TOLERANCE = 1e-6
"""Rounding that a sum of planned rates may carry, relative."""
_UNKNOWN_SLO_MS = 3_600_000.0
"""For a service that leaves and whose SLO a restart has forgotten: nothing counts as late."""


def still_serving(
    wanted: NodeCommand, gpus: tuple[GpuDiff, ...], migrating: Collection[str]
) -> set[str]:
    """Ready old replicas whose service waits for a wanted one here, or perhaps for one on another node."""
    # While a service waits for a wanted replica here, its old ones are all it has.
    unready = _unready(gpus)
    # Nodes do not know of each other, so a rate that lies elsewhere is taken for a replica that is not ready there yet.
    here_alone = planned_here_alone(wanted)
    return {
        old.id
        for gpu in gpus
        for old in gpu.retired
        if old.state == "ready"
        and (
            old.service in unready
            or (old.id in migrating and old.service not in here_alone)
        )
    }


def _unready(gpus: Collection[GpuDiff]) -> set[str]:
    """Services of which a wanted replica is missing or not ready."""
    missing = {want.service for gpu in gpus for want in gpu.missing}
    return missing | {
        want.service
        for gpu in gpus
        for want, running in gpu.kept
        if running.state != "ready"
    }


def planned_here_alone(wanted: NodeCommand) -> set[str]:
    """Services of which no part is planned on other nodes. All that have no replica here may be planned elsewhere, or
    be gone: the control plane, which is asked, knows."""
    here: dict[str, float] = {}
    for gpu in wanted.gpus:
        for want in gpu.replicas:
            here[want.service] = here.get(want.service, 0.0) + want.arrival_rate_rps
    return {
        route.service
        for route in wanted.routes
        if route.service in here
        and route.arrival_rate_rps <= here[route.service] * (1.0 + RATE_TOLERANCE)
    }


def last_serving(
    gpus: tuple[GpuDiff, ...],
    serving: Collection[str],
    *,
    leaving: Collection[str],
) -> dict[str, str]:
    """Ready old replicas of leaving services that nothing else on the node serves, each with its service."""
    served = {
        want.service
        for gpu in gpus
        for want, running in gpu.kept
        if running.state == "ready"
    }
    served |= {old.service for gpu in gpus for old in gpu.retired if old.id in serving}
    return {
        old.id: old.service
        for gpu in gpus
        for old in gpu.retired
        if old.state == "ready" and old.service in leaving and old.service not in served
    }


def routes_for_now(
    wanted: NodeCommand,
    actual: NodeState,
    gpus: tuple[GpuDiff, ...],
    serving: Collection[str],
    *,
    leaving: Collection[str] = (),
) -> tuple[ServiceRoute, ...]:
    """The table for now: ready wanted replicas by the plan's rates, and the old ones in `serving` by their former.

    `leaving`: services for which the node tells balancers that it is not ready.
    """
    # A route that stays the same stays the same object, so that routers see at once that nothing changed.
    before = {route.service: route for route in actual.routes}
    former = dict(share for route in actual.routes for share in route.shares)
    shares: dict[str, dict[str, float]] = {route.service: {} for route in wanted.routes}
    # The command in force has what a governor has turned, and the same actions set it.
    batches: dict[str, int] = {}
    for gpu in gpus:
        for want, running in gpu.kept:
            if running.state == "ready":
                shares[want.service][want.id] = want.arrival_rate_rps
                batches[want.id] = want.batch
        for old in gpu.retired:
            if old.id in serving:
                # The command no longer names a service that has moved to other nodes.
                shares.setdefault(old.service, {})[old.id] = former.get(old.id, 0.0)
                batches[old.id] = old.batch
    slos = _slos(wanted, actual)
    unready = _unready(gpus)
    routes = []
    for service in sorted(shares):
        mine = sorted(shares[service].items())
        slo_ms, slo_itl_ms = slos.get(service, (_UNKNOWN_SLO_MS, None))
        now = ServiceRoute(
            service=service,
            slo_ms=slo_ms,
            slo_itl_ms=slo_itl_ms,
            shares=tuple(mine),
            batches=tuple((each, batches[each]) for each, _ in mine),
            is_starting=service in unready and not mine,
            is_leaving=service in leaving,
        )
        routes.append(_route(now, before.get(service)))
    return tuple(routes)


def _slos(
    wanted: NodeCommand, actual: NodeState
) -> dict[str, tuple[float, float | None]]:
    """Both SLOs by service; the command no longer names those that leave."""
    before = {each.service: (each.slo_ms, each.slo_itl_ms) for each in actual.routes}
    return before | {
        each.service: (each.slo_ms, each.slo_itl_ms) for each in wanted.routes
    }


def _route(route: ServiceRoute, before: ServiceRoute | None) -> ServiceRoute:
    """A service's route: the one before, where it is the same, as most are on a node with many services."""
    return route if before is None or before != route else before
