"""What the agent need not wait a period for: a replica that became ready, and a command that follows another soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agents.base.clock import ScaledClock
from agents.base.device import RunningReplica
from agents.base.protocol import NodeCommand, Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from tests.agents.factories import (
    a_command,
    a_replica,
    an_empty_node,
    on_gpu,
)
from tests.agents.paper_device import PaperDevice
from tests.waiting import eventually, in_loop

NEVER_S = 3600.0


class LongPoll:
    """A control plane that answers when it has a newer command, or when the agent's wait is over."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        """(sequence, generation) of everything that was sent."""
        self._command: NodeCommand | None = None
        self._news = asyncio.Event()

    def publish(self, command: NodeCommand) -> None:
        self._command = command
        self._news.set()

    async def answer(self, observation: Observation, wait_s: float) -> SyncReply:
        self.asked.append((observation.sequence, observation.generation))
        try:
            async with asyncio.timeout(wait_s):
                while not self._is_news_to(observation):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        command = self._command if self._is_news_to(observation) else None
        return SyncReply(
            boot=observation.boot,
            acknowledged=observation.sequence,
            server_time_s=0.0,
            command=command,
        )

    def _is_news_to(self, observation: Observation) -> bool:
        return (
            self._command is not None
            and self._command.generation > observation.generation
        )


@dataclass(frozen=True, kw_only=True)
class Bench:
    device: PaperDevice
    plane: LongPoll
    agent: NodeAgent

    def replica(self, name: str) -> RunningReplica | None:
        return next((each for each in self.device.replicas() if each.id == name), None)

    def generation(self) -> int:
        return self.agent.command.generation if self.agent.command else 0


@asynccontextmanager
async def running(*, enforce_period_s: float) -> AsyncIterator[Bench]:
    """An agent at work whose next observation is far away once the first is sent."""
    device, plane, clock = PaperDevice(an_empty_node()), LongPoll(), ScaledClock()
    settings = AgentSettings(
        node="n1", boot="b1", period_s=NEVER_S, enforce_period_s=enforce_period_s
    )
    agent = NodeAgent(
        settings,
        device,
        transport=DirectTransport(plane.answer),
        clock=clock,
        ledger=Ledger(None),
    )
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        await asyncio.sleep(0.0)
        await agent.observe()
        yield Bench(device=device, plane=plane, agent=agent)
    finally:
        plane.publish(
            a_command(generation=10**8)
        )  # So that nothing waits for it any more.
        stop.set()
        await task


@in_loop
async def test_a_ready_replica_gets_requests_before_the_next_enforcement() -> None:
    async with running(enforce_period_s=NEVER_S) as bench:
        bench.plane.publish(on_gpu(a_replica("r1")))
        await eventually(lambda: bench.replica("r1") is not None)
        bench.device.make_ready()
        bench.device.notify()
        await eventually(lambda: "route {'chat': ['r1']}" in bench.device.log)


@in_loop
async def test_a_command_right_after_another_waits_for_no_observation() -> None:
    async with running(enforce_period_s=NEVER_S) as bench:
        for generation in (1, 2, 3):
            bench.plane.publish(on_gpu(a_replica("r1"), generation=generation))
            await eventually(
                lambda generation=generation: bench.generation() == generation
            )  # type: ignore[misc]
        await eventually(lambda: len(bench.plane.asked) == 4)
        # One observation, sent again with what is in force: the control plane keeps it once.
        assert bench.plane.asked == [(1, 0), (1, 1), (1, 2), (1, 3)]


@in_loop
async def test_a_command_that_is_refused_is_not_asked_for_again_at_once() -> None:
    async with running(enforce_period_s=NEVER_S) as bench:
        # GPU 7 is not there: the control plane would send this again and again.
        bench.plane.publish(on_gpu(a_replica("r1"), index=7))
        await eventually(lambda: len(bench.plane.asked) == 1)
        for _ in range(100):
            await asyncio.sleep(0.0)
        assert bench.plane.asked == [(1, 0)] and bench.generation() == 0
