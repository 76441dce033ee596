"""Two hundred GPUs that live through a day: real agents in one process, on devices that keep books only."""

import asyncio
import contextlib
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.base.clock import ScaledClock
from agents.base.device import DeviceReadings, GpuState, NodeState
from agents.base.protocol import ServiceReading
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import HttpTransport
from app.catalogue.catalogue import load_gpu_types
from bench.real_store import Fleet
from tests.agents.paper_device import BusyPaperDevice

PERIOD_S = 300.0
"""From report to report: 36 a second where a day takes 200 s, which two cores hold. An agent's default is a second."""
HOUR_S, DAY_S = 3600.0, 86_400.0
PEAK_RPS = 2.0
"""Of one service at one node's router, at noon; a third of it at midnight."""


class DayDevice(BusyPaperDevice):
    """Requests come as people are awake."""

    def __init__(
        self, state: NodeState, services: tuple[str, ...], clock: ScaledClock
    ) -> None:
        super().__init__(state, passed_s=0.0)
        self._services = services
        self._clock = clock
        self._read_s = clock.now_s()

    async def read(self) -> DeviceReadings:
        now_s = self._clock.now_s()
        self.passed_s, self._read_s = now_s - self._read_s, now_s
        awake = 2.0 / 3.0 - math.cos(2.0 * math.pi * now_s / DAY_S) / 3.0
        count = round(PEAK_RPS * awake * self.passed_s)
        self.load = tuple(
            ServiceReading(
                service=service,
                arrivals=count,
                served=count,
                in_slo=count,
                latency_buckets=((24, count),) if count else (),
            )
            for service in self._services
        )
        return await super().read()


@dataclass(slots=True, kw_only=True)
class DayFleet:
    """All agents; each is a task that ends with the block."""

    fleet: Fleet
    url: str
    secrets: Mapping[str, str]
    anchor_s: float
    speed: float
    _tasks: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)

    async def __aenter__(self) -> "DayFleet":
        for node in self.fleet.node_types():
            self._start(node)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def restart(self, node: str) -> None:
        """The agent's process ends and another begins, which has lost the node's replicas."""
        self._tasks[node].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks[node]
        self._start(node)

    def failed(self) -> tuple[str, ...]:
        """Agents that ended by themselves, in words."""
        return tuple(
            f"{node}'s agent ended: {task.exception()!r}"
            for node, task in self._tasks.items()
            if task.done() and not task.cancelled()
        )

    def _start(self, node: str) -> None:
        self._tasks[node] = asyncio.create_task(self._run(node))

    async def _run(self, node: str) -> None:
        clock = ScaledClock(speed=self.speed, anchor_s=self.anchor_s)
        gpu_type = self.fleet.node_types()[node]
        (found,) = load_gpu_types([gpu_type])
        gpus = tuple(
            GpuState(index=index, gpu_type=gpu_type, memory_mib=found.memory_mib)
            for index in range(self.fleet.gpus_per_node)
        )
        services = tuple(service.name for service in self.fleet.nouns())
        transport = HttpTransport(self.url, self.secrets[node], speed=self.speed)
        agent = NodeAgent(
            AgentSettings(node=node, boot=uuid.uuid4().hex, period_s=PERIOD_S),
            DayDevice(NodeState(gpus=gpus), services, clock),
            transport=transport,
            clock=clock,
            ledger=Ledger(None),
        )
        # Not `run`: its loops look at the device every second of this clock, which comes hundreds of times a second.
        try:
            due_s = clock.now_s()
            while True:
                due_s += PERIOD_S
                await clock.sleep(due_s - clock.now_s())
                await agent.step()
        finally:
            await transport.close()
