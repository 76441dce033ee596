"""The way of one service through a router: who takes the next request, who waits, and what was counted.

No I/O: `agents.router.router` puts HTTP around it. Everything happens in one event loop, so a switch is atomic.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from agents.base.device import ServiceRoute
from agents.base.latency_buckets import bucket_of
from agents.base.protocol import ServiceReading
from agents.router.counts import MAX_COUNT, Counts, Reason
from agents.router.health import ReplicaHealth
from agents.router.lateness import Lateness

MAX_RETRY_S = 60
MIN_RETRY_S = 1


class Overloaded(Exception):
    """The service's queue is full; the request must be answered with "come again"."""


@dataclass(slots=True)
class _Target:
    """One replica that takes new requests; `credit` is the state of the smooth weighted round robin."""

    replica_id: str
    weight: float
    credit: float = 0.0


class ServiceQueue:
    """One service's targets, waiting requests and counters."""

    def __init__(
        self,
        route: ServiceRoute,
        *,
        queue_limit: int,
        replica_limit: int,
        now_s: Callable[[], float] = time.monotonic,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`queue_limit`: requests that wait at most; `replica_limit`: requests that one replica has at most; `on_wait`:
        called when the first request waits that no replica is there for."""
        self._route = route
        self._queue_limit = queue_limit
        self._replica_limit = replica_limit
        self._now_s = now_s
        self._on_wait = on_wait
        self._targets: list[_Target] = []
        """All of the route's that take new requests."""
        self._open: list[_Target] = []
        """Those of them that are not left out for their failures."""
        self._lateness = Lateness(now_s())
        """While it is late, the emptiest replica has the next turn."""
        self._health = ReplicaHealth()
        self._in_flight: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[str]] = deque()
        self._counts = Counts()
        self._total = Counts()
        """The counts of all windows before this one."""
        # NaN compares false to everything, so that the first arrival counts no gap.
        self._last_arrival_s = math.nan
        self.switch(route)

    @property
    def service(self) -> str:
        """Name of the service."""
        return self._route.service

    @property
    def is_model(self) -> bool:
        """Whether it is a language model's."""
        return self._route.slo_itl_ms is not None

    @property
    def is_starting(self) -> bool:
        """Whether its first replica starts."""
        return self._route.is_starting

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, runs, or is still to be read."""
        return (
            not self._waiting
            and not self._in_flight.total()
            and self._counts == Counts()
        )

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica has and has not answered."""
        return self._in_flight[replica_id]

    def switch(self, route: ServiceRoute) -> None:
        """From now on new requests go by this route; those under way stay where they are."""
        self._route = route
        # A plan without rates still has replicas, which then share evenly.
        is_weightless = all(weight <= 0.0 for _, weight in route.shares)
        self._targets = [
            _Target(replica_id, 1.0 if is_weightless else weight)
            for replica_id, weight in route.shares
            if is_weightless or weight > 0.0
        ]
        self._health.set_members(frozenset(each.replica_id for each in self._targets))
        self._reopen()

    def strand(self) -> None:
        """The service starts on another node: what waits does so on, until it is known where it can be passed on to."""
        self.switch(replace(self._route, shares=(), is_starting=True))

    def pass_on(self, peers: Iterable[str]) -> None:
        """Other nodes' routers take what waits."""
        shares = tuple((each, 1.0) for each in peers)
        self.switch(replace(self._route, shares=shares, is_starting=False))

    def close(self) -> None:
        """The service is gone: what waits is turned away, what runs is finished."""
        self._targets, self._open = [], []
        self._health.set_members(frozenset())
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(
                    Overloaded(f"service {self.service} has left this node")
                )

    @property
    def waiting(self) -> int:
        """Requests waiting for a replica."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that replicas have and have not answered."""
        return self._in_flight.total()

    @property
    def busy(self) -> tuple[str, ...]:
        """Replicas with requests that they have not answered."""
        return tuple(self._in_flight)

    @property
    def members(self) -> int:
        """Replicas that the route sends new requests to."""
        return len(self._targets)

    @property
    def answering(self) -> tuple[str, ...]:
        """Replicas that can be asked what is no request."""
        return tuple(each.replica_id for each in self._open)

    @property
    def out(self) -> frozenset[str]:
        """Those of them that get nothing, because they fail."""
        return self._health.out

    def total(self) -> Counts:
        """Everything counted since the queue is there."""
        total = Counts()
        total.add(self._total)
        total.add(self._counts)
        return total

    def arrive(self) -> None:
        """Count a request that came."""
        self._counts.arrivals += 1
        now_s = self._now_s()
        gap_ms = 1000.0 * (now_s - self._last_arrival_s)
        self._last_arrival_s = now_s
        if gap_ms >= 0.0:  # not at the first arrival
            self._counts.gaps[bucket_of(gap_ms)] += 1
            self._counts.gap_ms_sum += gap_ms

    def succeed(self, replica_id: str) -> None:
        """The replica answered well."""
        self._lateness.note_answers(1, self._now_s())
        self._health.succeed(replica_id)

    def fail(self, replica_id: str, *, is_unreachable: bool) -> bool:
        """The replica did not; whether it gets nothing from now on."""
        is_out = self._health.fail(replica_id, is_unreachable=is_unreachable)
        if is_out:
            self._reopen()
        return is_out

    def readmit(self, replica_id: str) -> None:
        """The replica is well again."""
        self._health.readmit(replica_id)
        self._reopen()

    def probe_in_s(self, replica_id: str) -> float:
        """How long to wait before the replica's readiness is asked for again."""
        return self._health.probe_in_s(replica_id)

    def has_other(self, replica_id: str) -> bool:
        """Whether another replica than this one takes requests."""
        return any(each.replica_id != replica_id for each in self._open)

    def retry_after_s(self) -> int:
        """When a rejected request should come again: when the queue has gone by, as fast as answers came lately."""
        rps = self._lateness.answered_rps(self._now_s())
        # Without a recent answer nothing says how fast the queue goes by.
        if rps <= 0.0:
            return MIN_RETRY_S
        seconds = math.ceil(len(self._waiting) / rps)
        return max(MIN_RETRY_S, min(MAX_RETRY_S, seconds))

    def take(self, but: Collection[str] = ()) -> str | None:
        """A replica with room, where no request waits for one; none of those that have refused this one."""
        # The first to come goes first, so no request passes those that wait.
        return None if self._waiting else self._choose(but)

    async def acquire(self) -> str:
        """Wait for a replica with room; its id. Raises Overloaded when too many wait already."""
        if (chosen := self.take()) is not None:
            return chosen
        if len(self._waiting) >= self._queue_limit:
            raise Overloaded(
                f"{len(self._waiting)} requests of service {self.service} are already waiting"
            )
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1 and not self._targets:
            self._on_wait()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(turn.result())  # its turn came while it gave up
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def release(self, replica_id: str) -> None:
        """The replica is done with a request, or will never be."""
        self._in_flight[replica_id] -= 1
        # A replica that is gone must not stay in the counter for ever.
        if not self._in_flight[replica_id]:
            del self._in_flight[replica_id]
        self._hand_out()

    def finish_at_once(self, took_ms: float, tokens: int) -> None:
        """Count a language model's answer of `tokens` tokens that came all at once."""
        itl_ms = self._route.slo_itl_ms or 0.0
        later_ms = itl_ms * max(0, tokens - 1)
        self.finish(max(0.0, took_ms - later_ms), tokens=tokens)

    def finish_unmeasured(self, took_ms: float) -> None:
        """Count a stream whose first token cannot be told from other events: served, and not in time."""
        in_slo = self._counts.in_slo
        self.finish(took_ms)
        self._counts.in_slo = in_slo
        self._counts.unmeasured += 1

    def finish(
        self, latency_ms: float, itl_ms: float | None = None, *, tokens: int = 0
    ) -> None:
        """Count a request that was answered; of a language model until its first token, and from one to the next."""
        limit_ms = self._route.slo_itl_ms
        is_steady = itl_ms is None or limit_ms is None or itl_ms <= limit_ms
        counts = self._counts
        counts.served += 1
        counts.output_tokens = min(counts.output_tokens + tokens, MAX_COUNT)
        counts.in_slo += latency_ms <= self._route.slo_ms and is_steady
        counts.latency_ms_sum += latency_ms
        counts.buckets[bucket_of(latency_ms)] += 1

    def reject(self, reason: Reason = "lost", waited_ms: float = 0.0) -> None:
        """Count a request that was refused or lost; waited_ms: since it came."""
        self._counts.rejected[reason] += 1
        # A deadline may be shorter than the SLO: that it passed says nothing of the replicas then.
        is_late = reason == "expired" and waited_ms >= self._route.slo_ms
        if reason == "full" or is_late:
            self._lateness.note_miss(self._now_s())

    def leave(self, latency_ms: float) -> None:
        """Count a request whose client left, so long after it came or had its first token: a miss if that was late."""
        self.reject("gone")
        self._counts.gone += latency_ms < self._route.slo_ms

    def read(self) -> ServiceReading:
        """The counts since the last reading; starts a new window."""
        counts, self._counts = self._counts, Counts()
        self._total.add(counts)
        return ServiceReading(
            service=self.service,
            arrivals=counts.arrivals,
            served=counts.served,
            in_slo=counts.in_slo,
            rejected=counts.rejected.total() - counts.gone,
            gone=counts.gone,
            unmeasured=counts.unmeasured,
            queued=len(self._waiting) + self._in_flight.total(),
            output_tokens=counts.output_tokens,
            latency_buckets=tuple(sorted(counts.buckets.items())),
        )

    def _reopen(self) -> None:
        out = self._health.out
        self._open = [each for each in self._targets if each.replica_id not in out]
        # Summed up here, because the rule is asked for every request.
        batches = dict(self._route.batches)
        batch_sum = sum(batches.get(each.replica_id, 1) for each in self._open)
        planned_rps = sum(each for _, each in self._route.shares)
        self._lateness.expect(
            planned_rps=planned_rps,
            slo_ms=self._route.slo_ms,
            batch_sum=batch_sum,
        )
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and (chosen := self._choose()) is not None:
            turn = self._waiting.popleft()
            # Its request gave up meanwhile, so the place goes to the next one.
            if turn.done():
                self.release(chosen)
            else:
                turn.set_result(chosen)

    def _choose(self, but: Collection[str] = ()) -> str | None:
        """The next replica with room; takes its place there."""
        # Answers of language models last as long as they are: turns by weight would pile long ones up on one replica.
        is_uneven = self.is_model or self._is_late()
        chosen = self._emptiest(but) if is_uneven else self._next_in_turn(but)
        if chosen is None:
            return None
        self._in_flight[chosen] += 1
        return chosen

    def _is_late(self) -> bool:
        """Whether the replicas cannot keep up, or could not until just now."""
        # With one replica there is nothing to choose.
        if len(self._open) < 2:
            return False
        ahead = len(self._waiting) + self._in_flight.total()
        return self._lateness.is_late(ahead, self._now_s())

    def _emptiest(self, but: Collection[str]) -> str | None:
        """The one that has least to do for its weight: turns by weight suit a steady load alone."""

        def load(each: _Target) -> float:
            return (self._in_flight.get(each.replica_id, 0) + 1) / each.weight

        chosen = min(self._with_room(but), key=load, default=None)
        return None if chosen is None else chosen.replica_id

    def _with_room(self, but: Collection[str]) -> Iterator[_Target]:
        return (
            each
            for each in self._open
            if self._in_flight.get(each.replica_id, 0) < self._replica_limit
            and each.replica_id not in but
        )

    def _next_in_turn(self, but: Collection[str]) -> str | None:
        """The next one by smooth weighted round robin (nginx's).

        Every one with room gains its weight in credit; the richest is chosen and pays the sum.
        """
        best, paid = None, 0.0
        # A replica without room gains no credit, else it would get a burst of requests once it has room.
        for each in self._with_room(but):
            each.credit += each.weight
            paid += each.weight
            if best is None or each.credit > best.credit:
                best = each
        if best is None:
            return None
        best.credit -= paid
        return best.replica_id
