"""The router's counts as Prometheus text (exposition format 0.0.4), written by hand: it is lines of text.

Labels are bounded: services come from the routing table, never from a request, and beyond MAX_SERVICES they are added
up as `(others)`. Histograms have one bucket per doubling; the readings that go to the control plane have four.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from agents.base.latency_buckets import (
    BUCKET_COUNT,
    BUCKETS_PER_DOUBLING,
    bucket_end_ms,
)
from agents.router.counts import Counts, Reason
from agents.router.service_queue import ServiceQueue

MAX_SERVICES = 256
OTHERS = "(others)"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REASONS: tuple[Reason, ...] = ("expired", "full", "gone", "lost")
_ENDS = tuple(range(0, BUCKET_COUNT - 1, BUCKETS_PER_DOUBLING))
"""Buckets whose ends are shown; the last one has no end of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One service's figures."""

    service: str
    counts: Counts
    waiting: int
    running: int
    replicas: int
    replicas_out: int


def shown(service_queues: Iterable[ServiceQueue]) -> tuple[Shown, ...]:
    """By service; those beyond the bound together."""
    each = [
        Shown(
            service=service_queue.service,
            counts=service_queue.total(),
            waiting=service_queue.waiting,
            running=service_queue.running,
            replicas=service_queue.members,
            replicas_out=len(service_queue.out),
        )
        for service_queue in sorted(
            service_queues, key=lambda service_queue: service_queue.service
        )
    ]
    # A label per service is bounded, or a node of many services would swamp the monitoring.
    named, rest = each[:MAX_SERVICES], each[MAX_SERVICES:]
    return (*named, _together(rest)) if rest else tuple(named)


def _together(services: Sequence[Shown]) -> Shown:
    counts = Counts()
    for each in services:
        counts.add(each.counts)
    return Shown(
        service=OTHERS,
        counts=counts,
        waiting=sum(each.waiting for each in services),
        running=sum(each.running for each in services),
        replicas=sum(each.replicas for each in services),
        replicas_out=sum(each.replicas_out for each in services),
    )


def exposition(services: Sequence[Shown], *, unknown: int) -> str:
    """All metrics. `unknown`: requests for services that the node does not know."""
    by_service = [(f'service="{_escaped(each.service)}"', each) for each in services]
    # All reasons stand there from the start, since a rate over a series that just appeared is unknown.
    rejected = [
        (f'{label},reason="{reason}"', each.counts.rejected[reason])
        for label, each in by_service
        for reason in REASONS
    ]
    lines = [
        *_families("counter", _COUNTERS, by_service),
        *_family(
            "rejected_total", "counter", "Requests that were refused or lost.", rejected
        ),
        *_families("gauge", _GAUGES, by_service),
        *_family(
            "unknown_service_total",
            "counter",
            "Requests for services that the node does not know.",
            [("", unknown)],
        ),
    ]
    lines += _head(
        "latency_ms", "histogram", "Latency of the requests that were answered."
    )
    for label, each in by_service:
        lines += _histogram(
            "latency_ms", label, each.counts.buckets, each.counts.latency_ms_sum
        )
    lines += _head("arrival_gap_ms", "histogram", "Time between two arrivals.")
    for label, each in by_service:
        lines += _histogram(
            "arrival_gap_ms", label, each.counts.gaps, each.counts.gap_ms_sum
        )
    return "\n".join(lines) + "\n"


_Quantity: TypeAlias = tuple[str, str, Callable[[Shown], int]]
"""Name, help text, and its value for a service."""
_COUNTERS: tuple[_Quantity, ...] = (
    ("arrivals_total", "Requests that arrived.", lambda each: each.counts.arrivals),
    ("served_total", "Requests that were answered.", lambda each: each.counts.served),
    ("in_slo_total", "Of these, within the SLO.", lambda each: each.counts.in_slo),
    (
        "gone_total",
        "Of those rejected as gone, before the SLO's latency was over; no misses.",
        lambda each: each.counts.gone,
    ),
    (
        "unmeasured_total",
        "Of those answered, streams of unknown APIs; none counts as within the SLO.",
        lambda each: each.counts.unmeasured,
    ),
    (
        "output_tokens_total",
        "Tokens in answers of language models.",
        lambda each: each.counts.output_tokens,
    ),
)
_GAUGES: tuple[_Quantity, ...] = (
    ("waiting", "Requests waiting for a replica.", lambda each: each.waiting),
    ("running", "Requests being served by replicas.", lambda each: each.running),
    ("replicas", "Replicas in the routing table.", lambda each: each.replicas),
    (
        "replicas_out",
        "Of these, excluded after failures.",
        lambda each: each.replicas_out,
    ),
)


def _families(
    kind: str, quantities: Iterable[_Quantity], services: Sequence[tuple[str, Shown]]
) -> list[str]:
    return [
        line
        for name, text, value_of in quantities
        for line in _family(
            name, kind, text, [(label, value_of(each)) for label, each in services]
        )
    ]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [
        f"# HELP plimsoll_router_{name} {text}",
        f"# TYPE plimsoll_router_{name} {kind}",
    ]


def _family(
    name: str, kind: str, text: str, samples: Iterable[tuple[str, int]]
) -> list[str]:
    values = [f"plimsoll_router_{name}{{{label}}} {value}" if label else f"plimsoll_router_{name} {value}"
              for label, value in samples]  # fmt: skip
    return [*_head(name, kind, text), *values]


def _histogram(
    name: str, label: str, buckets: Counter[int], total_ms: float
) -> list[str]:
    lines, below = [], 0
    for end, counted in groupby(
        range(_ENDS[-1] + 1), key=lambda bucket: -(-bucket // BUCKETS_PER_DOUBLING)
    ):
        below += sum(buckets[bucket] for bucket in counted)
        lines.append(
            f'plimsoll_router_{name}_bucket{{{label},le="{bucket_end_ms(_ENDS[end]):g}"}} {below}'
        )
    count = buckets.total()
    return [
        *lines,
        f'plimsoll_router_{name}_bucket{{{label},le="+Inf"}} {count}',
        f"plimsoll_router_{name}_sum{{{label}}} {total_ms:.3f}",
        f"plimsoll_router_{name}_count{{{label}}} {count}",
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
