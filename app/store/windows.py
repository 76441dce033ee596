"""Agents' windows → sums over the loop's windows; both stores follow these rules.

The loop's windows are aligned to multiples of `PolicySettings.window_s`. Agents report at multiples of their own
period, always a little late; a reading counts, undivided, in the window whose end is nearest to its own, so that a
window is complete soon after it is over. A reading of an agent that was held up covers several windows; it counts in
equal parts in each of them, or it would look like a burst.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from agents.base.protocol import Observation
from app.store.launch_book import FAILURES
from app.store.store import ServiceWindow
from solvers.types.llm import ServedLengths
from solvers.types.state import Service

OLDEST_WINDOW_S = 7 * 86400.0
"""An agent that was cut off sends what it kept; a window that claims to be older comes from a wrong clock."""

LATENESS = 0.5
"""Agents report at each multiple of their period, always a little late: by less than this share of the window."""

WINDOWS_IN_SNAPSHOT = 60
"""Fewest windows per service in a snapshot: a minute at the default length, the default downscale delay."""

MAX_WINDOWS = 600
"""Ten minutes at the default length, Ray Serve's default downscale delay; a longer delay acts as this one."""

MAX_ROWS = 8_000
"""Rows of windows that one observation may add to, a second of PostgreSQL's time: 80 s of a hundred services. What it
covers beyond them is in the totals by hour alone."""

NOTABLE_DEVIATIONS = 4.0
"""Arrivals this number of standard deviations (Poisson) above the planned ones wake the loop: chance alone does so once
in 30,000 windows."""

WindowKey = tuple[str, int]
"""(service, number of the window: its start divided by its length)."""


class EngineTokens(NamedTuple):
    """What engines of language models count of their requests; bursts do not matter here, so that no window has it."""

    requests: int = 0
    """That were answered."""
    prompts: int = 0
    found: int = 0
    """The part of the prompts' tokens that engines had cached."""
    answers: int = 0

    def plus(self, other: "EngineTokens") -> "EngineTokens":
        """The counts of both."""
        return EngineTokens(*map(sum, zip(self, other, strict=True)))

    def means(self, service: str) -> ServedLengths:
        """How long the requests were; at least one was answered."""
        prompt = self.prompts / self.requests
        output = self.answers / self.requests
        found = self.found / max(1, self.prompts)
        # Servers are their tenants' own programs, which may count anything.
        return ServedLengths(
            service,
            prompt=max(1.0, prompt),
            output=max(1.0, output),
            found_share=min(1.0, found),
        )


NO_TOKENS = EngineTokens()


@dataclass(slots=True, kw_only=True)
class Sums:
    """Counts of one service over all nodes."""

    arrivals: int = 0
    served: int = 0
    in_slo: int = 0
    rejected: int = 0
    gone: int = 0
    """Requests that their clients left in time: neither served nor missed."""
    unmeasured: int = 0
    """Served streams that could not be measured."""
    pending: int = 0
    """As of `ServiceWindow`."""
    output_tokens: int = 0
    """That routers counted."""
    engine_tokens: EngineTokens = NO_TOKENS
    latency_buckets: dict[int, int] = field(default_factory=dict)

    def add(self, other: "Sums") -> None:
        """Add the counts of another part."""
        self.arrivals += other.arrivals
        self.served += other.served
        self.in_slo += other.in_slo
        self.rejected += other.rejected
        self.gone += other.gone
        self.unmeasured += other.unmeasured
        self.pending += other.pending
        self.output_tokens += other.output_tokens
        self.engine_tokens = self.engine_tokens.plus(other.engine_tokens)
        for bucket, count in other.latency_buckets.items():
            self.latency_buckets[bucket] = self.latency_buckets.get(bucket, 0) + count

    def part(self, index: int, parts: int) -> "Sums":
        """One of `parts` nearly equal parts, which add up to the whole."""
        counts = (
            *("arrivals", "served", "in_slo", "rejected"),
            *("gone", "unmeasured", "output_tokens"),
        )
        parted = replace(
            self,
            latency_buckets={
                bucket: part
                for bucket, count in self.latency_buckets.items()
                if (part := _part(count, index, parts))
            },
        )
        for name in counts:
            setattr(parted, name, _part(getattr(self, name), index, parts))
        return parted


def _part(count: int, index: int, parts: int) -> int:
    # Differences of rounded-down running sums: the parts add up to the count, whatever it is.
    return count * (index + 1) // parts - count * index // parts


def placed_start_s(observation: Observation, received_s: float) -> float:
    """Start of the agent's window, moved where need be: it ended before it was received and is not absurdly old."""
    # A clock that is ahead would put counts into windows that are still to come.
    latest = received_s - observation.window_s
    return min(max(observation.window_start_s, received_s - OLDEST_WINDOW_S), latest)


def window_number(end_s: float, window_s: float) -> int:
    """Number of the loop's window in which an agent's window counts, whose end it missed by less than LATENESS."""
    return math.ceil(end_s / window_s - LATENESS) - 1


def parts_of(
    observation: Observation,
    end_s: float,
    window_s: float,
) -> Iterator[tuple[WindowKey, Sums]]:
    """The counts of every service by the windows in which they count; `end_s`: where the agent's window ends.

    Of a longer stretch than any snapshot holds, or than MAX_ROWS allow, the newest windows alone.
    """
    newest = window_number(end_s, window_s)
    # Agents' periods need not divide the loop's window, so the nearest number of windows is taken.
    covered = max(1, round(observation.window_s / window_s))
    rows_each = max(1, len(observation.services))
    limit = max(1, min(covered, MAX_WINDOWS, MAX_ROWS // rows_each))
    # A replica that starts was asked for: the requests that it is for may have given up meanwhile, and come again. One
    # that starts again and again is for them only while they wait, or it would be kept by its own failing for ever.
    starting = Counter(
        each.service
        for each in observation.replicas
        if each.state == "starting" and each.restarts < FAILURES
    )
    for service, counts in sums_of(observation):
        counts.pending += starting[service]
        # From the newest backwards, so that the limit cuts the oldest.
        for part in range(limit):
            yield (
                (service, newest - part),
                counts if covered == 1 else counts.part(part, covered),
            )


def sums_of(observation: Observation) -> Iterator[tuple[str, Sums]]:
    """The counts of every service in one observation."""
    # Copies: what a book adds up must not change the reading that it came with.
    for reading in observation.services:
        yield (
            reading.service,
            Sums(
                arrivals=reading.arrivals,
                served=reading.served,
                in_slo=reading.in_slo,
                rejected=reading.rejected,
                gone=reading.gone,
                unmeasured=reading.unmeasured,
                pending=reading.queued,
                output_tokens=reading.output_tokens,
                latency_buckets=dict(reading.latency_buckets),
            ),
        )


def engine_sums_of(observation: Observation) -> Iterator[tuple[str, Sums]]:
    """What the engines of language models counted in one observation."""
    for replica in observation.replicas:
        if replica.tokens is not None:
            tokens = EngineTokens(replica.requests, *replica.tokens)
            yield replica.service, Sums(engine_tokens=tokens)


def snapshot_numbers(
    now_s: float,
    window_s: float,
    services: Iterable[Service] = (),
) -> range:
    """Numbers of the windows that a snapshot holds, the one that is open now among them.

    As many as the longest delay of the services needs, at least WINDOWS_IN_SNAPSHOT, at most MAX_WINDOWS.
    """
    delays_s = [
        max(one.scaling.upscale_delay_s, one.scaling.downscale_delay_s)
        for one in services
    ]
    needed = math.ceil(max(delays_s, default=0.0) / window_s) + 1
    count = min(max(needed, WINDOWS_IN_SNAPSHOT), MAX_WINDOWS)
    # The open window is included: a burst should be seen before its window is over.
    stop = math.floor(now_s / window_s) + 1
    return range(stop - count, stop)


def make_windows(
    sums: Mapping[WindowKey, Sums], window_s: float
) -> tuple[ServiceWindow, ...]:
    """The windows of a snapshot, by start and service."""
    keys = sorted(sums, key=lambda key: (key[1], key[0]))
    return tuple(
        make_window(service, number * window_s, window_s, sums[service, number])
        for service, number in keys
    )


def make_window(
    service: str,
    start_s: float,
    window_s: float,
    counts: Sums,
) -> ServiceWindow:
    """One window of a snapshot."""
    return ServiceWindow(
        service=service,
        start=datetime.fromtimestamp(start_s, UTC),
        window_s=window_s,
        arrivals=counts.arrivals,
        served=counts.served,
        in_slo=counts.in_slo,
        rejected=counts.rejected,
        pending=counts.pending,
        latency_buckets=tuple(sorted(counts.latency_buckets.items())),
    )


def add_all(parts: Iterable[tuple[WindowKey, Sums]]) -> dict[WindowKey, Sums]:
    """Sums by key."""
    totals: dict[WindowKey, Sums] = {}
    for key, sums in parts:
        totals.setdefault(key, Sums()).add(sums)
    return totals


def is_notable(arrivals: int, planned_rps: float, window_s: float) -> bool:
    """Whether more came in a window than chance explains at the rate that was planned for: a tick should answer now."""
    planned = planned_rps * window_s
    # Poisson's variance is its mean; at least one request, so that a service that is asked rarely wakes no loop.
    return arrivals > planned + NOTABLE_DEVIATIONS * math.sqrt(max(planned, 1.0))
