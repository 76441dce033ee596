"""Ingest: many nodes' observations, one commit. An observation is acknowledged only after it is durable.

Requests that arrive while a commit runs wait together for the next one (group commit), so the database sees a few
large transactions instead of thousands of small ones, and an idle system still answers at once.

An observation that the database can never keep would take its whole group down, again with every repetition: such a
group is halved until that observation is alone in its commit and is refused. The protocol's bounds should leave none.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from agents.base.protocol import Observation
from app.base.clock import ControlClock
from app.base.errors import InvalidRequest, NotFound, PlimsollError, Unavailable
from app.store.reportable import Ingested
from app.store.store import AuditEvent, Store

log = structlog.get_logger(__name__)

MAX_BATCH = 500
"""Observations per commit: about 6,000 rows with four GPUs and eight services each, some 50 ms of COPY."""

EVENT_PERIOD = timedelta(hours=1)
"""A node whose observations are refused is an event so often, however many they are: the audit is kept for ever."""

_TOO_MANY_BOOTS = (
    "its agent was started too often within an hour; check whether it crashes, or whether machines share the "
    "node's name"
)


@dataclass(slots=True)
class _Waiting:
    observation: Observation
    done: "asyncio.Future[int]"


class IngestQueue:
    """A bounded queue in front of `Store.ingest`."""

    def __init__(
        self,
        store: Store,
        clock: ControlClock,
        *,
        limit: int,
        on_dropped: Callable[[Mapping[str, int]], None] = lambda _dropped: None,
    ) -> None:
        """`on_dropped`: told of readings that were left out, by kind (`Ingested.dropped`)."""
        self._store = store
        self._clock = clock
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(maxsize=limit)
        self._task: asyncio.Task[None] | None = None
        self._on_dropped = on_dropped
        self._refused_at: dict[str, datetime] = {}

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

        Raises Unavailable when the queue is full or the commit failed, NotFound for an unknown node, InvalidRequest
        for what the database can never keep.
        """
        waiting = _Waiting(observation, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            # Refused rather than kept: the agent has a durable outbox, this process has none.
            raise Unavailable(
                f"{self._queue.maxsize} observations are already waiting to be committed; send this one again"
            ) from None
        return await waiting.done

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            # Whatever has come in the meantime shares the commit; nothing is waited for.
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._commit(batch)
            for _ in batch:
                self._queue.task_done()

    async def _commit(self, batch: list[_Waiting]) -> None:
        """Commit a group; where one of it cannot be kept, all others: 2 · log2(n) commits for each such one."""
        parts = [batch]
        while parts:
            part = parts.pop()
            try:
                await self._take(part)
            except InvalidRequest as error:
                if len(part) == 1:
                    await self._refuse(part[0], error)
                    continue
                middle = len(part) // 2
                # The first half is popped first, so that a node's observations keep their order.
                parts += [part[middle:], part[:middle]]
            # Broad by intent: whatever goes wrong, every waiting agent is told to send again.
            except Exception as error:
                _defer([*part, *(entry for rest in parts for entry in rest)], error)
                return

    async def _take(self, part: list[_Waiting]) -> None:
        result = await self._store.ingest(
            tuple(entry.observation for entry in part), self._clock.now()
        )
        self._on_dropped(result.dropped)
        for entry in part:
            if (entry.observation.node, entry.observation.boot) in result.refused_boots:
                await self._refuse(entry, InvalidRequest(_TOO_MANY_BOOTS, field="boot"))
            else:
                _answer(entry, result)

    async def _refuse(self, entry: _Waiting, error: InvalidRequest) -> None:
        """Tell the agent, which drops the observation, and once in a while the audit."""
        _fail(entry, error)
        node, now = entry.observation.node, self._clock.now()
        log.error("an observation cannot be stored", node=node, error=str(error))
        noted_at = self._refused_at.get(node)
        if noted_at is not None and now - noted_at < EVENT_PERIOD:
            return
        line = AuditEvent(
            at=now,
            actor=f"node/{node}",
            kind="ObservationRefused",
            subject=f"node/{node}",
            reason=f"its observation {entry.observation.sequence} was refused, and is lost: {error}",
        )
        # Broad by intent: an audit that cannot be written must not end the commits.
        try:
            await self._store.add_events(line)
        except Exception as failure:
            log.error(
                "the refusal could not be recorded in the audit", error=str(failure)
            )
            return
        # Observations of registered nodes alone are written: there are no more entries than nodes.
        self._refused_at[node] = now


def _defer(entries: list[_Waiting], error: Exception) -> None:
    log.error(
        "observations could not be committed", count=len(entries), error=str(error)
    )
    for entry in entries:
        _fail(
            entry,
            Unavailable("the database did not accept the observation; send it again"),
        )


def _answer(entry: _Waiting, result: Ingested) -> None:
    node = entry.observation.node
    if node in result.unknown_nodes:
        message = f"node {node!r} is not registered; apply a Node manifest for it first"
        _fail(entry, NotFound(message))
        return
    acknowledged = result.acknowledged.get(
        (node, entry.observation.boot), entry.observation.sequence
    )
    # A request that was cancelled meanwhile waits no more; its observation is durable all the same.
    if not entry.done.done():
        entry.done.set_result(acknowledged)


def _fail(entry: _Waiting, error: PlimsollError) -> None:
    if not entry.done.done():
        entry.done.set_exception(error)
