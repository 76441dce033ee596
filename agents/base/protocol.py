"""The wire contract between control plane and node agents: Observation up, NodeCommand down.

An agent posts an Observation to `/api/v1/nodes/{node}/sync` and gets a SyncReply: up to which number its observations
are durable, and a NodeCommand when there is a newer one. JSON; what has no default is required, unknown fields refused.
"""

from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agents.base.latency_buckets import BUCKET_COUNT

# All bounds of numbers and texts are here. What passes, and its sums, fit the columns that keep them.
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]
DEFAULT_PROJECT = "default"
MAX_TEXT = 2000
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
"""Counted in one window, which has an hour at most; nine billion of the largest still fit one sum (bigint)."""
Ordinal: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
"""Beyond it JSON parsers that know doubles alone would round."""
Generation: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Position: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
DIGEST_LENGTH = 40
"""Hexadecimal digits: those of the schema, then those of the command."""
GpuIndex: TypeAlias = Annotated[int, Meta(ge=0, le=64_999)]
"""A slice (MIG) of GPU 63 has at most this index: 1000 * 64 + 10 * instance + compute instance."""
MAX_GPUS = 128
"""Sixteen GPUs in seven or eight slices each."""
MAX_PROBLEMS = 64
MAX_LAUNCHES = 64
BatchSize: TypeAlias = Annotated[int, Meta(ge=1, le=65_536)]
Bucket: TypeAlias = Annotated[int, Meta(ge=0, le=BUCKET_COUNT - 1)]
Amount: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e12)]
Positive: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e12)]
Iterations: TypeAlias = Annotated[float, Meta(ge=0.0, le=2.0**53)]
"""A job of 10^9 iterations of batch 65,536 has more than 10^12 when it runs with batch 1."""
Percent: TypeAlias = Annotated[float, Meta(gt=0.0, le=100.0)]
PercentOrZero: TypeAlias = Annotated[float, Meta(ge=0.0, le=100.0)]

ReplicaState: TypeAlias = Literal["starting", "ready", "draining", "asleep", "failed"]
TaskKind: TypeAlias = Literal["training", "offline"]
TaskState: TypeAlias = Literal[
    "starting", "running", "swapping", "swapped", "finished", "failed"
]
LeaseEnd: TypeAlias = Literal["keep", "restore"]
AckStatus: TypeAlias = Literal["applied", "applying", "refused", "failed"]

TIME_HEADER = "Plimsoll-Agent-Time"
"""The agent's clock when it sends, in Unix seconds: so that a wrong clock can be told from an old window."""
METRICS_HEADER = "Plimsoll-Metrics"
"""host:port of the agent's own metrics, where it has some."""
ROUTER_HEADER = "Plimsoll-Router"
"""Base URL of the node's router, where it takes requests: http or https, host and port."""
LOG_BYTES = 65_536
"""The most that one answer holds of a log."""


# Refused and not ignored: without a field that its agent does not know a command would be another one than was planned.
class Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message: immutable, named fields only, unknown fields refused."""


class GpuReading(Wire, frozen=True, kw_only=True):
    """One GPU over the window."""

    index: GpuIndex
    gpu_type: Name
    memory_mib: Amount
    memory_used_mib: Amount | None
    """None = the driver does not tell; so of power, clock and use."""
    power_w: Amount | None
    """Mean over the window."""
    energy_j: Amount
    clock_mhz: Amount | None
    busy_percent: PercentOrZero | None
    """Share of the window in which at least one replica executed."""
    healthy: bool = True


class TokenCounts(NamedTuple):
    """Tokens of a language model's requests, as its engine counts them."""

    prompts: Count
    found: Count
    """The part that it had cached, of earlier prompts that begin alike."""
    answers: Count


class ReplicaReading(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """One replica over the window, in which its batches and requests finished."""

    id: Name
    service: Name
    gpu_index: GpuIndex
    state: ReplicaState
    sm_percent: Percent
    batch: BatchSize
    memory_mib: Amount
    batches: Count = 0
    requests: Count = 0
    execution_ms: Amount = 0.0
    """Mean execution time of those batches."""
    tokens: TokenCounts | None = None
    restarts: Count = 0  # how often it was started again while it was commanded


class TaskReading(Wire, frozen=True, kw_only=True):
    """One task over the window."""

    name: Name
    gpu_index: GpuIndex
    state: TaskState
    sm_percent: Percent
    batch: BatchSize
    done_iterations: Iterations
    """Since it was first started anywhere; what a restart would go on from."""
    iteration_ms: Amount = 0.0
    """Mean time of the window's iterations; 0 without any."""


# Counts, which add up over windows and nodes. Defaults are omitted, here and of replicas: not all know tokens.
class ServiceReading(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """One service as this node's router saw it over the window; counts of nodes can be added, rates cannot."""

    service: Name
    arrivals: Count
    served: Count
    in_slo: Count
    """Requests that finished within the SLO's latency."""
    rejected: Count = 0
    """Requests refused, lost with a replica, or left by their clients after the SLO's latency; each is an SLO miss."""
    gone: Count = 0
    """Requests that their clients left before that: no misses, and not served."""
    unmeasured: Count = 0  # served streams that could not be measured; not in the SLO
    queued: Count = 0
    """Requests that wait at the end of the window."""
    output_tokens: Count = 0
    """Tokens in a language model's answers that finished; 0 of other services, and where they are not counted."""
    latency_buckets: Annotated[
        tuple[tuple[Bucket, Count], ...], Meta(max_length=BUCKET_COUNT)
    ] = ()
    """(bucket, count) pairs of the finished requests' latencies, buckets ascending; see `bucket_of`."""


class Overuse(Wire, frozen=True, kw_only=True):
    """Something of which a part has used more than it was granted, for several windows in a row."""

    quantity: Literal["memory", "sm_count", "sm_use"]
    granted: Amount
    used: Amount
    """The most since it began: MiB of memory, else percent of the GPU's SMs."""
    is_estimated: bool = False


class UseReading(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """What one part of a GPU used over the window; the energies of a GPU's parts add up to its own."""

    kind: Literal["replica", "task", "others", "idle"]
    """`others`: processes that are not the node's; `idle`: what was not used."""
    name: Name
    gpu_index: GpuIndex
    service: Annotated[str, Meta(max_length=253)] = ""
    """The service of a replica; empty for all else."""
    memory_used_mib: Amount | None = None
    """None = the driver does not tell."""
    sm_percent: PercentOrZero | None = None
    """Mean share of the GPU's SMs that it kept busy; None = not known."""
    energy_j: Amount
    """Its share of the GPU's measured energy."""
    is_estimated: bool = False
    """SM use, and with it energy, was worked out rather than measured by the driver."""
    over: Annotated[tuple[Overuse, ...], Meta(max_length=3)] = ()


class LaunchFailure(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """A replica or task that did not come up, or ended right afterwards; once per launch."""

    replica: Name
    """Its id; the name of a task."""
    service: Annotated[str, Meta(max_length=253)] = ""
    """The service of a replica; empty for a task."""
    gpu_index: GpuIndex
    detail: Text = ""


class LaunchTime(Wire, frozen=True, kw_only=True):
    """A replica that an agent started and that is ready."""

    replica: Name
    service: Name
    gpu_index: GpuIndex
    seconds: Amount
    """From the start until it was seen ready."""


class Ack(Wire, frozen=True, kw_only=True):
    """What became of the command of one generation."""

    generation: Generation
    status: AckStatus
    detail: Text = ""


class Observation(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a node saw in one window."""

    node: Name
    boot: Name
    """Identity of this start of the agent; a restart counts its sequence from 1 again."""
    # With the boot it names the observation: one that is sent again after a lost answer is counted once.
    sequence: Ordinal
    window_start_s: Amount
    """Unix seconds by the agent's clock."""
    window_s: Annotated[float, Meta(ge=1e-7, le=3600.0)]
    """Clocks in Unix seconds tell no shorter times apart, and what is divided by it stays finite."""
    generation: Generation
    """Generation of the command in force; 0 = none."""
    command_digest: Annotated[str, Meta(max_length=DIGEST_LENGTH)] = ""
    """`agents.base.digests.digest_of` that command."""
    gpus: Annotated[tuple[GpuReading, ...], Meta(max_length=MAX_GPUS)] = ()
    replicas: Annotated[tuple[ReplicaReading, ...], Meta(max_length=1024)] = ()
    services: Annotated[tuple[ServiceReading, ...], Meta(max_length=1024)] = ()
    tasks: Annotated[tuple[TaskReading, ...], Meta(max_length=1024)] = ()
    acks: Annotated[tuple[Ack, ...], Meta(max_length=64)] = ()
    agent_version: Annotated[str, Meta(max_length=253)] = ""
    problems: Annotated[tuple[Text, ...], Meta(max_length=MAX_PROBLEMS)] = ()
    """What the node cannot do, in words."""
    repartition: Annotated[tuple[GpuIndex, ...], Meta(max_length=MAX_GPUS)] = ()
    """Indices of the GPUs whose governor can keep neither cap nor latencies with the SM percents as they are."""
    # 1024 replicas and tasks, and `others` and `idle` of each of MAX_GPUS GPUs.
    uses: Annotated[tuple[UseReading, ...], Meta(max_length=1280)] = ()
    """Who used what of the GPUs, where that was measured."""
    failures: Annotated[tuple[LaunchFailure, ...], Meta(max_length=MAX_LAUNCHES)] = ()
    """Launches that failed since the last observation; `launches`: those that succeeded."""
    launches: Annotated[tuple[LaunchTime, ...], Meta(max_length=MAX_LAUNCHES)] = ()
    awaited: Annotated[tuple[Name, ...], Meta(max_length=1024)] = ()
    """Services that moved to other nodes, and that this one serves on until they are ready there."""


class EngineCommand(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """How a language model's replica is started; it has its GPUs to itself."""

    gpus: Annotated[tuple[GpuIndex, ...], Meta(min_length=1, max_length=8)]
    """All that it spans, that of its own entry first."""
    max_num_batched_tokens: Ordinal
    max_num_seqs: BatchSize
    max_model_len: Ordinal
    precision: Literal["bf16", "fp8", "fp4", "int4"] | None = None
    """That its weights are kept in; None = as they are published."""
    drain_s: Amount
    """It is stopped so long after its last request was sent to it: answers come token by token."""


# Defaults are omitted: agents that know no projects take commands where all is of the default one.
class ReplicaCommand(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """One replica that must run."""

    id: Name
    service: Name
    project: Name = DEFAULT_PROJECT
    network: Name
    sm_percent: Percent
    batch: BatchSize
    memory_mib: Amount
    arrival_rate_rps: Amount
    """The plan's rate for this replica; its share of the service's routing weight."""
    is_spare: bool = False
    """Older control planes say so of some replicas without a rate; agents make nothing of it."""
    engine: EngineCommand | None = None
    """Only language models have one; other requests are answered at once, batch by batch."""


class TaskCommand(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """One task that must run on what the GPU's replicas leave over, or wait in the host's memory."""

    name: Name
    kind: TaskKind
    project: Name = DEFAULT_PROJECT
    network: Name
    batch: BatchSize
    sm_percent: Percent
    memory_mib: Amount
    iterations: Ordinal
    done_iterations: Iterations = 0.0
    """Where it begins when it is started; one that runs goes on from where it is."""
    is_resident: bool = True
    """False: swapped out to the host's memory."""


class GovernorCommand(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """Who turns a GPU's clock and batches while it runs, by `solvers.governors`; the last three are `GovernorTuning`'s.

    The GPU's own command is where it begins, its power cap and its replicas' batches are how far it may go."""

    name: Name
    period_s: Annotated[float, Meta(ge=0.1, le=60.0)] = 1.0
    clocks_mhz: Annotated[tuple[Positive, ...], Meta(min_length=1, max_length=256)]
    """Clocks that may be locked, ascending."""
    power_limit_w: Positive
    """The board's own limit while the governor acts, at least the power cap; the cap itself while it cannot."""
    steady_power_share: Annotated[float, Meta(ge=0.5, le=1.0)] = 0.98
    steady_latency_share: Annotated[float, Meta(ge=0.1, le=0.99)] = 0.9
    largest_clock_step: Annotated[int, Meta(ge=1, le=100)] = 10


class GpuCommand(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU as it must be; a GPU that is not named carries nothing and runs at its defaults."""

    index: GpuIndex
    gpu_type: Name
    clock_mhz: Amount
    """0: not locked."""
    power_cap_w: Amount
    """0: the board's own limit."""
    replicas: tuple[ReplicaCommand, ...] = ()
    tasks: tuple[TaskCommand, ...] = ()
    governor: GovernorCommand | None = None
    """None: clock and batches stay as they are commanded."""
    is_capped: bool = True
    """Whether SM percents sum to 100 at most; else every replica may use all SMs."""


class Route(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """What a router needs to know of a service besides its replicas on this node."""

    service: Name
    slo_ms: Amount
    percentile: Annotated[float, Meta(gt=0.0, lt=1.0)]
    arrival_rate_rps: Amount
    """The plan's rate of the service over all nodes."""
    slo_itl_ms: Positive | None = None
    """From one token to the next; only language models have it, whose `slo_ms` is until the first one."""


class NodeCommand(Wire, frozen=True, kw_only=True):
    """The complete wanted state of one node."""

    node: Name
    generation: Ordinal
    gpus: tuple[GpuCommand, ...] = ()
    routes: tuple[Route, ...] = ()
    """The services with a replica here, and those for which requests may wait here since they run nowhere."""


class LeaseTerms(Wire, frozen=True, kw_only=True):
    """How long a command holds while the control plane is silent, and what the node does then."""

    duration_s: Annotated[float, Meta(ge=1.0, le=1e9)]
    """From the last answer."""
    on_end: LeaseEnd
    """keep: the command stays in force; restore: clocks and power limits go back, governors off, replicas serve on."""


class LogRequest(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a log that somebody waits for; the answer goes to `/api/v1/nodes/{node}/logs/{id}`."""

    id: Name
    kind: Literal["replica", "task"]
    name: Name
    lines: Ordinal | None = None
    """The maximum number, the last ones; None: as many as there is room for."""
    age_s: Amount | None = None
    """Only what was written since so long ago, to a few seconds."""
    after: Position | None = None
    """Only what comes after this position: the end of an earlier answer."""


class LogAnswer(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """That part of the log."""

    text: Annotated[str, Meta(max_length=LOG_BYTES)] = ""
    start: Position = 0
    """Bytes of the log before the text."""
    end: Position = 0
    problem: Text = ""
    """Why there is no log; empty: there is one."""


class SyncReply(Wire, frozen=True, kw_only=True):
    """The control plane's answer to one Observation."""

    boot: Name
    acknowledged: Generation
    """Observations of this boot up to this sequence number are durable."""
    server_time_s: Amount
    command: NodeCommand | None = None
    """None: the generation that the agent reported is the newest."""
    lease: LeaseTerms | None = None
    """None: commands hold for ever."""
    ready_elsewhere: tuple[Name, ...] | UnsetType = UNSET
    """The awaited services of which every planned replica on other nodes is ready; left out where none is awaited."""
    # Base URLs of routers of nodes where they are ready. Left out, as logs, for agents that take no reply with it.
    carriers: dict[Name, tuple[Text, ...]] | UnsetType = UNSET
    logs: tuple[LogRequest, ...] | UnsetType = UNSET
    acquitted: tuple[tuple[GpuIndex, Ordinal], ...] | UnsetType = UNSET
    """GPUs whose critical errors an operator forgives, each with a number that grows from acquittal to acquittal."""
