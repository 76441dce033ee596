"""How many lines of the audit a node may cause: the audit is kept for ever, and a node may flap, or lie.

The first lines of a kind pass, so that a real fault is always seen. Those beyond are counted, and one line per node
says at the end of the hour how many there were.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from app.store.store import AuditEvent

MAX_PER_HOUR = 60
"""Lines of one kind and node, in one process of the API: all GPUs of the largest nodes may fail in the same hour."""

NEVER_DROPPED = frozenset({"TaskFinished"})
"""Checked against the plan and the iterations that are done: a node cannot make it up. Once per task."""

Source: TypeAlias = tuple[str, str]
"""The actor and the kind of lines."""


@dataclass(slots=True, kw_only=True)
class LimitedEvents:
    """The lines of one transaction; they count once it is committed."""

    hour: datetime
    before: Counter[Source]
    """Lines that were written in this hour before the transaction."""
    summary: tuple[AuditEvent, ...] = ()
    """What was dropped in the hour before; to be written with the rest."""
    written: Counter[Source] = field(default_factory=Counter)
    dropped: Counter[Source] = field(default_factory=Counter)

    def passing(self, lines: Iterable[AuditEvent]) -> list[AuditEvent]:
        """Those of the lines that may be written."""
        return [line for line in lines if self._passes(line)]

    def _passes(self, line: AuditEvent) -> bool:
        # By kind, so that a GPU that flaps hides nothing else that its node reports.
        source = (line.actor, line.kind)
        count = self.before[source] + self.written[source]
        passes = count < MAX_PER_HOUR or line.kind in NEVER_DROPPED
        counter = self.written if passes else self.dropped
        counter[source] += 1
        return passes


class EventLimits:
    """What nodes have caused in the present hour, in this process."""

    def __init__(self, on_dropped: Callable[[int], None] = lambda _count: None) -> None:
        """`on_dropped`: told how many lines a transaction has dropped."""
        self._hour: datetime | None = None
        self._written: Counter[Source] = Counter()
        self._dropped: Counter[Source] = Counter()
        self._summary: tuple[AuditEvent, ...] = ()
        """What was dropped in hours before, one line per node; no transaction has written it yet."""
        self._on_dropped = on_dropped

    @contextmanager
    def transaction(self, at: datetime) -> Iterator[LimitedEvents]:
        """Around one transaction, whose lines count where it ends without an exception."""
        events = self._begin(at)
        try:
            yield events
        except BaseException:
            # It was rolled back: another one writes the summary.
            self._summary += events.summary
            raise
        self._count(events)

    def _begin(self, at: datetime) -> LimitedEvents:
        hour = at.replace(minute=0, second=0, microsecond=0)
        if self._begins(hour):
            self._summary += tuple(self._summarised(at))
            self._hour = hour
            self._written, self._dropped = Counter(), Counter()
        # Taken before anything is awaited: of transactions at the same time one alone writes it.
        summary, self._summary = self._summary, ()
        assert self._hour is not None
        return LimitedEvents(hour=self._hour, before=self._written, summary=summary)

    def _begins(self, hour: datetime) -> bool:
        # What was received shortly before the hour counts in it. A clock that is set back further begins an hour, too.
        known = self._hour
        return known is None or hour > known or known - hour > timedelta(hours=1)

    def _count(self, events: LimitedEvents) -> None:
        # Nodes that cause no lines are in neither table: both are bounded by the fleet, and begin again each hour.
        if events.hour == self._hour:
            self._written += events.written
            self._dropped += events.dropped
        if events.dropped:
            self._on_dropped(events.dropped.total())

    def _summarised(self, at: datetime) -> Iterator[AuditEvent]:
        for actor in sorted({actor for actor, _ in self._dropped}):
            counts = ", ".join(
                f"{count} of {kind}"
                for (by, kind), count in sorted(self._dropped.items())
                if by == actor
            )
            yield AuditEvent(
                at=at,
                actor=actor,
                kind="NodeEventsLeftOut",
                subject=actor,
                reason=f"beyond the first {MAX_PER_HOUR} of a kind in the hour from {self._hour:%H:%M} UTC: {counts}",
            )
