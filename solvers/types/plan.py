"""Plan: a complete wanted state, in anonymous GPUs; BoundPlan: the same with identities; and their differences.

A policy decides in patterns ("three A100s like this"), `bind` gives them GPU ids and replica ids. Neither is ever
a list of changes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, get_args

from solvers.types.llm import LlmEngineSettings, LlmReplicaPlan
from solvers.types.parameters import Setting
from solvers.types.slices import SliceUse
from solvers.types.state import Gpu, GpuId, GpuType, NodeId, ReplicaId, TaskKind

UnservedReason = Literal[
    "slo",
    "stock",
    "sm",
    "memory",
    "power",
    "replicas",
    "budget",
    "slots",
]
"""`slots`: GPUs are free, but too few of one node for a replica that spans several."""
WANT_OF_GPUS: frozenset[UnservedReason] = frozenset(
    ("stock", "sm", "memory", "power", "slots")
)
"""Reasons that more GPUs, or less demand of others, would end."""
UNSERVED_REASONS: tuple[UnservedReason, ...] = get_args(UnservedReason)

ALL_SMS = 100.0
"""SM percent of what has a GPU to itself."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """One replica on each of the GPUs of its GpuPlan."""

    service: str
    sm_percent: float
    """0 < sm_percent <= 100, a multiple of the GPU type's step."""
    batch: int
    arrival_rate_rps: float
    """The rate routed to this one replica (on each of the `count` GPUs)."""
    slice: SliceUse | None = None
    """The slice that it has to itself, all of whose SMs are its own; None: it shares the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """`count` identical GPUs that carry the same replicas at the same clock."""

    gpu_type: str
    count: int = 1
    clock_mhz: float
    replicas: tuple[ReplicaPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """The part of a service's rate that the plan leaves out, with the rule that stops it."""

    service: str
    rate_rps: float
    reason: UnservedReason
    replicas_missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete wanted state (the contract's Plan without its report)."""

    policy: str
    gpus: tuple[GpuPlan, ...] = ()
    llm_replicas: tuple[LlmReplicaPlan, ...] = ()
    unserved: tuple[Unserved, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundReplica:
    """One replica with its identity; everything that an agent needs to run it."""

    id: ReplicaId
    service: str
    network: str
    sm_percent: float
    batch: int
    arrival_rate_rps: float
    memory_mib: float
    """On each of its GPUs."""
    llm: LlmEngineSettings | None = None
    """Only language models have it, and their GPUs to themselves; `batch` is max_num_seqs then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTask:
    """One task on what a GPU's replicas leave over; everything that an agent needs to run it."""

    name: str
    kind: TaskKind
    network: str
    batch: int
    sm_percent: float
    memory_mib: float
    iterations: int
    done_iterations: float = 0.0
    """Where it begins when it is started; one that runs goes on from where it is."""
    is_resident: bool = True
    """False: swapped out to the host's memory, where it holds neither SMs nor GPU memory, until there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGpu:
    """One physical GPU with its clock, replicas and tasks; a GPU that carries nothing does not appear in a plan."""

    id: GpuId
    node: NodeId
    gpu_type: str
    clock_mhz: float
    power_cap_w: float
    replicas: tuple[BoundReplica, ...]
    tasks: tuple[BoundTask, ...] = ()
    held_by: ReplicaId | None = None
    """The language model's replica that spans this GPU and stands among the replicas of another one of the node."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is to run here."""
        return not (self.replicas or self.tasks or self.held_by)

    @property
    def is_models_own(self) -> bool:
        """Whether a language model has it to itself."""
        return self.held_by is not None or any(each.llm for each in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPlan:
    """A plan with GPU ids and replica ids, ready to become the target."""

    generation: int
    """Grows by one with every target; agents refuse older ones."""
    parent: int
    """Generation of the target that this plan was made from; 0 = none."""
    policy: str
    gpus: tuple[BoundGpu, ...] = ()
    unserved: tuple[Unserved, ...] = ()
    governor: str | None = None
    """Who turns clocks and batches on the nodes within this plan (`solvers.governors`); None = no governor."""
    governor_tuning: tuple[tuple[str, Setting], ...] = ()
    """(name, value) of what differs from the governor's defaults, by name."""

    @property
    def governing(self) -> tuple[object, ...]:
        """Who governs and how: the same for plans that nodes are governed alike by."""
        return self.governor, self.governor_tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """One line of a difference between two plans: replicas of one (service, GPU type, SM percent, batch, clock, tp)."""

    service: str
    gpu_type: str
    sm_percent: float
    batch: int
    clock_mhz: float
    before: int
    after: int
    tp: int = 1
    """GPUs that each of them spans."""


class _ReplicaKey(NamedTuple):
    """What replicas on one line of a difference have in common, in the order in which lines are sorted."""

    service: str
    gpu_type: str
    sm_percent: float
    batch: int
    clock_mhz: float
    tp: int = 1


def diff(before: Plan, after: Plan) -> tuple[PlanChange, ...]:
    """What differs in replicas between two plans, sorted by service, GPU type, SM percent, batch, clock and tp."""
    old = replica_counts(before, _replica_key) + _llm_counts(before)
    new = replica_counts(after, _replica_key) + _llm_counts(after)
    # A Counter gives 0 for a key that its plan lacks.
    return tuple(
        PlanChange(**key._asdict(), before=old[key], after=new[key])
        for key in sorted(old.keys() | new.keys())
        if old[key] != new[key]
    )


def anonymous(bound: BoundPlan) -> Plan:
    """The plan without identities: one GpuPlan per physical GPU, in the order of GPU ids."""
    ordered = sorted(bound.gpus, key=lambda gpu: gpu.id)
    # A GPU that carries tasks alone is free to a policy, which knows no tasks.
    shared = (gpu for gpu in ordered if gpu.replicas and not gpu.is_models_own)
    return Plan(
        policy=bound.policy,
        gpus=tuple(map(anonymous_gpu, shared)),
        llm_replicas=tuple(
            _llm_replica(gpu, replica, replica.llm)
            for gpu in ordered
            for replica in gpu.replicas
            if replica.llm is not None
        ),
        unserved=bound.unserved,
    )


def _llm_replica(
    gpu: BoundGpu, replica: BoundReplica, settings: LlmEngineSettings
) -> LlmReplicaPlan:
    return LlmReplicaPlan(
        service=replica.service,
        gpu_type=gpu.gpu_type,
        tp=len(settings.gpus),
        clock_mhz=gpu.clock_mhz,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        arrival_rate_rps=replica.arrival_rate_rps,
    )


def anonymous_gpu(gpu: BoundGpu) -> GpuPlan:
    """One GPU's replicas without identities; a plan knows no tasks."""
    return GpuPlan(
        gpu_type=gpu.gpu_type,
        clock_mhz=gpu.clock_mhz,
        replicas=tuple(
            ReplicaPlan(
                service=replica.service,
                sm_percent=replica.sm_percent,
                batch=replica.batch,
                arrival_rate_rps=replica.arrival_rate_rps,
            )
            for replica in gpu.replicas
        ),
    )


def idle_gpu(gpu: Gpu, gpu_type: GpuType) -> BoundGpu:
    """A GPU with nothing on it, at its highest clock; a plan has it once something is added."""
    return BoundGpu(
        id=gpu.id,
        node=gpu.node,
        gpu_type=gpu.gpu_type,
        clock_mhz=gpu_type.clocks_mhz[-1],
        power_cap_w=gpu_type.power_cap_w,
        replicas=(),
    )


def planned_rates_rps(bound: BoundPlan | None) -> defaultdict[str, float]:
    """The rate that a bound plan serves, by service; 0 for every other, and without a plan."""
    rates: defaultdict[str, float] = defaultdict(float)
    for gpu in bound.gpus if bound else ():
        for replica in gpu.replicas:
            rates[replica.service] += replica.arrival_rate_rps
    return rates


def served_rates_rps(gpus: Iterable[GpuPlan]) -> defaultdict[str, list[float]]:
    """By service, what each entry of a plan serves of it, on all its GPUs; to be summed exactly."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for gpu in gpus:
        for replica in gpu.replicas:
            rates[replica.service].append(gpu.count * replica.arrival_rate_rps)
    return rates


def replicas_of(plan: Plan, service: str) -> Iterator[tuple[GpuPlan, ReplicaPlan]]:
    """Every replica entry of a service with the GPUs that carry it."""
    return (
        (gpu, replica)
        for gpu in plan.gpus
        for replica in gpu.replicas
        if replica.service == service
    )


def replica_counts(
    plan: Plan, key: Callable[[GpuPlan, ReplicaPlan], Key]
) -> Counter[Key]:
    """How many replicas of a plan share each key."""
    counts: Counter[Key] = Counter()
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            # An entry stands for `count` GPUs, on each of which the replica runs once.
            counts[key(gpu, replica)] += gpu.count
    return counts


def replica_order(replica: ReplicaPlan) -> tuple[str, float, int, float]:
    """Sorts the replicas of a GPU by what they are."""
    return replica.service, replica.sm_percent, replica.batch, replica.arrival_rate_rps


def used_gpus(plan: Plan) -> Counter[str]:
    """How many GPUs of each type a plan uses."""
    counts = gpu_counts(plan.gpus)
    for replica in plan.llm_replicas:
        counts[replica.gpu_type] += replica.gpus
    return counts


def gpu_counts(gpus: Iterable[GpuPlan]) -> Counter[str]:
    """How many GPUs there are of each type."""
    counts: Counter[str] = Counter()
    for gpu in gpus:
        counts[gpu.gpu_type] += gpu.count
    return counts


def _replica_key(gpu: GpuPlan, replica: ReplicaPlan) -> _ReplicaKey:
    return _ReplicaKey(
        replica.service,
        gpu.gpu_type,
        replica.sm_percent,
        replica.batch,
        gpu.clock_mhz,
    )


def _llm_counts(plan: Plan) -> Counter[_ReplicaKey]:
    counts: Counter[_ReplicaKey] = Counter()
    for each in plan.llm_replicas:
        key = _ReplicaKey(
            each.service,
            each.gpu_type,
            ALL_SMS,
            each.max_num_seqs,
            each.clock_mhz,
            each.tp,
        )
        counts[key] += each.count
    return counts
