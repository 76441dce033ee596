"""Buckets in which latencies are counted: counts of any windows and nodes add up, and quantiles follow from them."""

import math

BUCKETS_PER_DOUBLING = 4
MIN_BUCKET_MS = 0.25
BUCKET_COUNT = 80
"""Bucket i ends at 0.25 ms · 2^(i/4): 0.25 ms to 0.25 · 2^19.75 ms = 220 s in steps of 19 %."""


def bucket_of(latency_ms: float) -> int:
    """Index of the latency bucket: the first whose end is not below `latency_ms`; the last takes all longer ones."""
    # The logarithm of 0 has no value, and clocks may give 0.
    if latency_ms <= MIN_BUCKET_MS:
        return 0
    return min(
        BUCKET_COUNT - 1,
        math.ceil(BUCKETS_PER_DOUBLING * math.log2(latency_ms / MIN_BUCKET_MS)),
    )


def bucket_end_ms(bucket: int) -> float:
    """Upper end of a latency bucket."""
    return float(MIN_BUCKET_MS * 2.0 ** (bucket / BUCKETS_PER_DOUBLING))
