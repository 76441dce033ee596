"""Deliver: a bound plan → one NodeCommand per node. A pure function; the Store writes and the sync endpoint sends."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter

import msgspec

from agents.base.protocol import (
    EngineCommand,
    GovernorCommand,
    GpuCommand,
    NodeCommand,
    ReplicaCommand,
    Route,
    TaskCommand,
)
from app.loop.planning.language_models import llm_terms_of
from app.store.plan_rules import modes_of
from app.store.store import PolicySettings
from solvers.governors.registry import GOVERNORS
from solvers.types.llm import LlmEngineSettings, LlmTerms
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, planned_rates_rps
from solvers.types.state import ClusterState, GpuId, GpuType, Mode, Node, Service

NET = 1.1
"""The board's own limit over the power cap where a governor holds the cap: it must see a breach to answer it, and a
breach between two of its steps must stay small."""
WAITING_NODES = 16
"""How many nodes know the services that run nowhere: of thousands not all are told whenever one comes to rest."""
_MIN_DRAIN_S, _MAX_DRAIN_S = 30.0, 1800.0
"""Streams of language models are cut no earlier, and no later, than this after their replica got its last request."""
_HEARD_S = 10.0
"""Nodes that were not heard for longer come after all others."""


def make_commands(bound: BoundPlan, state: ClusterState) -> tuple[NodeCommand, ...]:
    """A command for every node of the cluster, in the order of node ids; a node without replicas gets an empty one.

    A node knows the services that run on it; of those that run nowhere `WAITING_NODES` know, where requests wait.
    GPUs that left the fleet since the plan was bound are left out; the Store refuses to push such a plan. So are
    services and tasks that are gone: it would be unknown as whose user to run them.
    """
    index_of = {gpu.id: gpu.index for gpu in state.gpus}
    types = {gpu_type.name: gpu_type for gpu_type in state.gpu_types}
    known = _Known(
        services={each.name: each.project for each in state.services},
        tasks={each.name: each.project for each in state.tasks},
        llm_terms=llm_terms_of(state.services),
        indices=index_of,
    )
    by_node: dict[str, list[BoundGpu]] = defaultdict(list)
    for gpu in bound.gpus:
        # A command names GPUs by index, which only the present fleet knows.
        if gpu.id in index_of:
            by_node[gpu.node].append(gpu)
    routes = _routes(bound, state)
    running = services_on(bound.gpus)
    waiting = routes.keys() - running
    waited_at = nodes_for_waiting(state)

    def routes_of(node: str) -> tuple[Route, ...]:
        here = services_on(by_node[node])
        names = here & routes.keys()
        if node in waited_at:
            names |= waiting
        return tuple(routes[name] for name in sorted(names))

    return tuple(
        NodeCommand(
            node=node.id,
            generation=bound.generation,
            gpus=tuple(
                _gpu(
                    gpu,
                    index_of[gpu.id],
                    types[gpu.gpu_type],
                    _governor(bound, gpu, types[gpu.gpu_type]),
                    known,
                )
                for gpu in sorted(by_node[node.id], key=lambda gpu: index_of[gpu.id])
            ),
            routes=routes_of(node.id),
        )
        for node in sorted(state.nodes, key=lambda node: node.id)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a bound plan leaves to the present state to say; what is gone since it was bound is missing."""

    services: Mapping[str, str]
    """The project of each, by name."""
    tasks: Mapping[str, str]
    """The same."""
    llm_terms: Mapping[str, LlmTerms]
    """What language models' services state, by name."""
    indices: Mapping[GpuId, int]
    """Where GPUs are on their nodes, by id."""


def _governor(
    bound: BoundPlan, gpu: BoundGpu, gpu_type: GpuType
) -> GovernorCommand | None:
    """The governor of a GPU: any of its type's clocks, batches up to the plan's, power up to the plan's cap."""
    name = bound.governor
    # Language models' steps are planned at the highest clock, and their batches are no governor's to turn.
    if name is None or gpu.is_models_own:
        return None
    power_limit_w = gpu.power_cap_w * (NET if GOVERNORS[name].holds_power else 1.0)
    command = GovernorCommand(
        name=name, clocks_mhz=gpu_type.clocks_mhz, power_limit_w=power_limit_w
    )
    return msgspec.structs.replace(command, **dict(bound.governor_tuning))


def _gpu(
    gpu: BoundGpu,
    index: int,
    gpu_type: GpuType,
    governor: GovernorCommand | None,
    known: _Known,
) -> GpuCommand:
    return GpuCommand(
        index=index,
        gpu_type=gpu.gpu_type,
        is_capped=gpu_type.overload is None,
        clock_mhz=gpu.clock_mhz,
        power_cap_w=gpu.power_cap_w,
        replicas=tuple(_replicas(gpu.replicas, known)),
        tasks=tuple(
            TaskCommand(**asdict(task), project=known.tasks[task.name])
            for task in gpu.tasks
            if task.name in known.tasks
        ),
        governor=governor,
    )


def _replicas(
    replicas: Iterable[BoundReplica], known: _Known
) -> Iterator[ReplicaCommand]:
    for replica in replicas:
        if replica.service not in known.services:
            continue
        engine = None
        if replica.llm is not None:
            # A replica that has lost one of its GPUs is lost with all of them.
            if not known.indices.keys() >= set(replica.llm.gpus):
                continue
            terms = known.llm_terms.get(replica.service)
            engine = _engine(replica.llm, terms, known)
        fields = asdict(replica)
        del fields["llm"]
        yield ReplicaCommand(
            **fields,
            project=known.services[replica.service],
            engine=engine,
        )


def _engine(
    settings: LlmEngineSettings,
    terms: LlmTerms | None,
    known: _Known,
) -> EngineCommand:
    return EngineCommand(
        gpus=tuple(known.indices[GpuId(name)] for name in settings.gpus),
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        precision=settings.precision,
        drain_s=_drain_s(settings, terms),
    )


def _drain_s(
    settings: LlmEngineSettings,
    terms: LlmTerms | None,
) -> float:
    """As long as the longest answer takes where it just keeps its SLO, within limits."""
    # A service that is no language model's any more: its last replicas are on their way out.
    if terms is None:
        return _MIN_DRAIN_S
    longest_s = settings.max_model_len * terms.itl_ms / 1000.0
    return min(_MAX_DRAIN_S, max(_MIN_DRAIN_S, longest_s))


def _routes(bound: BoundPlan, state: ClusterState) -> dict[str, Route]:
    rates = planned_rates_rps(bound)
    return {
        service.name: Route(
            service=service.name,
            slo_ms=service.slo.latency_ms,
            percentile=service.slo.percentile,
            arrival_rate_rps=rates[service.name],
            slo_itl_ms=None if service.llm is None else service.llm.itl_ms,
        )
        for service in state.services
    }


def services_on(gpus: Iterable[BoundGpu]) -> set[str]:
    """Services with a replica on one of them."""
    return {replica.service for gpu in gpus for replica in gpu.replicas}


def nodes_for_waiting(state: ClusterState) -> frozenset[str]:
    """The nodes at which requests of services that run nowhere wait: the first ones by name that are heard."""
    # In the order in which `load_routers` names them to gateways.
    by_name = sorted(state.nodes, key=attrgetter("id"))
    heard_first = sorted(by_name, key=_is_silent)
    chosen = heard_first[:WAITING_NODES]
    return frozenset(node.id for node in chosen)


def _is_silent(node: Node) -> bool:
    return node.silent_for_s > _HEARD_S


# The order decides in `effective_mode`: the mode that leaves most to a person wins.
CAUTION = (Mode.OFF, Mode.ADVISE, Mode.APPROVE, Mode.AUTO)
"""Most cautious first."""


def effective_mode(
    settings: PolicySettings,
    services: Sequence[Service],
    target: BoundPlan | None,
    bound: BoundPlan,
) -> Mode:
    """The most cautious of the policy's mode and those of the services whose replicas change, and of their groups.

    A service in mode off is not planned at all, so its own mode does not keep its last replicas from ending. Where
    switches want approval, a plan of another policy than the target's waits for it. Where only services want it, what
    changes nothing but tasks waits for no person.
    """
    changed = changed_services(target, bound)
    # Only services that the plan touches may slow it down.
    touched = [service for service in services if service.name in changed]
    groups = [group for group in map(settings.group_of, touched) if group is not None]
    # No change of an off service waits for a person: it only ends replicas.
    modes = [service.mode for service in touched if service.mode is not Mode.OFF]
    if settings.approve_switch and target is not None and target.policy != bound.policy:
        modes.append(Mode.APPROVE)
    own = Mode.AUTO if _needs_nobody(settings, target, bound) else settings.mode
    return min([own, *modes, *(group.mode for group in groups)], key=CAUTION.index)


def _needs_nobody(
    settings: PolicySettings, target: BoundPlan | None, bound: BoundPlan
) -> bool:
    """Whether the plan would wait for a person but for the exemption of tasks."""
    is_exempt = settings.mode is Mode.APPROVE and settings.approve == "services"
    return is_exempt and changes_leftovers_only(target, bound)


def changes_leftovers_only(target: BoundPlan | None, bound: BoundPlan) -> bool:
    """Whether services are left as they are, and only tasks change on what their replicas leave over."""
    if target is not None and target.governing != bound.governing:
        return False
    return _serving_gpus(target) == _serving_gpus(bound)


def _serving_gpus(plan: BoundPlan | None) -> frozenset[BoundGpu]:
    """The GPUs on which replicas run, by themselves."""
    return frozenset(
        replace(gpu, tasks=()) for gpu in (plan.gpus if plan else ()) if gpu.replicas
    )


def advised_services(
    settings: PolicySettings,
    services: Sequence[Service],
    target: BoundPlan | None,
    bound: BoundPlan,
) -> tuple[str, ...]:
    """Services that the plan changes and for which plans are advice only, by their own mode or their group's."""
    changed = changed_services(target, bound)
    touched = [service for service in services if service.name in changed]
    return tuple(
        service.name
        for service in touched
        # The policy's own mode is another answer's matter: it stops all plans, whatever they change.
        if Mode.ADVISE in modes_of(service, settings)[1:]
    )


def changed_services(target: BoundPlan | None, bound: BoundPlan) -> set[str]:
    """Services whose replicas differ in place, SM percent, batch or clock; routing weights alone are no change."""
    before = _settings(target)
    after = _settings(bound)
    # The symmetric difference has what ends as well as what starts; what moves is in it twice.
    return {entry[0] for entry in before ^ after}


def _settings(plan: BoundPlan | None) -> set[tuple[str, str, str, float, int, float]]:
    def key(
        gpu: str, clock_mhz: float, replica: BoundReplica
    ) -> tuple[str, str, str, float, int, float]:
        return (
            replica.service,
            replica.id,
            gpu,
            replica.sm_percent,
            replica.batch,
            clock_mhz,
        )

    return {
        key(gpu.id, gpu.clock_mhz, replica)
        for gpu in (plan.gpus if plan else ())
        for replica in gpu.replicas
    }
