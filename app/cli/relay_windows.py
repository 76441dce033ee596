"""From two readings of a server's own metrics to a window of telemetry, as the API takes it. Pure functions."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from agents.workers.presets import Histogram, ServerCounts
from app.cli.client import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a server told at one moment."""

    at_s: float
    """Unix seconds."""
    counts: ServerCounts


def make_window(source: str, before: Reading, after: Reading, slo_ms: float) -> Document | None:
    """The window between two readings; None where the server does not tell how many it served and how fast.

    Who came is who was answered or failed, and by how many more wait and run than before. Where the server was started
    anew between, what it did since then is all that is known.
    """
    if after.counts.served is None or after.counts.latency is None:
        return None
    latency = after.counts.latency.since(before.counts.latency)
    # Of one reading: a counter of answers may be a request ahead of the histogram.
    served = sum(latency.counts)
    failed = round(_since(after.counts.failed, before.counts.failed))
    more = _at_hand(after.counts) - _at_hand(before.counts)
    return {
        "source": source,
        "window_start": datetime.fromtimestamp(before.at_s, UTC).isoformat(),
        "window_s": after.at_s - before.at_s,
        "arrivals": max(0, served + failed + round(more)),
        "served": served,
        "in_slo": min(served, math.floor(latency.within(slo_ms))),
        "rejected": failed,
        "latency_ms": _buckets(latency),
    }


def _since(now: float | None, before: float | None) -> float:
    if now is None:
        return 0.0
    return now if before is None or now < before else now - before


def _at_hand(counts: ServerCounts) -> float:
    return (counts.waiting or 0.0) + (counts.running or 0.0)


def _buckets(latency: Histogram) -> list[Document]:
    pairs = zip(latency.ends_ms, latency.counts, strict=True)
    return [{"count": count} | ({"up_to_ms": end} if math.isfinite(end) else {}) for end, count in pairs if count]
