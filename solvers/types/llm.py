"""Services of language models as a planner sees them: on whole GPUs, one or several per replica.

Part of the contract from version 2 on. The capacity of a way to run one is data: it already holds the percentile, token
lengths, the bursts of arrivals and the margin.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

ItlKind = Literal["token", "request"]
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
