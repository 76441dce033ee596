"""Language models in the loop's problem, and their GPUs, which no other service gets. Pure.

A replica spans one or several GPUs of a node, and nothing shares them with it: tasks may use what these leave over.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from app.loop.planning.limits import allowed_types, min_replicas
from solvers.types.llm import MAX_TP, LlmDemand, LlmPoints, LlmTerms
from solvers.types.plan import BoundPlan, BoundReplica
from solvers.types.state import ClusterState, Demand, Gpu, GpuId, GpuType, Service


def llm_terms_of(services: Iterable[Service]) -> dict[str, LlmTerms]:
    """What those of language models state, by service."""
    return {each.name: each.llm for each in services if each.llm is not None}


def llm_demands(
    services: Sequence[Service], demands: Sequence[Demand], gpu_types: Sequence[GpuType]
) -> tuple[LlmDemand, ...]:
    """What language models among the services are to serve, by name."""
    rates: Mapping[str, float] = {
        demand.service: demand.arrival_rate_rps for demand in demands
    }
    return tuple(
        LlmDemand(
            name=service.name,
            network=service.network,
            slo=service.token_slo,
            arrival_rate_rps=rates.get(service.name, 0.0),
            priority=service.priority,
            min_replicas=min_replicas(service.scaling),
            max_replicas=service.scaling.max_replicas,
            allowed_gpu_types=allowed_types(service, gpu_types),
        )
        for service in sorted(services, key=lambda service: service.name)
        if service.token_slo is not None
    )


def usable_points(
    points: Sequence[LlmPoints],
    services: Sequence[LlmDemand],
    gpu_types: Collection[str],
) -> tuple[LlmPoints, ...]:
    """Those of the services on these GPU types, sorted."""
    names = {service.name for service in services}
    used = [
        each for each in points if each.service in names and each.gpu_type in gpu_types
    ]
    # Equal snapshots make equal problems, byte for byte.
    used.sort(key=lambda each: (each.service, each.gpu_type))
    return tuple(used)


def with_slots(
    gpu_type: GpuType,
    usable: Sequence[Gpu],
) -> GpuType:
    """The GPU type with how many replicas that span GPUs find room on its nodes. `usable`: GPUs of any type."""
    per_node = Counter(gpu.node for gpu in usable if gpu.gpu_type == gpu_type.name)
    largest = max_tp(per_node.values())
    sizes = [size for size in (2, 4, 8) if size <= largest]
    slots = []
    for size in sizes:
        sets = sum(count // size for count in per_node.values())
        slots.append((size, sets))
    return replace(
        gpu_type,
        gpus_per_node=largest,
        free_slots=tuple(slots),
    )


def max_tp(per_node: Collection[int]) -> int:
    """The largest power of two that some node has GPUs for, at most `MAX_TP`; 1 where there are none."""
    largest = max(per_node, default=1)
    spans = 1
    while 2 * spans <= min(largest, MAX_TP):
        spans *= 2
    return spans


def without_broken_models(target: BoundPlan) -> BoundPlan:
    """The plan without replicas that span GPUs which it does not have any more, and what they hold."""
    if not models_gpus(target):
        return target
    present = {gpu.id for gpu in target.gpus}
    replicas = [each for gpu in target.gpus for each in gpu.replicas]
    standing = {each.id for each in replicas if _stands(each, present)}
    gpus = (
        replace(
            gpu,
            replicas=tuple(each for each in gpu.replicas if each.id in standing),
            held_by=gpu.held_by if gpu.held_by in standing else None,
        )
        for gpu in target.gpus
    )
    return replace(target, gpus=tuple(gpus))


def _stands(
    replica: BoundReplica,
    present: Collection[str],
) -> bool:
    """Whether all its GPUs are there."""
    return replica.llm is None or all(gpu in present for gpu in replica.llm.gpus)


def models_gpus(plan: BoundPlan | None) -> frozenset[GpuId]:
    """The GPUs that language models have to themselves."""
    if plan is None:
        return frozenset()
    own = (gpu for gpu in plan.gpus if gpu.is_models_own)
    return frozenset(gpu.id for gpu in own)


def without_models(plan: BoundPlan) -> BoundPlan:
    """The plan as those see it who share GPUs."""
    if not models_gpus(plan):
        return plan
    shared = (gpu for gpu in plan.gpus if not gpu.is_models_own)
    return replace(plan, gpus=tuple(shared))


def with_models(
    plan: BoundPlan,
    of: BoundPlan,
) -> BoundPlan:
    """The plan, with the language models of another one on their GPUs."""
    models = [gpu for gpu in of.gpus if gpu.is_models_own]
    if not models:
        return plan
    own = {gpu.id for gpu in models}
    rest = [gpu for gpu in plan.gpus if gpu.id not in own]
    gpus = [*rest, *models]
    gpus.sort(key=lambda gpu: gpu.id)
    return replace(plan, gpus=tuple(gpus))


def without_gpus(
    state: ClusterState,
    gpus: Collection[GpuId],
) -> ClusterState:
    """The state in which no service may use these GPUs."""
    if not gpus:
        return state
    marked = (
        replace(gpu, healthy=False) if gpu.id in gpus else gpu for gpu in state.gpus
    )
    return replace(state, gpus=tuple(marked))
