"""What services must survive: their goals in the problem, and what is said where a plan falls short of them. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from app.loop.planning.networks import networks_of
from app.store.store import PolicySettings
from solvers.check_survival import survival_gaps
from solvers.tick.survive import LossDomains, make_goal, with_limits
from solvers.tick.survive_models import with_model_limits
from solvers.types.plan import BoundGpu, BoundPlan
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import ClusterState, Demand, Gpu, NodeId
from solvers.types.survival import LossKind, Survival, SurvivalGap, SurvivalGoal

_NOTHING = Survival(loss="none")


Limited: TypeAlias = Literal["all", "all but models", "nobody"]


def with_survival(
    problem: Problem,
    state: ClusterState,
    demands: Sequence[Demand],
    settings: PolicySettings,
    *,
    limited: Limited,
) -> Problem:
    """The problem with what losses must leave of its services.

    limited: whose replicas are made small and many enough for it; of others a plan only spreads those that it has.
    """
    goals = _goals(problem, state, demands, settings)
    found = replace(problem, survival=tuple(goals))
    if limited == "nobody":
        return found
    domains = _domains(state)
    shared = with_limits(found, domains)
    if limited == "all but models":
        return shared
    return with_model_limits(shared, domains)


def _goals(
    problem: Problem,
    state: ClusterState,
    demands: Sequence[Demand],
    settings: PolicySettings,
) -> Iterator[SurvivalGoal]:
    """Those of the problem's services, by name."""
    # A loss that comes with a burst is not reckoned with: the reserve is room for either.
    forecast_rps = {
        demand.service: demand.arrival_rate_rps - demand.reserve_rps
        for demand in demands
    }
    asked = {service.name: service.survival for service in state.services}
    default = Survival(
        loss=settings.survive,
        share=settings.survive_share,
    )
    # A default costs no replica, and language models are spread without it (`solvers.tick.bind_models`).
    models = {model.name for model in problem.llm_services}
    for name in sorted(service.name for service in problem.all_services):
        goal = make_goal(
            name,
            forecast_rps.get(name, 0.0),
            survival=asked.get(name),
            default=_NOTHING if name in models else default,
        )
        if goal is not None:
            yield goal


def _domains(state: ClusterState) -> LossDomains:
    """The GPUs that may be used, with their nodes and zones."""
    found: dict[LossKind, defaultdict[str, Counter[str]]] = {
        kind: defaultdict(Counter) for kind in ("gpu", "node", "zone")
    }
    zones = {node.id: node.zone for node in state.nodes}
    usable = list(_usable(state))
    on_node = Counter((gpu.gpu_type, gpu.node) for gpu in usable)
    for gpu in usable:
        size = on_node[gpu.gpu_type, gpu.node]
        for kind, by_type in found.items():
            sizes = by_type[gpu.gpu_type]
            place = _domain(gpu, kind, zones)
            sizes[place] = max(size, sizes[place])
    return found


def _usable(state: ClusterState) -> Iterator[Gpu]:
    cordoned = {node.id for node in state.nodes if node.cordoned}
    for gpu in state.gpus:
        if gpu.healthy and not gpu.cordoned and gpu.node not in cordoned:
            yield gpu


def _domain(gpu: Gpu | BoundGpu, loss: LossKind, zones: Mapping[NodeId, str]) -> str:
    """What is lost together with the GPU."""
    if loss == "gpu":
        return gpu.id
    return gpu.node if loss == "node" else zones.get(gpu.node, "")


def survival_messages(
    problem: Problem, bound: BoundPlan, state: ClusterState
) -> tuple[str, ...]:
    """A line for each service that a loss would leave less of than its team asked for."""
    asked = {goal.service for goal in problem.survival if goal.is_asked}
    return tuple(
        describe_gap(gap, bound, state)
        for gap in survival_gaps(bound, state.nodes, problem.survival)
        if gap.service in asked
    )


def describe_gap(gap: SurvivalGap, bound: BoundPlan, state: ClusterState) -> str:
    """What is lost, and what would help."""
    where = f"zone {gap.lost or '(nodes without a zone)'}" if gap.loss == "zone" else ""
    lost = where or f"{gap.loss} {gap.lost}"
    return (
        f"{gap.service} would not survive the loss of {lost}: {gap.left_rps:.1f} requests per second are planned "
        f"elsewhere, {gap.needed_rps:.1f} ({100.0 * gap.share:g} %) are needed; {_advice(gap, bound, state)}"
    )


def _advice(gap: SurvivalGap, bound: BoundPlan, state: ClusterState) -> str:
    if not would_more_gpus_help(gap, bound, state):
        return "it already has max_replicas replicas, each in a different place"
    place = "" if gap.loss == "gpu" else f" on another {gap.loss}"
    return f"more free GPUs of a type that it can use{place} would help"


def would_more_gpus_help(
    gap: SurvivalGap, bound: BoundPlan, state: ClusterState
) -> bool:
    """Whether the service may stand in more places than it does."""
    (service,) = (each for each in state.services if each.name == gap.service)
    zones = {node.id: node.zone for node in state.nodes}
    places = {
        _domain(gpu, gap.loss, zones)
        for gpu in bound.gpus
        if any(replica.service == gap.service for replica in gpu.replicas)
    }
    limit = service.scaling.max_replicas
    return limit is None or len(places) < limit


def cheapest_help(
    gap: SurvivalGap,
    bound: BoundPlan,
    state: ClusterState,
    points: Sequence[OperatingPoints],
) -> str:
    """What a GPU more costs that the service can run on, after `describe_gap`; empty where none would help."""
    (service,) = (each for each in state.services if each.name == gap.service)
    if not would_more_gpus_help(gap, bound, state):
        return ""
    if service.llm is not None:
        return _another_like_it(gap, bound, state)
    networks = networks_of([service])
    known = {each.gpu_type for each in points if each.network in networks and each.rows}
    free = _idle_and_paid(gap, bound, state)
    allowed = service.allowed_gpu_types
    prices = [
        (0.0 if each.name in free else each.price_usd_per_hour, each.name)
        for each in state.gpu_types
        if each.name in known
        and (allowed is None or each.name in allowed)
        and each.name not in service.excluded_gpu_types
    ]
    if not prices:
        return ""
    usd, name = min(prices)
    why = ", paid for and idle" if name in free else ""
    return f", from {usd:.2f} USD per hour ({name}{why})"


def _another_like_it(gap: SurvivalGap, bound: BoundPlan, state: ClusterState) -> str:
    """The same of a language model: the price of the cheapest of its replicas, on as many GPUs."""
    price_usd = {each.name: each.price_usd_per_hour for each in state.gpu_types}
    prices = [
        (tp * price_usd[name], tp, name)
        for name, tp in _spans(gap.service, bound)
        if name in price_usd
    ]
    if not prices:
        return ""
    usd, tp, name = min(prices)
    gpus = name if tp == 1 else f"{tp} × {name}"
    return f", from {usd:.2f} USD per hour ({gpus})"


def _spans(service: str, bound: BoundPlan) -> Iterator[tuple[str, int]]:
    """The GPU type of each replica of a language model, and how many GPUs it spans."""
    for gpu in bound.gpus:
        for replica in gpu.replicas:
            engine = replica.llm
            if replica.service == service and engine is not None:
                yield gpu.gpu_type, len(engine.gpus)


def _idle_and_paid(
    gap: SurvivalGap, bound: BoundPlan, state: ClusterState
) -> frozenset[str]:
    """GPU types of which GPUs stand idle, beyond the loss, that are paid for anyway."""
    busy = {gpu.id for gpu in bound.gpus if gpu.replicas or gpu.tasks or gpu.held_by}
    used = Counter(gpu.gpu_type for gpu in bound.gpus if gpu.id in busy)
    zones = {node.id: node.zone for node in state.nodes}
    idle = {
        gpu.gpu_type
        for gpu in _usable(state)
        if gpu.id not in busy and _domain(gpu, gap.loss, zones) != gap.lost
    }
    return frozenset(
        each.name
        for each in state.gpu_types
        if each.name in idle and used[each.name] < each.paid_count
    )
