"""Language models' replicas on physical GPUs, each on as many of one node as it spans, and nothing next to it.

What runs as the plan wants it stays where it is. The others are placed from the largest on, which leaves room for the
smaller ones wherever the rule of slots holds (`solvers.check_llm`): on the node where they displace the fewest
replicas, so that what is replaced serves until then; of equal ones on one that has less than half of the service's, so
that no loss of a node takes all of it; then on that with the fewest free GPUs, so that whole nodes stay whole. Where
what stays is in the way of a large one, all are placed again.

A service whose team asked that it survives the loss of a node or a zone is spread as evenly as there is room: its
replicas are placed where the fewest requests would be lost. While a loss would leave less than is needed, those that
run move, too, to free GPUs where fewer would be lost.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from solvers.tick.model_losses import ModelLosses
from solvers.tick.replica_ids import placed_replica_id
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmEngineSettings, LlmReplicaPlan, LlmTerms
from solvers.types.plan import (
    ALL_SMS,
    BoundGpu,
    BoundReplica,
    GpuPlan,
    Plan,
    ReplicaPlan,
)
from solvers.types.problem import Problem
from solvers.types.state import Gpu, GpuId, Node, NodeId, ReplicaId

_Kind = tuple[str, str, str, int, LlmEngineSettings]
"""(service, network, GPU type, GPUs, how it is started): what a running and a planned replica share where one may stand
for the other."""
_Place = tuple[ReplicaId, tuple[GpuId, ...]]
"""A replica's id and its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundModels:
    """Where language models run."""

    gpus: tuple[BoundGpu, ...] = ()
    """All GPUs that they span, by id."""
    unplaced: tuple[GpuPlan, ...] = ()
    """What found no place, an entry with the GPUs of each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFleet:
    """The GPUs that language models may have."""

    gpus: Sequence[Gpu]
    """All of the fleet."""
    nodes: Sequence[Node]
    running: Sequence[BoundGpu]
    """What runs on those that are still there."""
    avoided: Mapping[str, Set[GpuId]] = field(default_factory=dict)
    """GPUs that start no replica of a service, by service."""


def bind_models(
    problem: Problem,
    plan: Plan,
    fleet: ModelFleet,
    terms: Mapping[str, LlmTerms],
) -> BoundModels:
    """The plan's language models on the fleet. `terms`: of each service that the plan has.

    Raises InvalidInput for a replica of which the problem has no row.
    """
    wanted = [
        _wanted(problem, each, terms)
        for each in sorted(plan.llm_replicas, key=_order)
        for _ in range(each.count)
    ]
    if not wanted:
        return BoundModels()
    found = _placed(problem, wanted, fleet, keeps=True)
    # Only slots can be missing then: the checker has counted GPUs.
    return _placed(problem, wanted, fleet, keeps=False) if found.unplaced else found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One replica without identity."""

    plan: LlmReplicaPlan
    replica: BoundReplica
    settings: LlmEngineSettings
    """Without GPUs."""

    @property
    def kind(self) -> _Kind:
        """What a running replica must be to stand for it."""
        own = self.replica
        return own.service, own.network, self.plan.gpu_type, self.plan.tp, self.settings

    def id_on(self, gpus: tuple[GpuId, ...]) -> ReplicaId:
        """Its name there."""
        return placed_replica_id(self.replica.service, (*self.kind, *gpus))


def _order(replica: LlmReplicaPlan) -> tuple[int, str, str, int]:
    """The largest first; what follows only makes the order that of the content."""
    return (
        -replica.tp,
        replica.service,
        replica.gpu_type,
        replica.max_num_batched_tokens,
    )


def _wanted(
    problem: Problem, plan: LlmReplicaPlan, terms: Mapping[str, LlmTerms]
) -> _Wanted:
    row = problem.llm_row(plan)
    if row is None or plan.service not in terms:
        message = f"{plan.service} has no row for {plan.tp} × {plan.gpu_type}"
        raise InvalidInput("llm_replicas", message)
    networks = {each.name: each.network for each in problem.llm_services}
    return _Wanted(
        plan=plan,
        replica=BoundReplica(
            id=ReplicaId(""),
            service=plan.service,
            network=networks[plan.service],
            sm_percent=ALL_SMS,
            batch=plan.max_num_seqs,
            arrival_rate_rps=plan.arrival_rate_rps,
            memory_mib=row.memory_mib_per_gpu,
        ),
        settings=_settings(plan, terms[plan.service]),
    )


def _settings(plan: LlmReplicaPlan, terms: LlmTerms) -> LlmEngineSettings:
    return LlmEngineSettings(
        gpus=(),
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_num_seqs=plan.max_num_seqs,
        max_model_len=terms.max_model_len,
        precision=terms.precision,
    )


def _placed(
    problem: Problem,
    wanted: Sequence[_Wanted],
    fleet: ModelFleet,
    *,
    keeps: bool,
) -> BoundModels:
    """All wanted replicas with their GPUs. `keeps`: whether what runs stays where it is."""
    places = _kept_places(wanted, fleet) if keeps else {}
    # What stays is taken first: nothing that starts may have its GPUs.
    free = _FreeGpus(fleet, {gpu for _, gpus in places.values() for gpu in gpus})
    nodes = {gpu.id: gpu.node for gpu in fleet.gpus}
    losses = ModelLosses(
        (each.replica for each in wanted), fleet.nodes, problem.survival
    )
    for number, (_, gpus) in places.items():
        losses.add(wanted[number].replica, nodes[gpus[0]])
    unplaced = []
    for number, each in enumerate(wanted):
        if number in places:
            continue
        gpus = free.take(each, losses)
        if gpus:
            places[number] = (each.id_on(gpus), gpus)
            losses.add(each.replica, nodes[gpus[0]])
        else:
            unplaced.append(_as_gpus(each))
    # Last, so that a move takes no GPUs from what has none yet.
    for number, (_, gpus) in places.items():
        better = free.take_better(wanted[number], losses, nodes[gpus[0]])
        if better:
            places[number] = (wanted[number].id_on(better), better)
    bound = [
        gpu
        for number, place in places.items()
        for gpu in _bound(problem, wanted[number], place, fleet)
    ]
    bound.sort(key=lambda gpu: gpu.id)
    return BoundModels(gpus=tuple(bound), unplaced=tuple(unplaced))


def _kept_places(wanted: Sequence[_Wanted], fleet: ModelFleet) -> dict[int, _Place]:
    """Where what runs may stay, by the number of the wanted replica that it stands for."""
    running = _running(fleet)
    # Each running replica stands for one: the lists get shorter.
    return {
        number: running[each.kind].pop(0)
        for number, each in enumerate(wanted)
        if running.get(each.kind)
    }


def _running(fleet: ModelFleet) -> dict[_Kind, list[_Place]]:
    """Replicas whose GPUs are all there and healthy, by kind: one of each node, then the second of each, and so on.

    Where fewer are wanted the first stay, on as many nodes as there are: the GPUs that the next one would have go.
    """
    alive = {gpu.id: gpu.node for gpu in fleet.gpus if gpu.healthy}
    found = defaultdict[_Kind, list[_Place]](list)
    for gpu in sorted(fleet.running, key=lambda gpu: gpu.id):
        for each in gpu.replicas:
            # A replica that has lost one of its GPUs is lost as a whole.
            if each.llm is None or not alive.keys() >= set(each.llm.gpus):
                continue
            gpus = tuple(GpuId(name) for name in each.llm.gpus)
            settings = replace(each.llm, gpus=())
            kind = each.service, each.network, gpu.gpu_type, len(gpus), settings
            found[kind].append((each.id, gpus))
    return {kind: _by_turns(places, alive) for kind, places in found.items()}


def _by_turns(places: Sequence[_Place], nodes: Mapping[GpuId, NodeId]) -> list[_Place]:
    turns = Counter[NodeId]()
    in_turn = []
    for id_, gpus in places:
        node = nodes[gpus[0]]
        in_turn.append((turns[node], gpus, id_))
        turns[node] += 1
    return [(id_, gpus) for _, gpus, id_ in sorted(in_turn)]


class _GpuOffer(NamedTuple):
    """GPUs of one node for a replica. In the order of what matters: who serves goes on, a loss takes little, and whole
    nodes stay whole."""

    displaced: int
    """What runs there."""
    rank: float
    """As `ModelLosses` has it."""
    free: int
    """GPUs of the node."""
    place: tuple[str, NodeId]
    """(GPU type, node)."""
    gpus: tuple[GpuId, ...]


class _FreeGpus:
    """GPUs that may start language models, by node."""

    def __init__(self, fleet: ModelFleet, taken: Set[GpuId]) -> None:
        cordoned = {node.id for node in fleet.nodes if node.cordoned}
        # Also replicas that the plan does not want any more: they serve until their successors are ready elsewhere.
        self._displaced = {
            gpu.id: len(gpu.replicas) + (gpu.held_by is not None)
            for gpu in fleet.running
        }
        self._avoided = fleet.avoided
        self._by_node: defaultdict[tuple[str, NodeId], list[GpuId]] = defaultdict(list)
        for gpu in sorted(fleet.gpus, key=lambda gpu: gpu.id):
            is_closed = gpu.cordoned or gpu.node in cordoned
            if gpu.healthy and not is_closed and gpu.id not in taken:
                self._by_node[gpu.gpu_type, gpu.node].append(gpu.id)

    def take(self, wanted: _Wanted, losses: ModelLosses) -> tuple[GpuId, ...]:
        """As many GPUs of one node as it spans, by id; none where no node has them."""
        offers = list(self._offers(wanted, losses))
        return self._taken(min(offers)) if offers else ()

    def take_better(
        self, wanted: _Wanted, losses: ModelLosses, node: NodeId
    ) -> tuple[GpuId, ...]:
        """Others for a replica whose node's loss would leave too little of its service; none where none are better."""
        replica = wanted.replica
        if not losses.is_too_much(replica.service, node):
            return ()
        # Without itself, as it would find every other node.
        losses.remove(replica, node)
        rank = losses.rank(replica.service, node)
        better = [
            each
            for each in self._offers(wanted, losses)
            if each.displaced == 0 and each.rank < rank
        ]
        losses.add(replica, min(better).place[1] if better else node)
        return self._taken(min(better)) if better else ()

    def _taken(self, offer: _GpuOffer) -> tuple[GpuId, ...]:
        place, gpus = offer.place, offer.gpus
        self._by_node[place] = [gpu for gpu in self._by_node[place] if gpu not in gpus]
        return gpus

    def _offers(self, wanted: _Wanted, losses: ModelLosses) -> Iterator[_GpuOffer]:
        """What each node that has as many GPUs can give."""
        avoided = self._avoided.get(wanted.plan.service, frozenset())
        for place, free in self._by_node.items():
            if place[0] != wanted.plan.gpu_type:
                continue
            gpus = self._offer(place, wanted.plan.tp, avoided)
            if gpus:
                yield _GpuOffer(
                    displaced=sum(map(self._displaces, gpus)),
                    rank=losses.rank(wanted.plan.service, place[1]),
                    free=len(free),
                    place=place,
                    gpus=gpus,
                )

    def _offer(
        self, place: tuple[str, NodeId], tp: int, avoided: Set[GpuId]
    ) -> tuple[GpuId, ...]:
        """`tp` of a node's GPUs, those first on which nothing runs; none where it has too few."""
        usable = [gpu for gpu in self._by_node[place] if gpu not in avoided]
        if len(usable) < tp:
            return ()
        emptiest = sorted(usable, key=lambda gpu: (self._displaces(gpu), gpu))
        return tuple(sorted(emptiest[:tp]))

    def _displaces(self, gpu: GpuId) -> int:
        return self._displaced.get(gpu, 0)


def _as_gpus(wanted: _Wanted) -> GpuPlan:
    """The GPUs that were to carry it, as messages name them."""
    own = wanted.replica
    replica = ReplicaPlan(
        service=own.service,
        sm_percent=ALL_SMS,
        batch=own.batch,
        arrival_rate_rps=own.arrival_rate_rps,
    )
    return GpuPlan(
        gpu_type=wanted.plan.gpu_type,
        count=wanted.plan.tp,
        clock_mhz=wanted.plan.clock_mhz,
        replicas=(replica,),
    )


def _bound(
    problem: Problem,
    wanted: _Wanted,
    place: _Place,
    fleet: ModelFleet,
) -> list[BoundGpu]:
    """The replica's GPUs: it stands on the first, and holds the others."""
    id_, gpus = place
    gpu_type = problem.gpu_type(wanted.plan.gpu_type)
    nodes = {gpu.id: gpu.node for gpu in fleet.gpus}
    settings = replace(wanted.settings, gpus=gpus)
    replica = replace(wanted.replica, id=id_, llm=settings)
    return [
        BoundGpu(
            id=gpu,
            node=nodes[gpu],
            gpu_type=gpu_type.name,
            clock_mhz=wanted.plan.clock_mhz,
            power_cap_w=gpu_type.power_cap_w,
            replicas=(replica,) if gpu == gpus[0] else (),
            held_by=None if gpu == gpus[0] else id_,
        )
        for gpu in gpus
    ]
