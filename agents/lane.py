"""The way of one service through a router: who takes the next request, who waits, and what was counted.

No I/O: `agents.router` puts HTTP around it. Everything happens in one event loop, so a switch is atomic.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

from agents.device import ServiceRoute
from agents.protocol import ServiceReading, bucket_of


class Overloaded(Exception):
    """The service's queue is full; the request must be answered with "come again"."""


@dataclass(slots=True)
class _Counts:
    """Of the window since the last reading."""

    arrivals: int = 0
    served: int = 0
    in_slo: int = 0
    rejected: int = 0
    buckets: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Target:
    """One replica that takes new requests; `credit` is the state of the smooth weighted round robin."""

    replica_id: str
    weight: float
    credit: float = 0.0


class Lane:
    """One service's targets, waiting requests and counters."""

    def __init__(self, route: ServiceRoute, *, queue_limit: int, replica_limit: int) -> None:
        """`queue_limit`: requests that wait at most; `replica_limit`: requests that one replica has at most."""
        self._route = route
        self._queue_limit = queue_limit
        self._replica_limit = replica_limit
        self._targets: list[_Target] = []
        self._in_flight: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[str]] = deque()
        self._counts = _Counts()
        self.switch(route)

    @property
    def service(self) -> str:
        """Name of the service."""
        return self._route.service

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, runs, or is still to be read."""
        return not self._waiting and not self._in_flight.total() and self._counts == _Counts()

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica has and has not answered."""
        return self._in_flight[replica_id]

    def switch(self, route: ServiceRoute) -> None:
        """From now on new requests go by this route; those under way stay where they are."""
        self._route = route
        is_weightless = all(weight <= 0.0 for _, weight in route.shares)
        self._targets = [
            _Target(replica_id, 1.0 if is_weightless else weight)
            for replica_id, weight in route.shares
            if is_weightless or weight > 0.0
        ]
        self._hand_out()

    def close(self) -> None:
        """The service is gone: what waits is turned away, what runs is finished."""
        self._targets = []
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(Overloaded(f"service {self.service} has left this node"))

    def arrive(self) -> None:
        """Count a request that came."""
        self._counts.arrivals += 1

    async def acquire(self) -> str:
        """Wait for a replica with room; its id. Raises Overloaded when too many wait already."""
        if not self._waiting and (chosen := self._choose()) is not None:
            return chosen
        if len(self._waiting) >= self._queue_limit:
            raise Overloaded(f"{len(self._waiting)} requests of service {self.service} wait already")
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
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
        if not self._in_flight[replica_id]:
            del self._in_flight[replica_id]
        self._hand_out()

    def finish(self, latency_ms: float) -> None:
        """Count a request that was answered."""
        self._counts.served += 1
        self._counts.in_slo += latency_ms <= self._route.slo_ms
        self._counts.buckets[bucket_of(latency_ms)] += 1

    def reject(self) -> None:
        """Count a request that was refused or lost."""
        self._counts.rejected += 1

    def read(self) -> ServiceReading:
        """The counts since the last reading; starts a new window."""
        counts, self._counts = self._counts, _Counts()
        return ServiceReading(
            service=self.service,
            arrivals=counts.arrivals,
            served=counts.served,
            in_slo=counts.in_slo,
            rejected=counts.rejected,
            queued=len(self._waiting) + self._in_flight.total(),
            latency_buckets=tuple(sorted(counts.buckets.items())),
        )

    def _hand_out(self) -> None:
        while self._waiting and (chosen := self._choose()) is not None:
            turn = self._waiting.popleft()
            if turn.done():
                self.release(chosen)
            else:
                turn.set_result(chosen)

    def _choose(self) -> str | None:
        """The next replica by smooth weighted round robin (nginx's), among those with room; takes its place there.

        Every one with room gains its weight in credit; the richest is chosen and pays the sum.
        """
        free = [each for each in self._targets if self._in_flight[each.replica_id] < self._replica_limit]
        if not free:
            return None
        for each in free:
            each.credit += each.weight
        best = max(free, key=lambda each: each.credit)
        best.credit -= sum(each.weight for each in free)
        self._in_flight[best.replica_id] += 1
        return best.replica_id
