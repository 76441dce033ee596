"""What services must survive: their goals in the problem, and what is said where a plan falls short of them. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from app.store.store import PolicySettings
from solvers.check_survival import survival_gaps
from solvers.tick.survive import LossDomains, make_goal, with_limits
from solvers.types.plan import BoundPlan
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand
from solvers.types.survival import LossKind, Survival, SurvivalGap


def with_survival(
    problem: Problem,
    state: ClusterState,
    demands: Sequence[Demand],
    settings: PolicySettings,
    *,
    has_limits: bool,
) -> Problem:
    """The problem with what losses must leave of its services.

    has_limits: whether replicas are made small and many enough for it; else a plan only spreads those that it has.
    """
    # A loss that comes with a burst is not reckoned with: the reserve is room for either.
    forecast_rps = {
        demand.service: demand.arrival_rate_rps - demand.reserve_rps
        for demand in demands
    }
    default = Survival(loss=settings.survive, share=settings.survive_share)
    asked = {service.name: service.survival for service in state.services}
    goals = (
        make_goal(
            service.name,
            forecast_rps.get(service.name, 0.0),
            survival=asked.get(service.name),
            default=default,
        )
        for service in problem.services
    )
    found = replace(problem, survival=tuple(goal for goal in goals if goal is not None))
    return with_limits(found, _domains(state)) if has_limits else found


def _domains(state: ClusterState) -> LossDomains:
    """The GPUs that may be used, with their nodes and zones."""
    cordoned = {node.id for node in state.nodes if node.cordoned}
    zones = {node.id: node.zone for node in state.nodes}
    found: dict[LossKind, defaultdict[str, set[str]]] = {
        kind: defaultdict(set) for kind in ("gpu", "node", "zone")
    }
    for gpu in state.gpus:
        if gpu.healthy and not gpu.cordoned and gpu.node not in cordoned:
            found["gpu"][gpu.gpu_type].add(gpu.id)
            found["node"][gpu.gpu_type].add(gpu.node)
            found["zone"][gpu.gpu_type].add(zones[gpu.node])
    return found


def survival_messages(
    problem: Problem, bound: BoundPlan, state: ClusterState
) -> tuple[str, ...]:
    """A line for each service that a loss would leave less of than its team asked for."""
    asked = {goal.service for goal in problem.survival if goal.is_asked}
    return tuple(
        describe_gap(gap)
        for gap in survival_gaps(bound, state.nodes, problem.survival)
        if gap.service in asked
    )


def describe_gap(gap: SurvivalGap) -> str:
    """What is lost, and what would help."""
    where = f"zone {gap.lost or '(nodes without a zone)'}" if gap.loss == "zone" else ""
    lost = where or f"{gap.loss} {gap.lost}"
    return (
        f"{gap.service} would not survive the loss of {lost}: {gap.left_rps:.1f} requests per second are planned "
        f"elsewhere, {gap.needed_rps:.1f} ({100.0 * gap.share:g} %) are asked for; "
        f"more free GPUs on another {gap.loss} would help"
    )
