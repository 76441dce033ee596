"""Answering for logs: what a sync reply asks for is read on this node and sent, next to the syncs.

LogTransport(reach, node=…, logs=…)     a transport whose replies' log requests are answered
"""

import asyncio
import logging
from typing import Protocol
from urllib.parse import quote

from agents.base.protocol import LogAnswer, LogRequest, Observation, SyncReply
from agents.base.waits import cancel
from agents.processes.node_logs import NodeLogs
from agents.sync.transport import Transport, TransportError

log = logging.getLogger(__name__)


class DocumentTransport(Transport, Protocol):
    """A way to the control plane that takes other documents besides observations."""

    async def post(self, path: str, document: object) -> bytes:
        """The answer to a document that is sent to a path below `/api/v1`. Raises TransportError."""
        ...


class LogTransport:
    """A way to the control plane by which people read what this node's replicas and tasks wrote."""

    def __init__(
        self, reach: DocumentTransport, *, node: str, logs: NodeLogs | None
    ) -> None:
        """`logs`: None where the device's replicas are no processes."""
        self._reach = reach
        self._node = node
        self._logs = logs
        self._answers: dict[str, asyncio.Task[None]] = {}

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        if self._logs is not None:
            # In a thread, as all that reads files of a size that others choose.
            await asyncio.to_thread(self._logs.note_sizes)
        reply = await self._reach.exchange(observation, wait_s=wait_s)
        for request in reply.logs or ():
            # The next reply may ask again for what is being answered.
            if request.id not in self._answers:
                # Not waited for: a command that came with it must not be late for it.
                answer = asyncio.create_task(self._answer(request))
                self._answers[request.id] = answer
        return reply

    async def close(self) -> None:
        await cancel(*self._answers.values())
        await self._reach.close()

    async def _answer(self, request: LogRequest) -> None:
        path = f"nodes/{quote(self._node, safe='')}/logs/{quote(request.id, safe='')}"
        try:
            await self._reach.post(path, await self._read(request))
        except TransportError as error:
            # The caller that waits is told that the node did not answer, and asks again.
            log.warning("the log of %s cannot be sent: %s", request.name, error)
        finally:
            del self._answers[request.id]

    async def _read(self, request: LogRequest) -> LogAnswer:
        if self._logs is None:
            return LogAnswer(
                problem=f"{request.kind} {request.name} writes no log: its node has no real processes, only fake or "
                "simulated ones"
            )
        return await asyncio.to_thread(self._logs.read, request)
