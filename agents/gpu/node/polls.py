"""What the replicas of a GPU did from poll to poll, out of counters that only grow."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.base.device import NotSupported, ReplicaPoll, within
from agents.base.protocol import Amount, Count, TokenCounts
from agents.replicas.adapters import ReplicaCounts
from agents.replicas.replica import ReplicaView
from agents.router.counts import Counts


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

    def end(self, gpu_index: int) -> None:
        """The poll is over: replicas of one service saw the same latencies, the next poll sees later ones."""
        self.latencies.update(
            {key: counts for key, counts in self._next.items() if key[0] == gpu_index}
        )
        self._next = {
            key: counts for key, counts in self._next.items() if key[0] != gpu_index
        }


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
    """By how much a counter has grown; from 0 where its server was started anew."""
    if after is None:
        return 0.0
    return after - before if before is not None and after >= before else after
