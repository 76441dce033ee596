"""Ingest: many nodes' observations, one commit. An observation is acknowledged only after it is durable.

Requests that arrive while a commit runs wait together for the next one (group commit), so the database sees a few
large transactions instead of thousands of small ones, and an idle system still answers at once.
"""

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from agents.base.protocol import Observation
from app.base.clock import ControlClock
from app.base.errors import NotFound, Unavailable
from app.store.store import Ingested, Store

log = structlog.get_logger(__name__)

MAX_BATCH = 500
"""Observations per commit: about 6,000 rows with four GPUs and eight services each, some 50 ms of COPY."""


@dataclass(slots=True)
class _Waiting:
    observation: Observation
    done: "asyncio.Future[int]"


class IngestQueue:
    """A bounded queue in front of `Store.ingest`."""

    def __init__(self, store: Store, clock: ControlClock, *, limit: int) -> None:
        self._store = store
        self._clock = clock
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(maxsize=limit)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to commit; call once, inside a running event loop."""
        self._task = asyncio.create_task(self._run(), name="plimsoll-ingest")

    async def stop(self) -> None:
        """Commit what waits, then end."""
        if self._task is None:
            return
        await self._queue.join()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    async def add(self, observation: Observation) -> int:
        """Make one observation durable; returns the sequence number that is acknowledged.

        Raises Unavailable when the queue is full or the commit failed, NotFound for an unknown node.
        """
        waiting = _Waiting(observation, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            # Refused rather than kept: the agent has a durable outbox, this process has none.
            raise Unavailable(
                f"{self._queue.maxsize} observations wait for their commit already; send this one again"
            ) from None
        return await waiting.done

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            # Whatever has come in the meantime shares the commit; nobody is waited for.
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._commit(batch)
            for _ in batch:
                self._queue.task_done()

    async def _commit(self, batch: list[_Waiting]) -> None:
        """Broad by intent: whatever goes wrong, every waiting agent is told to send again."""
        try:
            result = await self._store.ingest(
                tuple(entry.observation for entry in batch), self._clock.now()
            )
        except Exception as error:
            log.error(
                "observations could not be committed",
                count=len(batch),
                error=str(error),
            )
            for entry in batch:
                if not entry.done.done():
                    entry.done.set_exception(
                        Unavailable(
                            "the database did not take the observation; send it again"
                        )
                    )
            return
        for entry in batch:
            # A request that was cancelled meanwhile waits no more; its observation is durable all the same.
            if not entry.done.done():
                _answer(entry, result)


def _answer(entry: _Waiting, result: Ingested) -> None:
    node = entry.observation.node
    if node in result.unknown_nodes:
        entry.done.set_exception(
            NotFound(
                f"node {node!r} is not registered; apply a Node manifest for it first"
            )
        )
        return
    acknowledged = result.acknowledged.get(
        (node, entry.observation.boot), entry.observation.sequence
    )
    entry.done.set_result(acknowledged)
