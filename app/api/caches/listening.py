"""What this process hears of others' changes: one listener for each kind, so that no request polls the database."""

import asyncio
import contextlib
from abc import ABC, abstractmethod

from app.loop.controller import Wakeups


class Listening(ABC):
    """Hears notifications in a task of its own, from `start` to `stop`."""

    def __init__(self, wakeups: Wakeups, name: str) -> None:
        """`name`: the task's, for who looks at what runs."""
        self._wakeups = wakeups
        self._name = name
        self._task: asyncio.Task[None] | None = None

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

    async def _listen(self) -> None:
        async for what in self._wakeups.listen():
            await self.hear(what)
