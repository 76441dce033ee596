"""Guessed tokens: from where unknown ones come, how that is slowed down, and who is told.

An address from which many different unknown tokens come within a minute is answered 429, with a `Retry-After` that
doubles each time; the audit has one line of it. From then on its unknown tokens are looked up as often as one token may
send requests and no more, for the load: 256 random bits are guessed at no rate. The holder of a valid token at the
same address (NAT) may wait a moment.
"""

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import IPv6Address

from starlette.types import Scope

from agents.base.addresses import plain_ip
from app.api.caches.request_metrics import ApiMetrics
from app.api.http.errors import TooMany
from app.api.http.fairness import Pace
from app.base.clock import ControlClock
from app.base.errors import Unavailable
from app.db.base.transaction import translated
from app.store.store import AuditEvent, Store

GUESSES = 20
"""Different unknown tokens in a minute. Of an agent whose token was revoked there is one, however often it comes."""
WINDOW_S = 60.0
MAX_BACK_OFF_S = 60.0
LOOK_UP_BURST_S = 4.0
LOOK_UP_WAIT_S = 5.0
ADDRESSES = 1000
"""Addresses in memory; the least recently seen one is evicted."""
EVENTS_PER_S = 0.1
"""Many addresses may guess at once, and the audit is read by people; the metric counts all."""


@dataclass(slots=True)
class _Failures:
    """What came from one address."""

    ends_s: float
    """When the entry expires."""
    seen: set[bytes] = field(default_factory=set)
    """Hashes of different tokens, GUESSES of them at most."""
    back_off_s: float = 0.0
    """The last `Retry-After`; 0: none was sent, since a few unknown tokens may be a mistake."""


class Guesses:
    """The addresses from which unknown tokens came."""

    def __init__(
        self, store: Store, clock: ControlClock, metrics: ApiMetrics, *, rate: float
    ) -> None:
        """`rate`: unknown tokens per second that are looked up for an address that guesses."""
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._look_ups = Pace(
            rate=rate, burst=LOOK_UP_BURST_S * rate, wait_s=LOOK_UP_WAIT_S
        )
        self._events = Pace(rate=EVENTS_PER_S, burst=10.0, wait_s=0.0)

    async def wait(self, address: str) -> None:
        """Wait before an unknown token is looked up; addresses that did not guess do not wait."""
        found = self._failures.get(address)
        # A budget per address: who guesses at one must not make those at others wait.
        if found is not None and found.back_off_s and found.ends_s > _now_s():
            await asyncio.sleep(self._look_ups.take(address, 1.0, _now_s()))

    async def note(self, address: str, sha256: bytes) -> None:
        """A token from there is not known. Raises TooMany where that is one of many."""
        now_s = _now_s()
        found = self._failures.get(address)
        if found is None or found.ends_s <= now_s:
            found = _Failures(ends_s=now_s + WINDOW_S)
        self._failures[address] = found
        # An attacker with many addresses must not fill the memory.
        self._failures.move_to_end(address)
        if len(self._failures) > ADDRESSES:
            self._failures.popitem(last=False)
        if len(found.seen) < GUESSES:
            found.seen.add(sha256)
        if len(found.seen) < GUESSES:
            return
        is_new = not found.back_off_s
        found.back_off_s = min(2.0 * found.back_off_s or 1.0, MAX_BACK_OFF_S)
        # The episode is over when nothing has come for so long.
        found.ends_s = now_s + max(WINDOW_S, found.back_off_s)
        if is_new:
            await self._note_episode(address)
        raise TooMany(
            f"{GUESSES} unknown tokens were sent from this address within {WINDOW_S:.0f} s",
            retry_after_s=found.back_off_s,
        )

    async def _note_episode(self, address: str) -> None:
        """Once per episode, without anything of what was sent: it may be a valid token with a letter too many."""
        self._metrics.guessing.inc()
        subject = named_address(address)
        with contextlib.suppress(TooMany, Unavailable), translated():
            self._events.take("", 1.0, _now_s())
            await self._store.add_events(
                AuditEvent(
                    at=self._clock.now(),
                    actor=subject,
                    kind="TokenGuessed",
                    subject=subject,
                    reason=f"{GUESSES} different unknown tokens were sent from it within {WINDOW_S:.0f} s",
                )
            )


def address_of(scope: Scope) -> str:
    """The other side of the connection; what `X-Forwarded-For` says only where uvicorn trusts the sender.

    Of IPv6 the first half: the other half is its owner's to choose.
    """
    host = (scope.get("client") or ("unknown",))[0]
    try:
        address = plain_ip(host)
    except ValueError:
        return str(host)
    if not isinstance(address, IPv6Address):
        return str(address)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def named_address(address: str) -> str:
    """An address as the audit names it, as who did something or as what it was done to."""
    return f"address/{address}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
