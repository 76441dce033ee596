"""What a server counted between two readings, as windows of telemetry that the control plane takes."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise

from agents.replicas.server_metrics import Histogram, ServerCounts
from app.cli.common.client import Document

MAX_WINDOW_S = 3600.0
"""What the control plane takes."""
MAX_WINDOWS = 23
"""The control plane takes none that began more than a day ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InTime:
    """What a service's SLO counts as in time."""

    until_ms: float
    """Until the answer; of a language model until its first token."""
    itl_ms: float | None = None
    """Only a language model's has one: from one token to the next, in the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """From when to when, in Unix seconds."""

    begin_s: float
    end_s: float

    def parts(self) -> Iterator["Stretch"]:
        """Equal parts that are no longer than a window may be; at least one."""
        count = max(1, math.ceil((self.end_s - self.begin_s) / MAX_WINDOW_S))
        step_s = (self.end_s - self.begin_s) / count
        for number in range(count):
            begin_s = self.begin_s + number * step_s
            yield Stretch(begin_s=begin_s, end_s=begin_s + step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWindow:
    """What a server did over a stretch of time."""

    stretch: Stretch
    arrivals: int
    served: int
    in_slo: int
    rejected: int
    latency: tuple[tuple[float, int], ...]
    """Requests by the end of their bucket (ms); infinity: it has none."""

    def document(self, source: str) -> Document:
        """As the control plane takes it."""
        return {
            "source": source,
            "window_start": self.start,
            "window_s": self.stretch.end_s - self.stretch.begin_s,
            "arrivals": self.arrivals,
            "served": self.served,
            "in_slo": self.in_slo,
            "rejected": self.rejected,
            "latency_ms": [
                # JSON has no infinity: the last bucket has no end.
                {"count": count} | ({"up_to_ms": end} if math.isfinite(end) else {})
                for end, count in self.latency
            ],
        }

    @property
    def start(self) -> str:
        """When it began."""
        return datetime.fromtimestamp(self.stretch.begin_s, UTC).isoformat()

    def plus(self, later: "CountedWindow") -> "CountedWindow | None":
        """Both in one, of which the other one begins where this ends; None: that would be too long."""
        stretch = Stretch(
            begin_s=self.stretch.begin_s,
            end_s=later.stretch.end_s,
        )
        if stretch.end_s - stretch.begin_s > MAX_WINDOW_S:
            return None
        latency: Counter[float] = Counter(dict(self.latency))
        latency.update(dict(later.latency))
        return CountedWindow(
            stretch=stretch,
            arrivals=self.arrivals + later.arrivals,
            served=self.served + later.served,
            in_slo=self.in_slo + later.in_slo,
            rejected=self.rejected + later.rejected,
            latency=tuple(sorted(latency.items())),
        )


def make_windows(
    stretch: Stretch,
    grown: ServerCounts,
    slo: InTime,
    *,
    first_token: Histogram | None = None,
) -> tuple[CountedWindow, ...]:
    """The windows of a stretch, oldest first; none where the server does not tell how many it served and how fast.

    `grown`: how much each of the server's quantities grew in it. Only after a long silence is it several windows, over
    which the counts are spread; the last MAX_WINDOWS of them are returned. `first_token`: the newest that are known,
    for the requests of a language model that end in a stretch in which none begins.
    """
    if grown.served is None or grown.latency is None:
        return ()
    latency = grown.latency
    if slo.itl_ms is not None:
        latency = _scaled(first_token or grown.first_token, sum(latency.counts))
    counts = _Counts.of(grown, sum(grown.latency.counts), latency, slo)
    parts = tuple(stretch.parts())
    made = []
    for number, part in enumerate(parts):
        share = counts.part(number, len(parts))
        made.append(_window(part, share, slo))
    return tuple(made[-MAX_WINDOWS:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    served: int
    latency: Histogram
    """How long those that were served waited for what the SLO counts until; without counts where that is not told."""
    steady_ratio: float
    """The part of them whose tokens followed each other in time."""
    failed: int
    others: int
    """Those that arrived, and were neither served nor refused yet."""

    @classmethod
    def of(
        cls, grown: ServerCounts, served: int, latency: Histogram, slo: InTime
    ) -> "_Counts":
        """Who came is who was answered or refused, by how many more wait and run than before, and who left.

        A client that leaves appears in no counter of answers; after its first token it is in that histogram.
        """
        waiting = _amount(grown.waiting)
        running = _amount(grown.running)
        begun = sum(grown.first_token.counts) if grown.first_token else 0
        came = max(served + waiting + running, begun + waiting)
        failed = _amount(grown.failed)
        return cls(
            served=served,
            latency=latency,
            steady_ratio=_steady_ratio(grown, slo),
            failed=max(0, failed),
            # Where those that waited gave up, fewer wait; those that were served have arrived all the same.
            others=max(0, came - served),
        )

    def part(self, number: int, parts: int) -> "_Counts":
        """One of `parts` equal parts; together they are all of it."""

        def share(count: int) -> int:
            below = count * number // parts
            upto = count * (number + 1) // parts
            return upto - below

        counts = tuple(map(share, self.latency.counts))
        return _Counts(
            served=sum(counts) if any(self.latency.counts) else share(self.served),
            latency=Histogram(ends_ms=self.latency.ends_ms, counts=counts),
            steady_ratio=self.steady_ratio,
            failed=share(self.failed),
            others=share(self.others),
        )


def _scaled(first_token: Histogram | None, served: int) -> Histogram:
    """First tokens as if they were those of the requests that ended meanwhile, whose own are not told."""
    if first_token is None or not any(first_token.counts):
        return Histogram(ends_ms=(), counts=())
    upto = tuple(accumulate(first_token.counts, initial=0))
    ends = [count * served // upto[-1] for count in upto]
    counts = tuple(after - before for before, after in pairwise(ends))
    return Histogram(ends_ms=first_token.ends_ms, counts=counts)


def _steady_ratio(grown: ServerCounts, slo: InTime) -> float:
    """Older servers tell of single gaps alone."""
    gaps = grown.mean_gaps or grown.between_tokens
    if slo.itl_ms is None or gaps is None or not any(gaps.counts):
        return 1.0
    return gaps.within(slo.itl_ms) / sum(gaps.counts)


def _window(stretch: Stretch, counts: _Counts, slo: InTime) -> CountedWindow:
    # Of one reading: a counter of answers may be a request ahead of the histogram.
    latency, served = counts.latency, counts.served
    in_time = latency.within(slo.until_ms) if any(latency.counts) else served
    # Which were late in both ways is not told: those that were late in one are taken to be among those of the other.
    in_slo = min(in_time, served * counts.steady_ratio)
    return CountedWindow(
        stretch=stretch,
        # Who still waits has arrived as well: without them a growing queue would look like falling demand.
        arrivals=served + counts.failed + counts.others,
        served=served,
        # Within a bucket the number is interpolated; it is rounded down, so that no kept SLO is claimed too many.
        in_slo=min(served, math.floor(in_slo)),
        rejected=counts.failed,
        latency=tuple(
            pair
            for pair in zip(latency.ends_ms, latency.counts, strict=True)
            if pair[1]
        ),
    )


def _amount(grown: float | None) -> int:
    # Some exporters say NaN of what they do not know.
    if grown is None or not math.isfinite(grown):
        return 0
    return round(grown)
