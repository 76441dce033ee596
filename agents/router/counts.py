"""What a router counts of one service."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MAX_COUNT = 10**9
"""As `protocol.Count`: what exceeds it would have the entire observation refused."""

Reason: TypeAlias = Literal["full", "expired", "lost", "gone"]
"""Why a request was not served: no room, its deadline passed, no good answer of a replica, its client left."""


@dataclass(slots=True)
class Counts:
    """What was counted; a request is served or rejected once per arrival."""

    arrivals: int = 0
    served: int = 0
    in_slo: int = 0
    latency_ms_sum: float = 0.0
    gap_ms_sum: float = 0.0
    """The sum of the times between arrivals."""
    rejected: Counter[Reason] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    """Latencies of those served; see `latency_buckets.bucket_of`."""
    gaps: Counter[int] = field(default_factory=Counter)
    """Times between arrivals, in the same buckets."""
    gone: int = 0
    """Requests rejected as gone whose clients left before the SLO's latency was over; they are no misses."""
    unmeasured: int = 0
    """Streams of language models that were served and could not be measured; none counts as in time."""
    output_tokens: int = 0
    """Tokens of language models' answers."""

    def add(self, other: "Counts") -> None:
        """Count what another one counted too."""
        self.arrivals += other.arrivals
        self.served += other.served
        self.in_slo += other.in_slo
        self.latency_ms_sum += other.latency_ms_sum
        self.gap_ms_sum += other.gap_ms_sum
        self.rejected.update(other.rejected)
        self.buckets.update(other.buckets)
        self.gaps.update(other.gaps)
        self.gone += other.gone
        self.unmeasured += other.unmeasured
        self.output_tokens += other.output_tokens
