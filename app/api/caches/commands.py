"""Newest commands in memory: one listener per process wakes every agent that waits; no request polls the database."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agents.base.protocol import NodeCommand
from app.api.caches.listening import Listening
from app.base.errors import PlimsollError
from app.db.base.listen import RECONNECT
from app.db.base.transaction import translated
from app.db.decisions.commands import NODE_GONE
from app.loop.controller import Wakeups


class CommandSource(Protocol):
    """Where commands are kept."""

    async def command_for(self, node: str, after_generation: int) -> NodeCommand | None:
        """The newest command for a node if its generation is newer than the one given."""
        ...

    async def commands_of(self, generation: int) -> Sequence[NodeCommand]:
        """The commands of one generation."""
        ...


class CommandBoard(Listening):
    """Commands by node: those of a new target are read together, all are forgotten when the connection was lost.

    As long as nothing was announced since `start`, every question goes to the source.
    """

    def __init__(self, source: CommandSource, wakeups: Wakeups) -> None:
        super().__init__(wakeups, "plimsoll-commands")
        self._source = source
        self._newest: dict[str, NodeCommand | None] = {}
        self._forgot_at_s = 0.0
        self._version = 0
        self._changed = asyncio.Event()

    async def stop(self) -> None:
        """End listening, and answer all requests that wait."""
        await super().stop()
        self.forget()

    async def command_for(self, node: str, after_generation: int) -> NodeCommand | None:
        """The newest command for a node if its generation is newer than the one given."""
        # The listener may not have noticed yet that its connection is dead.
        if not self.still_knows(self._forgot_at_s):
            self.forget()
        if node not in self._newest:
            version = self._version
            # Generation 0: the newest command whatever this agent has, so that it can be kept for all who ask.
            command = await self._source.command_for(node, 0)
            # An announcement while the database answered may have come after it looked.
            if not self.is_listening or version != self._version or version == 0:
                return _newer(command, after_generation)
            self._newest[node] = command
        return _newer(self._newest[node], after_generation)

    async def wait_for(
        self, node: str, after_generation: int, within: Callable[[], Awaitable[None]]
    ) -> NodeCommand | None:
        """The same, waiting for a newer one until `within()` returns."""
        deadline = asyncio.ensure_future(within())
        try:
            while True:
                # Taken before the question: an announcement in between sets this very event.
                changed = self._changed
                command = await self.command_for(node, after_generation)
                if command is not None or deadline.done() or not self.is_listening:
                    return command
                await _first(changed, deadline)
        finally:
            deadline.cancel()

    def forget(self) -> None:
        """Ask the source again, for everybody who asks or waits."""
        self._newest.clear()
        self._forgot_at_s = asyncio.get_running_loop().time()
        self._version += 1
        self._wake()

    async def hear(self, what: str, /) -> None:
        """There is a new target of that generation; or, as RECONNECT and NODE_GONE say, what is known may be wrong."""
        if what in (RECONNECT, NODE_GONE):
            self.forget()
            return
        # Answers that are on their way may be older.
        self._version += 1
        try:
            with translated():
                commands = await self._source.commands_of(int(what))
        # Each node's own question tells it.
        except PlimsollError:
            self.forget()
            return
        # In one question: a fleet's agents would else each ask their own at the same moment.
        self._newest |= {
            each.node: each
            for each in commands
            if _newer(self._newest.get(each.node), each.generation) is None
        }
        self._wake()

    def _wake(self) -> None:
        """Let everybody who waits look again."""
        self._changed.set()
        # A new one for those who wait from now on; the old one has woken everybody who waited.
        self._changed = asyncio.Event()


async def _first(changed: asyncio.Event, deadline: "asyncio.Future[None]") -> None:
    announced = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait((announced, deadline), return_when=asyncio.FIRST_COMPLETED)
    finally:
        announced.cancel()


def _newer(command: NodeCommand | None, after_generation: int) -> NodeCommand | None:
    return (
        command
        if command is not None and command.generation > after_generation
        else None
    )
