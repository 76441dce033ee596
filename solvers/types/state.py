"""What is known: GPU types, nodes, GPUs, services with their SLOs, demand, and what was observed.

These nouns carry no behaviour beyond reading themselves. `app.db` stores them, `app.loop` fills them,
`problem` combines them into the one input of every policy.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType, TypeAlias, Union

from solvers.types.llm import LlmDataSheet, LlmTerms, TokenSlo
from solvers.types.slices import SliceProfile
from solvers.types.survival import Survival


def fingerprint_of(fleet: Sequence[tuple[str, int]]) -> str:
    """16 hexadecimal digits that name a fleet."""
    # JSON writes tuples as lists, so that a fleet that was read from it keeps its name.
    text = json.dumps(list(fleet))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


GpuId = NewType("GpuId", str)
"""Identity of one physical GPU, e.g. `node-1/gpu-0`."""


def gpu_id(node: str, index: int) -> GpuId:
    """The identity of the GPU that a node's driver counts so."""
    return GpuId(f"{node}/gpu-{index}")


NodeId = NewType("NodeId", str)
ReplicaId = NewType("ReplicaId", str)

DEFAULT_PROJECT = "default"
"""As in `agents.base.protocol`, which solvers must not import; tests/architecture compares them."""

# `Union` instead of `|`, which cannot take the strings by which the alias refers to itself.
Json: TypeAlias = Union[
    bool, int, float, str, "tuple[Json, ...]", "list[Json]", "Mapping[str, Json]", None
]


class Mode(StrEnum):
    """How far the control loop may go on its own."""

    OFF = "off"
    ADVISE = "advise"
    APPROVE = "approve"
    AUTO = "auto"


ALL_PAID = 10**9
"""As many GPUs as there will ever be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """One kind of GPU: what it costs and what it can carry (the contract's `gpu_types[]`)."""

    name: str
    price_usd_per_hour: float
    """Price of one entire GPU; > 0."""
    memory_mib: float
    count: int | None = None
    """GPUs of this type that a plan may use; None = as many as wanted."""
    sm_percent_step: float
    """Every SM percent on this type is a multiple of it."""
    idle_w: float
    power_cap_w: float
    clocks_mhz: tuple[float, ...]
    """Graphics clocks that may be locked, ascending."""
    launch_per_neighbour: float = 0.0
    """Growth of the launch term per replica on the GPU, once there are two or more (contract, "The laws")."""
    launch_base: float = 0.0
    """Constant growth of the launch term once there are two or more replicas on the GPU."""
    slices: tuple[SliceProfile, ...] = ()
    """Slices that its GPUs may be cut into; empty: none."""
    is_sliced_only: bool = False
    """Whether no replica may have a GPU that is not cut into slices; each GPU is shared in one way."""
    overload: float | None = None
    """Set where replicas share GPUs without SM limits (uncapped): each may use all SMs, and a batch's run term grows by
    so much per unit by which the pressure of all replicas exceeds 1, a whole GPU. None: SM percents limit them."""
    gpus_per_node: int = 1
    """GPUs that a replica of a language model may span at most."""
    free_slots: tuple[tuple[int, int], ...] = ()
    """(k, sets): how many disjoint sets of k free GPUs of one node there are; ⌊count / k⌋ for a k that is missing."""
    llm: LlmDataSheet | None = None
    """None = as shipped for a type of that name, where one is. Ours, no field of the contract."""
    paid_count: int = 0
    """GPUs of the type that are paid for, used or not: 0 where all are rented by the hour, `ALL_PAID` where all are
    owned; what is reserved lies between. A plan pays for those beyond it. Ours, no field of the contract."""

    @property
    def is_owned(self) -> bool:
        """Whether every GPU that a plan may use is paid for anyway."""
        return self.paid_count >= (ALL_PAID if self.count is None else self.count)

    def max_sm_percent(self, replicas: int) -> float:
        """What the SM percents of `replicas` on one GPU may add up to; without SM limits each may have all."""
        return 100.0 if self.overload is None else 100.0 * max(1, replicas)

    def slots(self, size: int) -> int | None:
        """Disjoint sets of `size` free GPUs of one node; None = as many as wanted."""
        stated = dict(self.free_slots).get(size)
        if stated is not None or self.count is None:
            return stated
        return self.count // size

    def has_more_than(self, used: int) -> bool:
        """Whether a plan that uses `used` GPUs of this type may use another one."""
        return self.count is None or used < self.count


ZONE_LABEL = "topology.kubernetes.io/zone"
"""The label that names a node's zone, as Kubernetes' nodes have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with GPUs and an agent."""

    id: NodeId
    zone: str = ""
    """What fails together with it, by `ZONE_LABEL`; empty: nodes without one are one zone."""
    cordoned: bool = False
    """A cordoned node keeps what runs there and starts nothing new."""
    silent_for_s: float = 0.0
    """Seconds since its agent was last heard."""
    drain_in_s: float | None = None
    """Seconds until what runs there must leave, whatever that costs; it leaves earlier where others can take it.
    None = it may stay."""
    power_cap_w: float | None = None
    """That its used GPUs together may draw, idle watts included; None = no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU."""

    id: GpuId
    node: NodeId
    gpu_type: str
    index: int
    """Position on its node, as the driver counts."""
    healthy: bool = True
    cordoned: bool = False


ErrorBudget = Literal["spend", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """At least `percentile` of the requests finish within `latency_ms`."""

    latency_ms: float
    """With language models until the first token."""
    percentile: float
    """0.5 to 0.999."""
    budget: ErrorBudget = "spend"
    """Whether plans use what the SLO forgives (spend), or are made as if it forgave nothing (keep)."""

    def target(self, attainment: float) -> float:
        """The share of requests that plans aim at where that much is wanted of all services; 1 forgives nothing."""
        return max(self.percentile, attainment, 1.0 if self.budget == "keep" else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Limits and delays of a service's replica count. Delays are seconds of the control loop's clock."""

    min_replicas: int = 0
    max_replicas: int | None = None
    upscale_delay_s: float = 0.0
    downscale_delay_s: float = 60.0
    buffer_replicas: int = 0
    """Warm spare replicas beyond what the demand needs."""

    @property
    def may_be_zero(self) -> bool:
        """Whether it scales to zero: without requests, no replica runs."""
        return self.min_replicas + self.buffer_replicas == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One network that can do the work of a service or a task, and how well."""

    network: str
    accuracy: float
    """0 to 1, as its owner states it; compared with floors only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An inference service as its team submitted it."""

    name: str
    project: str = DEFAULT_PROJECT
    network: str
    slo: Slo
    scaling: Scaling = Scaling()
    priority: float = 1.0
    """Higher wins when GPUs are short."""
    allowed_gpu_types: tuple[str, ...] | None = None
    """None = all."""
    excluded_gpu_types: tuple[str, ...] = ()
    mode: Mode = Mode.AUTO
    labels: tuple[tuple[str, str], ...] = ()
    """As its team wrote them, by name; groups of services are chosen by them."""
    variants: tuple[Variant, ...] = ()
    """Networks that may serve it, `network` among them; empty: `network` alone."""
    accuracy_floor: float = 0.0
    """Variants below it are never chosen."""
    survival: Survival | None = None
    """None = as the policy says, where that costs no GPU of its own (`solvers.tick.survive`)."""
    anti_affinity: tuple[str, ...] = ()
    """Ascending: services with a common label of these never share a GPU."""
    llm: LlmTerms | None = None
    """Only language models have them; other requests are answered at once, batch by batch."""

    @property
    def token_slo(self) -> TokenSlo | None:
        """What it promises of its tokens; None: it is no language model's."""
        if self.llm is None:
            return None
        return TokenSlo(
            ttft_ms=self.slo.latency_ms,
            itl_ms=self.llm.itl_ms,
            percentile=self.slo.percentile,
            itl=self.llm.itl,
        )


TaskKind = Literal["training", "offline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work that no client waits for request by request, and how far it has come: training, or an offline job.

    Its network's operating points say how long one iteration takes: of a training network a step, of any other one
    batch of stored inputs.
    """

    name: str
    project: str = DEFAULT_PROJECT
    kind: TaskKind
    network: str
    batch: int
    """Examples or inputs of one iteration."""
    iterations: int
    """Until it is done."""
    done_iterations: float = 0.0
    """As last reported."""
    waiting_s: float = 0.0
    """Since it last ran, or was submitted; 0 while it runs."""
    due_in_s: float | None = None
    """Until its deadline, negative after it; None = no deadline."""
    priority: float = 1.0
    """Higher goes first."""
    weight: float = 0.5
    """What counts: above 0.5 its latency (until it is done), else its throughput; 0 to 1 (OLTunes' lambda)."""
    variants: tuple[Variant, ...] = ()
    """Networks that may do it, `network` among them; empty: `network` alone."""
    accuracy_floor: float = 0.0
    """Variants below it are never chosen."""
    layers: tuple[tuple[str, int], ...] = ()
    """(kind, number) of the layers of a network that was never profiled; empty: it was."""
    memory_mib: float | None = None
    """That it needs, where its network was never profiled."""
    iteration_ms: float = 0.0
    """As last reported while it runs; 0 while it does not."""
    avoided_gpus: frozenset[GpuId] = frozenset()
    """Where it is not placed for a while, because its launches failed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The arrival rate that a plan must serve."""

    service: str
    arrival_rate_rps: float
    method: str = "forecast"
    """Where it comes from: the forecast, by its technique's name where that is known; `kept` from the present plan;
    `reserve` where it is above the forecast, for bursts; `degraded` where it is below, for the sake of a budget."""
    reserve_rps: float = 0.0
    """The part of the rate that is kept for bursts: it must not take room from what is there."""
    headroom_rps: float = 0.0
    """The part that is there in case the forecast is too low: it must not take room from what is foreseen."""
    interval_rps: tuple[float, float] | None = None
    """The 5th and the 95th percentile of the forecast behind it; None where it is no forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObservation:
    """What the agents saw of one service in the last window."""

    service: str
    arrival_rate_rps: float
    served_rps: float
    latency_ms: float | None
    """Measured latency at the SLO's percentile; None when nothing finished in the window."""
    attainment: float | None
    """Share of the finished requests that met the SLO, 0 to 1; None when nothing finished."""
    age_s: float
    """Seconds since the newest observation behind this reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Recent readings, as a policy may use them besides the Problem."""

    at_s: float
    """The control loop's clock when the readings were taken."""
    readings: tuple[ServiceObservation, ...] = ()
    repartition: tuple[str, ...] = ()
    """Services, sorted, on GPUs whose governor cannot keep its limits with the SM percents as they are."""

    actor: bytes | None = None
    """For a policy that asks for one: the actor trained for this fleet; None = there is none."""
    launch_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds from a command to a ready replica, by GPU type: the median over services of their newest launch there. A
    type on which none was seen is missing."""
    waking: tuple[str, ...] = ()
    """Services, sorted, that would have no replica but for a request or two: what they get may be over in a minute."""

    def reading(self, service: str) -> ServiceObservation | None:
        """The reading of that service, or None when it was never observed."""
        return next(
            (reading for reading in self.readings if reading.service == service), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Everything that is known at one moment; the snapshot that a tick works on."""

    gpu_types: tuple[GpuType, ...]
    nodes: tuple[Node, ...]
    gpus: tuple[Gpu, ...]
    services: tuple[Service, ...]
    tasks: tuple[Task, ...] = ()
    """What is submitted and not yet finished."""
    catalogue_revision: int
    """Grows with every change of GPU types, GPUs, profiles or services; a plan made on an older one is not pushed."""
