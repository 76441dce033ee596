"""What the replicas of a GPU did from poll to poll, out of their servers' counters that only grow."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.base.clock import Clock
from agents.base.device import DeviceError, NotSupported, ReplicaPoll, within
from agents.base.protocol import Amount, Count, ReplicaReading, TokenCounts
from agents.gpu.node.use import GpuUse
from agents.replicas.adapters import ReplicaCounts
from agents.replicas.replica import ReplicaView
from agents.replicas.replicas import Workers
from agents.router.counts import Counts

log = logging.getLogger(__name__)

SILENT_S = 60.0
"""From then on a server that does not show its metrics is a problem of its node."""
PREEMPTED_WITHIN_S = 60.0
MIN_PREEMPTED, MANY_PREEMPTED = 10, 0.1
"""Preemptions in that time, and per request that ended, above which the cache is too small."""


@dataclass(slots=True)
class PollCounters:
    """The counters as they were at the last poll of each GPU."""

    replicas: dict[str, ReplicaCounts] = field(default_factory=dict)
    latencies: dict[tuple[int, str], Counter[int]] = field(default_factory=dict)
    """By GPU and service."""
    _next: dict[tuple[int, str], Counter[int]] = field(default_factory=dict)

    def replica(
        self, view: ReplicaView, counts: ReplicaCounts, service: Counts, *, queued: int
    ) -> ReplicaPoll:
        """One replica since the last poll of its GPU. Raises NotSupported for a server that counts no batches."""
        if counts.batches is None or counts.busy_s is None:
            raise NotSupported(
                f"the server of replica {view.id} does not tell how long its batches take"
            )
        before = self.replicas.get(view.id, ReplicaCounts())
        self.replicas[view.id] = counts
        work = work_between(before, counts)
        key = (view.gpu_index, view.service)
        # Kept for the next poll and not used yet: other replicas of the service are still compared
        # with the last one.
        self._next[key] = Counter(service.buckets)
        new = self._next[key] - self.latencies.get(key, Counter())
        return ReplicaPoll(
            id=view.id,
            batches=work.batches,
            requests=work.requests,
            queued=queued,
            execution_ms=work.execution_ms,
            latency_buckets=tuple(sorted(new.items())),
        )

    def forget_all_but(self, present: Collection[str]) -> None:
        """Replicas that are gone."""
        for replica_id in self.replicas.keys() - present:
            del self.replicas[replica_id]

    def end(self, gpu_index: int) -> None:
        """The poll is over: replicas of one service saw the same latencies, the next poll sees later ones."""
        self.latencies.update(
            {key: counts for key, counts in self._next.items() if key[0] == gpu_index}
        )
        self._next = {
            key: counts for key, counts in self._next.items() if key[0] != gpu_index
        }


class ServerCounters:
    """What servers counted from one reading of the node to the next, and what is wrong with those that count."""

    def __init__(
        self, workers: Workers, use: GpuUse, clock: Clock, *, period_s: float
    ) -> None:
        """`period_s`: between two questions to a server."""
        self._workers, self._use = workers, use
        self._clock, self._period_s = clock, period_s
        self._counted: dict[str, ReplicaCounts] = {}
        self._asked_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}
        """When each answered last, or was first asked."""
        self._minutes: dict[str, _Minute] = {}

    async def read(self, views: Sequence[ReplicaView]) -> tuple[ReplicaReading, ...]:
        """A reading of each replica, whether its server is due to be asked or not."""
        self._forget_all_but({view.id for view in views})
        for view in views:
            # One that sleeps shows nothing, and is none that fell silent. Its counts go on when it wakes.
            if view.state == "asleep":
                self._forget_times(view.id)
        due = [view for view in views if self._is_due(view)]
        # At once: several that do not answer must not make the node itself late.
        answers = await asyncio.gather(*map(self._ask, due))
        known = dict(zip((view.id for view in due), answers, strict=True))
        return tuple(self._reading(view, known.get(view.id)) for view in views)

    @property
    def problems(self) -> tuple[str, ...]:
        """Servers that show no metrics, and language models whose caches are too small for what they are asked."""
        now_s = self._clock.now_s()
        silent = (
            f"replica {each}: its server has not shown its metrics for {now_s - since_s:.0f} s, so that nothing is "
            f"learned of its speed: see `plimsoll logs`, and the path of metrics in its template"
            for each, since_s in sorted(self._answered_s.items())
            if now_s - since_s >= SILENT_S
        )
        full = (each.problem for _, each in sorted(self._minutes.items()))
        return tuple(problem for problem in (*silent, *full) if problem)

    def _is_due(self, view: ReplicaView) -> bool:
        asked_s = self._asked_s.get(view.id, -math.inf)
        is_serving = view.state in ("ready", "draining")
        return is_serving and self._clock.now_s() - asked_s >= self._period_s

    async def _ask(self, view: ReplicaView) -> ReplicaCounts | None:
        """None: it does not tell."""
        now_s = self._asked_s[view.id] = self._clock.now_s()
        self._answered_s.setdefault(view.id, now_s)
        try:
            counts = self._use.noted(view.id, await self._workers.metrics(view.id))
        except DeviceError as error:
            # One that drains may end at any moment, and its port with it.
            is_leaving = view.state == "draining"
            level = logging.DEBUG if is_leaving else logging.WARNING
            log.log(level, "replica %s does not tell what it did: %s", view.id, error)
            if is_leaving:
                self._answered_s[view.id] = now_s
            return None
        self._answered_s[view.id] = now_s
        return counts

    def _reading(
        self, view: ReplicaView, counts: ReplicaCounts | None
    ) -> ReplicaReading:
        """What its server counted since the last reading."""
        before = self._counted.get(view.id, ReplicaCounts())
        after = self._counted[view.id] = counts or before
        work = work_between(before, after)
        # What an adopted server did before is none of this minute's.
        known = before.preemptions is not None
        preempted = grown(before.preemptions, after.preemptions) if known else 0.0
        self._note(view, preempted, work.requests)
        return ReplicaReading(
            id=view.id,
            service=view.service,
            gpu_index=view.gpu_index,
            state=view.state,
            sm_percent=view.sm_percent,
            batch=view.batch,
            memory_mib=view.memory_mib,
            **work._asdict(),
        )

    def _note(self, view: ReplicaView, preempted: float, requests: int) -> None:
        now_s = self._clock.now_s()
        minute = self._minutes.setdefault(view.id, _Minute(now_s))
        minute.add(view, preempted, requests, now_s)

    def _forget_all_but(self, present: Collection[str]) -> None:
        """Counts of replicas that are gone; one that is only being stopped still counts."""
        for replica_id in self._counted.keys() - present:
            del self._counted[replica_id]
            self._forget_times(replica_id)
            self._use.forget(replica_id)

    def _forget_times(self, replica_id: str) -> None:
        for each in (self._asked_s, self._answered_s, self._minutes):
            each.pop(replica_id, None)


@dataclass(slots=True)
class _Minute:
    """How often a language model's engine preempted requests, minute by minute."""

    begun_s: float
    preempted: float = 0.0
    requests: int = 0
    problem: str = ""
    """What was wrong in the last whole minute."""

    def add(
        self, view: ReplicaView, preempted: float, requests: int, now_s: float
    ) -> None:
        """Count, and judge the minute once it is over."""
        self.preempted += preempted
        self.requests += requests
        if now_s - self.begun_s < PREEMPTED_WITHIN_S:
            return
        self.problem = ""
        # Now and then an engine does so at the limit of its cache, which costs little.
        if self.preempted > max(MIN_PREEMPTED, MANY_PREEMPTED * self.requests):
            self.problem = (
                f"replica {view.id} of {view.service} preempted requests {self.preempted:.0f} times in a minute in "
                f"which {self.requests} ended, as they are longer than planned: state longer llm.lengths, or leave "
                "them out so that they are learned"
            )
        self.begun_s, self.preempted, self.requests = now_s, 0.0, 0


class ReplicaWork(NamedTuple):
    """What a replica did between two looks at its counters; fields of a `ReplicaReading`."""

    batches: int
    requests: int
    execution_ms: float
    """Mean of those batches."""
    tokens: TokenCounts | None
    """None: its server counts none."""


def work_between(
    before: ReplicaCounts,
    after: ReplicaCounts,
) -> ReplicaWork:
    """What it did, each figure 0 where what its server says goes beyond the bounds of the wire."""
    batches = int(grown(before.batches, after.batches))
    busy_s = grown(before.busy_s, after.busy_s)
    requests = int(grown(before.requests, after.requests))
    execution_ms = 0.0
    if batches:
        execution_ms = 1000.0 * busy_s / batches
    return ReplicaWork(
        batches=int(within(batches, Count)),
        requests=int(within(requests, Count)),
        execution_ms=within(execution_ms, Amount),
        tokens=_tokens_between(before, after),
    )


def _tokens_between(
    before: ReplicaCounts,
    after: ReplicaCounts,
) -> TokenCounts | None:
    if after.prompt_tokens is None or after.answer_tokens is None:
        return None
    grew = (
        grown(before.prompt_tokens, after.prompt_tokens),
        # Engines without such a cache count nothing of it.
        grown(before.found_tokens, after.found_tokens),
        grown(before.answer_tokens, after.answer_tokens),
    )
    return TokenCounts(*(int(within(each, Count)) for each in grew))


def grown(before: float | None, after: float | None) -> float:
    """By how much a counter has grown; from 0 where its server was started again."""
    if after is None:
        return 0.0
    return after - before if before is not None and after >= before else after
