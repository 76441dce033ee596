"""What this process hears of others' changes: one listener for each kind, so that no request polls the database."""

import asyncio
import contextlib
from abc import ABC, abstractmethod

from app.db.base.listen import RECONNECT, STILL_HERE
from app.loop.controller import Wakeups

BEAT_S = 2.0
UNHEARD_S = 5.0
"""What is remembered may be wrong for so long, where the connection died without a word and no beat has told yet."""


class Listening(ABC):
    """Hears notifications in a task of its own, from `start` to `stop`."""

    def __init__(self, wakeups: Wakeups, name: str) -> None:
        """`name`: the task's, for who looks at what runs."""
        self._wakeups = wakeups
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._heard_until_s = 0.0

    @property
    def is_listening(self) -> bool:
        """Whether notifications are heard; False before `start` and after a fault of the listener."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to listen; call once, inside a running event loop."""
        self._task = asyncio.create_task(self._listen(), name=self._name)

    async def stop(self) -> None:
        """End listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @abstractmethod
    async def hear(self, what: str, /) -> None:
        """Something changed, or, as RECONNECT says, anything may have."""

    def still_knows(self, asked_s: float) -> bool:
        """Whether what was asked for then, by the event loop's clock, would have been heard to have changed since."""
        sure_until_s = max(asked_s, self._heard_until_s)
        return asyncio.get_running_loop().time() - sure_until_s <= UNHEARD_S

    async def _listen(self) -> None:
        async for what in self._wakeups.listen():
            if what != STILL_HERE:
                await self.hear(what)
            # Only now: what came before the beat has been taken up.
            if what in (RECONNECT, STILL_HERE):
                self._heard_until_s = asyncio.get_running_loop().time()
