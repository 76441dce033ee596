"""Counts of one service's requests: how many, how long they took, and two sums that must agree (Little's law).

Latencies are counted in buckets sixteen times as fine as those of the wire contract, so that percentiles are known to
half a percent; the contract's buckets are sums of these.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agents.base.latency_buckets import (
    BUCKET_COUNT,
    BUCKETS_PER_DOUBLING,
    MIN_BUCKET_MS,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARTS = 16
"""Fine buckets in one of the contract's."""
FINE_PER_DOUBLING = PARTS * BUCKETS_PER_DOUBLING
FINE_COUNT = PARTS * (BUCKET_COUNT - 1) + 1
"""Fine bucket i ends at 0.25 ms · 2^(i/64); the first one holds all that is shorter."""

SERVED, IN_SLO, REJECTED = 0, 1, 2
"""Positions in `counts`."""
PRESENT_S, SOJOURN_S = 0, 1
"""Positions in `sums`."""


class ServiceTally:
    """Counts of one service on one node since the last reading, or of all nodes since the start."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.counts: Ints = np.zeros(3, np.int64)
        self.fine: Ints = np.zeros(FINE_COUNT, np.int64)
        """(FINE_COUNT,) finished requests by fine bucket of their latency."""
        self.sums: Floats = np.zeros(2)
        self.output_tokens = 0
        """Tokens of language models' answers that finished."""

    @property
    def served(self) -> int:
        """Requests finished."""
        return int(self.counts[SERVED])

    @property
    def in_slo(self) -> int:
        """Requests finished within the SLO."""
        return int(self.counts[IN_SLO])

    @property
    def rejected(self) -> int:
        """Requests refused or lost."""
        return int(self.counts[REJECTED])

    @property
    def buckets(self) -> Ints:
        """(BUCKET_COUNT,) finished requests by the contract's buckets."""
        return np.concatenate(
            # The first fine bucket is the contract's first; all others come in groups of PARTS.
            [self.fine[:1], self.fine[1:].reshape(-1, PARTS).sum(axis=1)]
        )

    @property
    def present_s(self) -> float:
        """Requests in the system, integrated over time: request-seconds."""
        return float(self.sums[PRESENT_S])

    @property
    def sojourn_s(self) -> float:
        """Summed time that those who left, served or not, had spent in the system."""
        return float(self.sums[SOJOURN_S])

    def reject(self, requests: int, *, after_s: float = 0.0) -> None:
        """Count requests that will never be served; `after_s`: the time that they had spent, summed."""
        self.counts[REJECTED] += requests
        self.sums[SOJOURN_S] += after_s

    def add(self, other: "ServiceTally") -> None:
        """Add another tally to this one."""
        self.arrivals += other.arrivals
        self.counts += other.counts
        self.fine += other.fine
        self.sums += other.sums
        self.output_tokens += other.output_tokens

    def copy(self) -> "ServiceTally":
        """The same counts, which no longer change."""
        same = ServiceTally()
        same.add(self)
        return same

    def since(self, earlier: "ServiceTally") -> "ServiceTally":
        """What was counted after an earlier copy."""
        later = self.copy()
        later.arrivals -= earlier.arrivals
        later.counts -= earlier.counts
        later.fine -= earlier.fine
        later.sums -= earlier.sums
        later.output_tokens -= earlier.output_tokens
        return later

    def latency_ms(self, percentile: float) -> float | None:
        """The latency within which that share (0 to 1) of the finished requests was served; None: none was.

        Inside a bucket latencies are taken to be spread evenly over its logarithm.
        """
        total = int(self.fine.sum())
        if total == 0:
            return None
        below = np.cumsum(self.fine)
        wanted = percentile * total
        place = int(np.searchsorted(below, wanted))
        inside = self.fine[place]
        # An empty bucket can only be met by a percentile of 0, whose place within it does not matter.
        part = 1.0 - (float(below[place]) - wanted) / float(inside) if inside else 1.0
        return MIN_BUCKET_MS * math.exp2((place - 1 + part) / FINE_PER_DOUBLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTotals:
    """Counts of one service over the whole run so far: arrivals = served + rejected + queued."""

    service: str
    arrivals: int
    served: int
    in_slo: int
    rejected: int
    queued: int
    replicas: int
    """Replicas that take requests now."""
    latency_buckets: tuple[int, ...]
    """(BUCKET_COUNT,) finished requests by latency bucket."""
    present_s: float = field(compare=False)
    """Requests in the system, integrated over time, in request-seconds."""
    sojourn_s: float = field(compare=False)
    """Time in the system of all that left, served or not, and of those that are still there, summed: the same by
    Little's law, counted in another way."""
