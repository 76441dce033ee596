"""The guard of power caps and governors act while enforcement waits for a start, as behind an MPS daemon that hangs."""

import asyncio
from dataclasses import replace

from agents.base.clock import ScaledClock
from agents.base.device import GpuPoll
from agents.base.protocol import ReplicaCommand
from agents.daemon.loop import NodeAgent
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_replica,
    an_empty_gpu,
    an_empty_node,
    on_gpu,
)
from tests.agents.paper_device import PaperDevice
from tests.waiting import in_loop

CLOCKS_MHZ = (900.0, 1200.0, 1500.0)


class SlowStarts(PaperDevice):
    """Starts wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__(an_empty_node(replace(an_empty_gpu(), clocks_mhz=CLOCKS_MHZ)))
        self.is_starting, self.may_start = asyncio.Event(), asyncio.Event()

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        self.is_starting.set()
        await self.may_start.wait()
        await super().start_replica(gpu_index, replica)


@in_loop
async def test_the_guard_turns_the_clock_during_a_start() -> None:
    clock, device = ScaledClock(), SlowStarts()
    device.polls[0] = GpuPoll(peak_power_w=400.0)
    plane = PaperControlPlane(
        clock, on_gpu(a_replica("r1"), clock_mhz=1500.0, cap_w=300.0)
    )
    agent = an_agent(device, plane, clock)
    await agent.observe()
    await agent.sync(waits=False)
    enforcing = asyncio.create_task(agent.enforce())
    await device.is_starting.wait()
    await _two_periods(agent)
    # 1500 · 300 / 400 = 1125: the next clock below is 900.
    assert device.log[-1] == "clock 0 900.0"
    device.may_start.set()
    await enforcing
    assert [line for line in device.log if line.startswith("clock")] == [
        "clock 0 1500.0",
        "clock 0 900.0",
    ]
    assert "start r1" in device.log


async def _two_periods(agent: NodeAgent) -> None:
    """The first began before anybody watched, and does not count."""
    await agent.guard()
    await agent.guard()
