"""From a plan's anonymous GPUs to physical ones: GPU ids, replica ids, and the transition from what runs now.

For each GPU type a min-cost matching of the plan's GPUs to the fleet's, in this order of importance:

    1. the fewest GPUs of the plan without a place
    2. the most replicas kept: same GPU, service, network and SM percent (batch, rate and clock change in place, as long
       as the memory that the replica reserved at its start is enough: a running process cannot reserve more)
    3. the fewest GPUs that must stop replicas before they can start others, for want of memory or replica slots
    4. the fewest kept replicas whose batch changes and GPUs with kept replicas whose clock changes

and, where that leaves a choice among GPUs without replicas, those that no service avoids, those without tasks and then
the lowest ids, in the order of the plan's content. Then `spread` exchanges GPUs so that the loss of a node or a zone
takes no more of a service than it may. Tasks are no part of it: `fill` places them afterwards.

Language models come before all that (`bind_models`): they have their GPUs to themselves.

A GPU that is cordoned, or whose node is, keeps replicas but starts none: it takes only a GPU plan of which every
replica runs there already. A GPU that a service avoids keeps replicas of it but starts none. An unhealthy GPU takes
nothing. What the plan does not name is stopped, wherever it runs.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from solvers.laws.operating_rows import SM_PERCENT_DIGITS, OperatingRows
from solvers.tick.bind_models import ModelFleet, bind_models
from solvers.tick.matching import GpuPlace, PlanSlot, ReplicaIdentity, match_slots
from solvers.tick.replica_ids import new_replica_id
from solvers.tick.spread import spread
from solvers.tick.transition import TransitionStep, transition
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmTerms
from solvers.types.plan import (
    BoundGpu,
    BoundPlan,
    BoundReplica,
    GpuPlan,
    Plan,
    ReplicaPlan,
    replica_order,
)
from solvers.types.problem import Problem
from solvers.types.state import Gpu, GpuId, Node, ReplicaId
from solvers.types.survival import SurvivalGoal


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A plan with identities and the way to it."""

    plan: BoundPlan
    steps: tuple[TransitionStep, ...]
    """No step when nothing changes."""
    unplaced: tuple[GpuPlan, ...]
    """GPUs of the plan that found no place, one entry each; `plan` lacks them, so do not push it unless this is
    empty."""


def bind(
    problem: Problem,
    plan: Plan,
    gpus: Sequence[Gpu],
    nodes: Sequence[Node],
    *,
    running: BoundPlan | None,
    generation: int,
    avoided: Mapping[str, Set[GpuId]] | None = None,
    llm_terms: Mapping[str, LlmTerms] | None = None,
) -> Bound:
    """The plan on physical GPUs with the fewest replicas started, as generation `generation` after `running`.

    avoided: GPUs that start no replica of a service, by service. What must leave them is not to be in `running`.
    llm_terms: by service, those of the plan's language models.

    The order of the arguments' items changes nothing. Raises InvalidInput when the plan names a service or row that the
    problem lacks, when a GPU's node is not among `nodes`, or when `generation` is not newer than that of `running`.
    Complexity: one assignment problem per GPU type, O(n³) in its GPUs.
    """
    parent = running.generation if running else 0
    # Replica ids hold the generation: an old one would give new replicas the ids of others.
    if generation <= parent:
        raise InvalidInput(
            "generation",
            f"{generation} is not newer than {parent}, the generation that runs",
        )
    before = _still_there(running, gpus)
    avoided = avoided or {}
    # Before the others, who find a place on what is left wherever there is one.
    fleet = ModelFleet(gpus=gpus, nodes=nodes, running=before, avoided=avoided)
    models = bind_models(problem, plan, fleet, llm_terms or {})
    held = {gpu.id for gpu in models.gpus}
    left = [gpu for gpu in gpus if gpu.id not in held]
    places = _places(left, nodes, before)
    taken, unplaced = _match(problem, _slots(problem, plan), places, avoided)
    taken = _spread(taken, places, nodes, problem.survival, avoided)
    shared = _bound_gpus(problem, taken, generation)
    after = tuple(sorted((*shared, *models.gpus), key=lambda gpu: gpu.id))
    bound = BoundPlan(
        generation=generation,
        parent=parent,
        policy=plan.policy,
        gpus=after,
        unserved=plan.unserved,
    )
    steps = transition(problem, before, after)
    return Bound(plan=bound, steps=steps, unplaced=(*unplaced, *models.unplaced))


def _match(
    problem: Problem,
    slots: Sequence[PlanSlot],
    places: Sequence[GpuPlace],
    avoided: Mapping[str, Set[GpuId]],
) -> tuple[list[tuple[GpuPlace, PlanSlot]], list[GpuPlan]]:
    """Places with what they get, and the GPUs of the plan that got none."""
    taken: list[tuple[GpuPlace, PlanSlot]] = []
    unplaced: list[GpuPlan] = []
    # Types apart: a replica can run on no other type than planned, and the smaller problems are much cheaper.
    for name in sorted({slot.gpu.gpu_type for slot in slots}):
        of_type = [slot for slot in slots if slot.gpu.gpu_type == name]
        offered = [place for place in places if place.gpu.gpu_type == name]
        matched = match_slots(problem, of_type, offered, avoided)
        for slot, place in zip(of_type, matched, strict=True):
            if place is None:
                unplaced.append(slot.gpu)
            else:
                taken.append((place, slot))
    return taken, unplaced


def _spread(
    taken: list[tuple[GpuPlace, PlanSlot]],
    places: Sequence[GpuPlace],
    nodes: Sequence[Node],
    goals: Sequence[SurvivalGoal],
    avoided: Mapping[str, Set[GpuId]],
) -> list[tuple[GpuPlace, PlanSlot]]:
    """The match, exchanged so that losses take less of the services with goals."""
    zones = {node.id: node.zone for node in nodes}
    empty = _empty(places, {place.gpu.id for place, _ in taken})

    def may_start(place: GpuPlace, slot: PlanSlot) -> bool:
        services = {each.service for each in slot.gpu.replicas}
        is_avoided = any(
            place.gpu.id in avoided.get(service, ()) for service in services
        )
        return not place.cordoned and not is_avoided

    def domain_of(place: GpuPlace, goal: SurvivalGoal) -> str:
        node = place.gpu.node
        return node if goal.loss == "node" else zones[node]

    return spread(taken, empty, goals, domain_of, may_start)


def _empty(places: Sequence[GpuPlace], used: Set[GpuId]) -> list[GpuPlace]:
    # A GPU that carries replicas would have to stop them first, so that only free ones count as empty.
    return [
        place
        for place in places
        if place.gpu.id not in used and not place.replicas and not place.cordoned
    ]


def _still_there(
    running: BoundPlan | None,
    gpus: Sequence[Gpu],
) -> tuple[BoundGpu, ...]:
    """The running GPUs that still exist under their id and type."""
    types = {gpu.id: gpu.gpu_type for gpu in gpus}
    return tuple(
        gpu
        for gpu in (running.gpus if running else ())
        if types.get(gpu.id) == gpu.gpu_type
    )


def _slots(problem: Problem, plan: Plan) -> list[PlanSlot]:
    """One slot per GPU of the plan, in an order that only its content decides."""
    rows = OperatingRows(problem)
    slots = []
    for gpu in plan.gpus:
        single = replace(
            gpu, count=1, replicas=tuple(sorted(gpu.replicas, key=replica_order))
        )
        replicas = [
            _unnamed(problem, rows, single, replica) for replica in single.replicas
        ]
        slot = PlanSlot(gpu=single, replicas=_by_identity(replicas))
        slots.extend([slot] * gpu.count)
    return sorted(
        slots,
        key=lambda slot: (
            slot.gpu.clock_mhz,
            tuple(map(replica_order, slot.gpu.replicas)),
        ),
    )


def _unnamed(
    problem: Problem,
    rows: OperatingRows,
    gpu: GpuPlan,
    replica: ReplicaPlan,
) -> BoundReplica:
    # Raises for a row that the problem lacks: such a plan must fail here, not on a node.
    row = rows.row_of(gpu, replica)
    return BoundReplica(
        id=ReplicaId(""),
        service=replica.service,
        network=problem.service(replica.service).network,
        sm_percent=replica.sm_percent,
        batch=replica.batch,
        arrival_rate_rps=replica.arrival_rate_rps,
        memory_mib=row.memory_mib,
    )


def _by_identity(
    replicas: Sequence[BoundReplica],
) -> dict[ReplicaIdentity, BoundReplica]:
    seen: Counter[tuple[str, str, float]] = Counter()
    identified = {}
    for replica in replicas:
        alike = (
            replica.service,
            replica.network,
            round(replica.sm_percent, SM_PERCENT_DIGITS),
        )
        # Plans of other policies may hold a service twice on a GPU: without the ordinal the second would hide the
        # first.
        identified[*alike, seen[alike]] = replica
        seen[alike] += 1
    return identified


def _places(
    gpus: Sequence[Gpu],
    nodes: Sequence[Node],
    before: Sequence[BoundGpu],
) -> list[GpuPlace]:
    """The GPUs that may take something, by id."""
    node_by_id = {node.id: node for node in nodes}
    running = {gpu.id: gpu for gpu in before}
    places = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.id):
        if gpu.node not in node_by_id:
            raise InvalidInput(
                "nodes", f"the node {gpu.node!r} of GPU {gpu.id!r} is not among them"
            )
        place = _place(gpu, node_by_id[gpu.node], running.get(gpu.id))
        # A cordoned GPU starts nothing, so that an empty one has no use.
        if gpu.healthy and (place.replicas or not place.cordoned):
            places.append(place)
    return places


def _place(gpu: Gpu, node: Node, running: BoundGpu | None) -> GpuPlace:
    replicas = running.replicas if running else ()
    # By id, so that ordinals of equal replicas do not depend on the order of the stored plan.
    by_id = sorted(replicas, key=lambda replica: replica.id)
    return GpuPlace(
        gpu=gpu,
        cordoned=gpu.cordoned or node.cordoned,
        running=running,
        replicas=_by_identity(by_id),
    )


def _bound_gpus(
    problem: Problem,
    taken: Sequence[tuple[GpuPlace, PlanSlot]],
    generation: int,
) -> tuple[BoundGpu, ...]:
    """The GPUs with their replicas, by GPU id; kept replicas keep their ids, new ones are numbered in that order."""
    bound = []
    for place, slot in sorted(taken, key=lambda pair: pair[0].gpu.id):
        gpu_type = problem.gpu_type(place.gpu.gpu_type)
        bound.append(
            BoundGpu(
                id=place.gpu.id,
                node=place.gpu.node,
                gpu_type=place.gpu.gpu_type,
                clock_mhz=slot.gpu.clock_mhz,
                power_cap_w=gpu_type.power_cap_w,
                replicas=_reserved(
                    slot.replicas, place.replicas, memory_mib=gpu_type.memory_mib
                ),
            )
        )
    return _with_ids(bound, generation, itertools.count(1))


def named(gpus: Iterable[BoundGpu], generation: int) -> tuple[BoundGpu, ...]:
    """The GPUs of a plan of that generation, where every replica that has no id yet gets one."""
    gpus = tuple(gpus)
    # What the plan numbered before it numbered from 1 on, each replica once.
    numbers = itertools.count(1 + sum(len(gpu.replicas) for gpu in gpus))
    return _with_ids(gpus, generation, numbers)


def _with_ids(
    gpus: Iterable[BoundGpu],
    generation: int,
    numbers: Iterator[int],
) -> tuple[BoundGpu, ...]:
    return tuple(
        replace(
            gpu,
            replicas=tuple(
                each
                if each.id
                else replace(
                    each, id=new_replica_id(each.service, generation, next(numbers))
                )
                for each in gpu.replicas
            ),
        )
        for gpu in gpus
    )


def _reserved(
    wanted: Mapping[ReplicaIdentity, BoundReplica],
    running: Mapping[ReplicaIdentity, BoundReplica],
    *,
    memory_mib: float,
) -> tuple[BoundReplica, ...]:
    """The wanted replicas; those that run with enough memory keep id and reservation, the others have no id yet.

    Where the kept reservations leave too little for the rest, the largest excess is given up first: that replica
    starts again with what it needs.
    """
    needed_mib = sum(replica.memory_mib for replica in wanted.values())
    kept = _kept(wanted, running, spare_mib=max(0.0, memory_mib - needed_mib))
    return tuple(
        replace(
            replica, id=running[identity].id, memory_mib=running[identity].memory_mib
        )
        if identity in kept
        else replica
        for identity, replica in wanted.items()
    )


def _kept(
    wanted: Mapping[ReplicaIdentity, BoundReplica],
    running: Mapping[ReplicaIdentity, BoundReplica],
    *,
    spare_mib: float,
) -> Collection[ReplicaIdentity]:
    """The wanted replicas that run with enough memory, as far as what they reserve beyond need is to spare."""
    # A running process cannot reserve more, and does not give back what it has.
    excess_mib = {
        identity: running[identity].memory_mib - replica.memory_mib
        for identity, replica in wanted.items()
        if identity in running and running[identity].memory_mib >= replica.memory_mib
    }
    for identity in sorted(
        excess_mib, key=lambda identity: (-excess_mib[identity], identity)
    ):
        if sum(excess_mib.values()) <= spare_mib:
            break
        del excess_mib[identity]
    return excess_mib.keys()
