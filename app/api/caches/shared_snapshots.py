"""Snapshots of the cluster for people's requests: one load serves all that asked before it began.

A snapshot is some twenty queries. Where each of fifty requests a second loaded one of its own, they kept the event loop
busy, and every node's sync waited. No request gets one that was begun before it came, so a caller sees its own
change.
"""

import asyncio

from app.api.caches import shared_tasks
from app.base.clock import ControlClock
from app.db.base.transaction import translated
from app.store.store import Snapshot, Store

REST_PER_LOAD = 3.0
"""After a load nothing is loaded for three times as long: quick loads take a quarter of the event loop's time."""
MAX_REST_S = 0.5
"""Loads of a sixth of a second and more take a larger part of it: no caller should wait much longer than for them."""


class SharedSnapshots:
    """The load that is to begin next, and the pace of all."""

    def __init__(self, store: Store, clock: ControlClock) -> None:
        self._store = store
        self._clock = clock
        self._next: asyncio.Task[Snapshot] | None = None
        """It has not begun to read: a request that comes now may share it."""
        self._running: asyncio.Task[Snapshot] | None = None
        """Kept, since nothing else refers to it once all who asked have given up."""
        self._rested = asyncio.Lock()
        """Held during a load and the rest after it."""

    async def load(self) -> Snapshot:
        """Everything that a tick would see now. Raises Unavailable."""
        if self._next is None:
            self._next = shared_tasks.begin(self._run(), "snapshot")
        # Shielded: others wait for the same one, even if this request is given up.
        return await asyncio.shield(self._next)

    async def _run(self) -> Snapshot:
        await self._rested.acquire()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        # From here on it may miss what is changed.
        self._running, self._next = self._next, None
        try:
            with translated():
                return await self._store.load_snapshot(self._clock.now())
        finally:
            rest_s = min(REST_PER_LOAD * (loop.time() - began_s), MAX_REST_S)
            loop.call_later(rest_s, self._rested.release)
