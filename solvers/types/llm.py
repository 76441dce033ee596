"""Services of language models as a planner sees them: on whole GPUs, one or several per replica.

Part of the contract from version 2 on. The capacity of a way to run one is data: it already holds the percentile, token
lengths, the bursts of arrivals and the margin.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

ItlKind = Literal["token", "request"]
MAX_TP = 8
"""GPUs that a replica spans at most."""
MAX_CONTEXT = 1_048_576
"""Tokens that the longest request, with its answer, has at most."""
MAX_LOAD = 0.8
"""The share of the rate at which a replica saturates that plans count on at most: beyond it no law of rates holds."""
Degree = Literal[1, 2, 4, 8]
Precision = Literal["bf16", "fp8", "fp4", "int4"]
"""What the weights of linear layers are kept in; embedding and output stay in bf16."""
Provenance = Literal["measured", "calibrated", "predicted", "unmeasured"]
"""How well rows are known: measured themselves, corrected by measurements nearby, or from data sheets alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSlo:
    """What a service promises of its tokens."""

    ttft_ms: float
    """Until the first token, the way into the engine and back included."""
    itl_ms: float
    """Between one token and the next."""
    percentile: float
    """0.5 to 0.999: the share of requests, or of tokens, within each."""
    itl: ItlKind = "token"
    """Whether `itl_ms` holds for single tokens, or for the mean of each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmTerms:
    """What a team states of a language model's service beyond its time to the first token, the latency of its `Slo`."""

    itl_ms: float
    itl: ItlKind = "token"
    precision: Precision | None = None
    """None = as the network's publisher states."""
    learns_lengths: bool = False
    """Whether the means that follow hold only until its replicas have counted enough requests."""
    # Means of conversations (Azure's hour of 2023), as `solvers.llm.lengths` has them.
    prompt_tokens: float = 1155.0
    """Mean of a request."""
    output_tokens: float = 211.0
    """Mean of an answer."""
    spread: float = 1.0
    """Standard deviation of the logarithm of both; 0: all are alike."""
    max_model_len: int = 16_384
    """Tokens of the longest prompt with its answer."""
    tp: Degree | None = None
    """GPUs that each replica must span; None = as many as is best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmDataSheet:
    """What a GPU type's maker states that language models run by. Peaks are dense, without structured sparsity."""

    memory_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    """None = the type computes 8-bit weights in bf16; the same for 4 bits, which are then computed in 8."""
    fp4_tflops: float | None = None
    link_gb_per_s: float | None = None
    """From one GPU to another of the node, one way; None = a replica cannot span GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmDemand:
    """One language model's service: its SLO, the rate to serve, and its limits (`services[]` of kind `llm`)."""

    name: str
    network: str
    slo: TokenSlo
    arrival_rate_rps: float
    lengths: str = ""
    """The distribution of token lengths that the rows were made with, by its name."""
    arrival_cv: float = 1.0
    """Coefficient of variation of the gaps between requests; 1 for a Poisson process."""
    priority: float = 1.0
    """> 0, higher is more."""
    min_replicas: int = 0
    max_replicas: int | None = None
    allowed_gpu_types: tuple[str, ...] | None = None
    """None = all."""
    max_replica_rps: float | None = None
    """What counts of a replica's capacity, so that no loss takes too much at once; None = all of it. Ours, as that of
    other services is."""

    def allows(self, gpu_type: str) -> bool:
        """Whether the service may run on that GPU type."""
        return self.allowed_gpu_types is None or gpu_type in self.allowed_gpu_types


class LlmRow(NamedTuple):
    """One way to run a replica; the order of the fields is that of the contract's rows."""

    tp: int
    """GPUs of one node that it spans: a power of two."""
    max_num_batched_tokens: int
    max_num_seqs: int
    sm_percent: float
    """100: whole GPUs."""
    clock_mhz: float
    capacity_rps: float
    memory_mib_per_gpu: float
    power_w_per_gpu: float
    """Watts that it adds to the idle watts of each of its GPUs."""
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmPoints:
    """All ways to run one service on one GPU type."""

    service: str
    gpu_type: str
    network: str
    provenance: Provenance
    rows: tuple[LlmRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """How long the steps of a network's engine take: what the capacities of rows were found with, for audits."""

    network: str
    gpu_type: str
    tp: int
    tokens: tuple[float, ...]
    """(K,) tokens of a step, ascending."""
    step_ms: tuple[float, ...]
    """(K,) what a step of k tokens takes, without what follows."""
    per_sequence_ms: float
    per_cached_token_ms: float
    per_attended_pair_ms: float
    prompt_step_ms: float
    """What every step with a part of a prompt takes besides."""
    request_ms: float
    """On a request's way into the engine and back."""
    per_1000_prompt_tokens_ms: float
    """The same, by the length of its prompt."""
    kv_tokens: float
    """That the cache holds."""
    request_steps: float = 0.0
    """Steps that a request waits for on its way, each as long as their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPairs:
    """Paired token counts of prompts and answers that stand for all requests, for audits."""

    name: str
    input_tokens: tuple[int, ...]
    """(R,)"""
    output_tokens: tuple[int, ...]
    """(R,)"""


MAX_LENGTH_PAIRS = 4096

SPEED_SLOPE = 0.5
"""So much of the logarithm of sequences is that of times between tokens, roughly: weights are read for all at once."""


class ServedSpeed(NamedTuple):
    """How fast the replicas of one kind were lately, as they counted themselves."""

    service: str
    gpu_type: str
    tp: int
    max_num_batched_tokens: int
    sequences: float
    """That each decoded at a time, on average; ≥ 1."""
    itl_ms: float
    """Mean time from one token to the next."""

    @property
    def kind(self) -> tuple[str, str, int, int]:
        """Which replicas it is of."""
        return self.service, self.gpu_type, self.tp, self.max_num_batched_tokens


class ServedLengths(NamedTuple):
    """How long a service's requests were lately, in tokens, as its replicas counted them."""

    service: str
    prompt: float
    """Mean."""
    output: float
    """Mean of answers."""
    found_share: float
    """The part of prompts that replicas had cached, of earlier ones that begin alike; 0 to 1."""


class ServedStart(NamedTuple):
    """How long a service's replicas took lately from their start until they were ready, on one GPU type."""

    service: str
    gpu_type: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRun:
    """A benchmark of a language model's server, as its owner states it: each client sends one request at a time."""

    gpu_type: str
    tp: int = 1
    precision: Precision = "bf16"
    clients: float
    prompt_tokens: float
    """Mean."""
    output_tokens: float
    """Mean."""
    tpot_ms: float
    """Mean time from one token to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmNetwork:
    """What is stated of a language model's network."""

    config: str = ""
    """Its `config.json`, in one form; empty: it ships."""
    runs: tuple[StatedRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """What the replicas of language models themselves say."""

    speeds: tuple[ServedSpeed, ...] = ()
    lengths: tuple[ServedLengths, ...] = ()
    starts: tuple[ServedStart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmReplicaPlan:
    """`count` replicas that are alike, each on `tp` whole GPUs of one node."""

    service: str
    gpu_type: str
    tp: int
    count: int = 1
    clock_mhz: float
    max_num_batched_tokens: int
    max_num_seqs: int
    arrival_rate_rps: float
    """The rate routed to one of them."""

    @property
    def gpus(self) -> int:
        """GPUs that they take together."""
        return self.count * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmEngineSettings:
    """How one bound replica of a language model is started; another setting needs another start."""

    gpus: tuple[str, ...]
    """Ids of all GPUs that it spans, that of its own entry first."""
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    precision: Precision | None = None
    """None = as the network's publisher states."""
