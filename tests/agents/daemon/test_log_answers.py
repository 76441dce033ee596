"""A node's answers for logs: sent next to the syncs, once for each request, and nothing where no one asks."""

import asyncio
from pathlib import Path

import pytest

from agents.base.protocol import LogAnswer, LogRequest, Observation, SyncReply
from agents.daemon.log_answers import LogTransport
from agents.processes.node_logs import NodeLogs
from agents.processes.records import TASKS_FOLDER, log_path
from agents.sync.transport import ControlPlaneSilent
from tests.agents.factories import an_observation
from tests.waiting import in_loop

REQUEST = LogRequest(id="7f", kind="task", name="teach")
SEEN = an_observation()


class AskingControlPlane:
    """Asks for a log in each reply, and takes answers when it is told to."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.posted: list[tuple[str, object]] = []
        self.may_answer = asyncio.Event()
        self.is_closed = False
        self._is_there = is_there

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        return SyncReply(
            boot=observation.boot,
            acknowledged=observation.sequence,
            server_time_s=0.0,
            logs=(REQUEST,),
        )

    async def post(self, path: str, document: object) -> bytes:
        await self.may_answer.wait()
        if not self._is_there:
            raise ControlPlaneSilent("it is away")
        self.posted.append((path, document))
        return b""

    async def close(self) -> None:
        self.is_closed = True


async def settled() -> None:
    """Return when everything but the caller has ended."""
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


@in_loop
async def test_a_log_that_is_asked_for_twice_is_sent_once(tmp_path: Path) -> None:
    path = log_path(tmp_path / TASKS_FOLDER, "teach")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"epoch 1\n")
    plane = AskingControlPlane()
    transport = LogTransport(plane, node="n/1", logs=NodeLogs(tmp_path))
    for _ in range(2):
        assert (await transport.exchange(SEEN, wait_s=0.0)).acknowledged == 1
    plane.may_answer.set()
    await settled()
    await transport.close()
    assert plane.is_closed
    answer = LogAnswer(text="epoch 1\n", start=0, end=8)
    assert plane.posted == [("nodes/n%2F1/logs/7f", answer)]


@in_loop
async def test_an_answer_that_cannot_be_sent(caplog: pytest.LogCaptureFixture) -> None:
    plane = AskingControlPlane(is_there=False)
    plane.may_answer.set()
    transport = LogTransport(plane, node="n1", logs=None)
    # Nothing is left over: the next reply may ask for it again.
    for _ in range(2):
        await transport.exchange(SEEN, wait_s=0.0)
        await settled()
    assert caplog.text.count("the log of teach cannot be sent: it is away") == 2


@in_loop
async def test_a_transport_that_is_closed_answers_no_more() -> None:
    plane = AskingControlPlane()
    transport = LogTransport(plane, node="n1", logs=None)
    await transport.exchange(SEEN, wait_s=0.0)
    await transport.close()
    plane.may_answer.set()
    assert plane.posted == []
