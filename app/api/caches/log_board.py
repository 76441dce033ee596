"""Requests for logs in memory: one listener per process, so that a sync need not ask the database for its node's."""

import asyncio
import contextlib
from collections import defaultdict

from agents.base.protocol import LogAnswer, LogRequest
from app.api.caches.listening import Listening
from app.base.errors import Unavailable
from app.db.base.transaction import Engine, transaction
from app.db.fleet import log_requests
from app.loop.controller import Wakeups


class LogBoard(Listening):
    """What nodes are asked for, read again whenever somebody asks, answers, or gives up."""

    def __init__(self, engine: Engine, wakeups: Wakeups) -> None:
        """`engine`: that of people's requests, since they are who waits."""
        super().__init__(wakeups, "plimsoll-logs")
        self._engine = engine
        self._asked: dict[str, list[LogRequest]] = {}
        self._changed = asyncio.Event()
        self._is_ending = False

    def end_waits(self) -> None:
        """The server ends: who waits hears it now, since a node may take longer than the server waits for requests."""
        self._is_ending = True
        self._changed.set()

    def asked_of(self, node: str) -> tuple[LogRequest, ...]:
        """What the node has not answered yet, as much as one reply has room for."""
        return tuple(self._asked.get(node, ())[: log_requests.MAX_ASKED])

    async def wait_for(
        self, node: str, request: LogRequest, *, limit_s: float
    ) -> LogAnswer | None:
        """Ask the node, and return its answer; None: there is none within the limit.

        Raises Unavailable, also where the server ends meanwhile.
        """
        async with transaction(self._engine) as connection:
            await log_requests.ask(connection, node, request)
        try:
            async with asyncio.timeout(limit_s):
                return await self._until_answered(request.id)
        except TimeoutError:
            return None
        finally:
            # Read, too late, or the caller left: a node must not go on answering without a reader.
            async with transaction(self._engine) as connection:
                await log_requests.forget(connection, request.id)

    async def refuse(self, node: str, problem: str) -> None:
        """Answer what the node is asked for in its place, since it cannot."""
        async with transaction(self._engine) as connection:
            for request in self.asked_of(node):
                refusal = LogAnswer(problem=problem)
                await log_requests.answer(connection, node, request.id, refusal)

    async def _until_answered(self, request_id: str) -> LogAnswer:
        while True:
            # Taken before the question: an answer in between sets this very event.
            changed = self._changed
            async with transaction(self._engine) as connection:
                answered = await log_requests.read(connection, request_id)
            if answered is not None:
                return answered
            if self._is_ending:
                raise Unavailable("this control plane is about to end: ask again")
            await changed.wait()

    async def hear(self, _: str, /) -> None:
        """Somebody asked, was answered, or gave up."""
        # The next notification, or the next connection, brings what could not be read now.
        with contextlib.suppress(Unavailable):
            await self._load()

    async def _load(self) -> None:
        async with transaction(self._engine) as connection:
            rows = await log_requests.list_asked(connection)
        asked = defaultdict(list)
        for row in rows:
            asked[row.node].append(row.request)
        self._asked = asked
        self._changed.set()
        # A new one for those who wait from now on; the old one has woken everybody who waited.
        self._changed = asyncio.Event()
