"""How tokens share what there is of a part: seats, of which each holds few at a time, and a budget per second.

A request that finds no seat free waits for one. The next free seat goes to the token that holds the fewest of them, and
among equals to the one that has not had one for the longest time, so that many requests of one token wait for each
other and not for everybody's: the priority and fairness of Kubernetes' API server, with one queue per token.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.api.http.errors import TooMany

FLOWS = 10_000
"""Budgets in memory; the least recently used one is evicted, and is full again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRules:
    """How many requests may hold a seat, and how many may wait."""

    what: str
    """What the seats are for, in the plural: the refusal names it."""
    seats: int
    """In this process."""
    per_token: int
    holder: str = "token"
    """Who shares them, for the refusal's text: each token, unless it says something else."""
    waiting: int = 0
    """Requests of one token that may wait; 0: without a free seat a request is refused at once."""
    wait_s: float = 0.0
    """Longest wait for a seat."""
    retry_after_s: float = 1.0
    """Sent as `Retry-After` with a refusal."""


class FairSeats:
    """The seats of one part."""

    def __init__(self, rules: SeatRules) -> None:
        self._rules = rules
        self._taken: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Event]] = {}
        """Those who wait, by token, in the order in which tokens come next."""

    @asynccontextmanager
    async def taken(self, token: str) -> AsyncIterator[None]:
        """Hold one seat for a token's request. Raises TooMany, which names the limit."""
        await self._sit(token)
        try:
            yield
        finally:
            self._leave(token)

    async def _sit(self, token: str) -> None:
        # This keeps the order: a request that waits could not take this seat, or it would have been given one.
        if self._has_room(token):
            self._taken[token] += 1
            return
        queue = self._queues.get(token, ())
        if len(queue) >= self._rules.waiting:
            raise self._refusal()
        seated = asyncio.Event()
        self._queues.setdefault(token, deque()).append(seated)
        try:
            async with asyncio.timeout(self._rules.wait_s):
                await self._wait(token, seated)
        except TimeoutError:
            raise self._refusal() from None

    async def _wait(self, token: str, seated: asyncio.Event) -> None:
        try:
            await seated.wait()
        except BaseException:
            # The seat may have been given in the very moment in which the wait was ended.
            if seated.is_set():
                self._leave(token)
            else:
                self._queues[token].remove(seated)
                self._forget_if_empty(token)
            raise

    def _has_room(self, token: str) -> bool:
        return (
            self._taken.total() < self._rules.seats
            and self._taken[token] < self._rules.per_token
        )

    def _leave(self, token: str) -> None:
        self._taken[token] -= 1
        # A token that holds nothing is removed, so that the table is no longer than the requests that are served.
        if not self._taken[token]:
            del self._taken[token]
        # The token goes to the end of the order, behind all others that wait.
        if token in self._queues:
            self._queues[token] = self._queues.pop(token)
        waiting = [each for each in self._queues if self._has_room(each)]
        if waiting:
            # `min` takes the first of equals.
            chosen = min(waiting, key=lambda each: self._taken[each])
            self._taken[chosen] += 1
            self._queues[chosen].popleft().set()
            self._forget_if_empty(chosen)

    def _forget_if_empty(self, token: str) -> None:
        if not self._queues[token]:
            del self._queues[token]

    def _refusal(self) -> TooMany:
        rules = self._rules
        return TooMany(
            f"{rules.what}: {rules.per_token} at a time for one {rules.holder} and {rules.seats} for all are the limit",
            retry_after_s=rules.retry_after_s,
        )


class Pace:
    """A budget per flow that is earned at a steady rate: the generic cell rate algorithm (ITU-T I.371)."""

    def __init__(
        self,
        *,
        rate: float,
        burst: float,
        wait_s: float,
        what: str = "requests per second are the limit, where expensive requests count several times; send fewer",
    ) -> None:
        """`rate` is earned per second; `burst` may be spent at once; `wait_s` is the longest wait.

        `what`: how the refusal goes on after the rate.
        """
        self._rate = rate
        self._what = what
        self._burst_s = burst / rate
        self._wait_s = wait_s
        self._spent_until_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Budgets that are remembered."""
        return len(self._spent_until_s)

    def check(self, flow: str, cost: float, now_s: float) -> float:
        """Seconds to wait for what would cost so much; takes nothing. Raises TooMany where they would be too many."""
        wait_s = self._after(flow, cost, now_s) - now_s - self._burst_s
        if wait_s > self._wait_s:
            raise TooMany(f"{self._rate:g} {self._what}", retry_after_s=wait_s)
        return max(0.0, wait_s)

    def take(self, flow: str, cost: float, now_s: float) -> float:
        """Seconds to wait for what costs so much. Raises TooMany, and takes nothing, where they would be too many."""
        wait_s = self.check(flow, cost, now_s)
        self._spent_until_s[flow] = self._after(flow, cost, now_s)
        self._spent_until_s.move_to_end(flow)
        if len(self._spent_until_s) > FLOWS:
            self._spent_until_s.popitem(last=False)
        return wait_s

    def _after(self, flow: str, cost: float, now_s: float) -> float:
        """Until when the flow would have spent what it earns."""
        spent_until_s = max(now_s, self._spent_until_s.get(flow, now_s))
        return spent_until_s + cost / self._rate
