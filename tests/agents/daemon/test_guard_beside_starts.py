"""The guard of power caps and governors act while enforcement waits for a start, as behind an MPS daemon that hangs."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from agents.base.clock import ScaledClock
from agents.base.device import GpuPoll
from agents.base.protocol import NodeCommand, ReplicaCommand
from agents.daemon.loop import NodeAgent
from agents.gpu.node.device import GpuDevice
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_command,
    a_gpu,
    a_replica,
    an_empty_gpu,
    an_empty_node,
    on_gpu,
)
from tests.agents.gpu_nodes import FakeKnobs, Wanted, gpu_device, states, until
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


@in_loop
async def test_the_guard_acts_while_the_mps_daemon_hangs(tmp_path: Path) -> None:
    knobs, clock = FakeKnobs(), ScaledClock()
    wanted = Wanted(
        directory=tmp_path, has_mps=True, knobs=knobs, clocks_mhz=CLOCKS_MHZ
    )
    async with gpu_device(wanted) as device:
        plane = PaperControlPlane(clock, _command(1, "r1", cap_w=300.0))
        agent = an_agent(device, plane, clock)
        await _take(agent)
        await agent.enforce()
        daemon = _daemon(tmp_path / "m" / "0" / "pipe")
        # The fake GPU draws 100 W.
        plane.command = _command(2, "r1", "r2", cap_w=80.0)
        await _take(agent)
        daemon.send_signal(signal.SIGSTOP)
        try:
            enforcing = asyncio.create_task(agent.enforce())
            await until(lambda: _is_waiting(device, knobs))
            await _two_periods(agent)
            # 1500 · 80 / 100 = 1200.
            assert knobs.turned[-1] == ("clock", 0, 1200.0)
            assert not enforcing.done()
        finally:
            daemon.send_signal(signal.SIGCONT)
        await enforcing
        assert knobs.turned[-1] == ("clock", 0, 1200.0)
        assert set(await states(device)) == {"r1", "r2"}


async def _is_waiting(device: GpuDevice, knobs: FakeKnobs) -> bool:
    """The new command's limit is set, and what it starts is not there."""
    return ("power", 0, 80.0) in knobs.turned and set(await states(device)) == {"r1"}


async def _take(agent: NodeAgent) -> None:
    await agent.observe()
    await agent.sync(waits=False)


async def _two_periods(agent: NodeAgent) -> None:
    """The first began before anybody watched, and does not count."""
    await agent.guard()
    await agent.guard()


def _command(generation: int, *replicas: str, cap_w: float) -> NodeCommand:
    gpu = a_gpu(
        *(a_replica(each, sm_percent=20.0) for each in replicas),
        clock_mhz=1500.0,
        cap_w=cap_w,
    )
    return a_command(gpu, generation=generation)


def _daemon(pipe: Path) -> psutil.Process:
    """The fake daemon of that pipe directory; what asks it is a child of this process."""
    (found,) = _programs(pipe)
    return found


def _programs(pipe: Path) -> Iterator[psutil.Process]:
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_program = any(
                word.endswith("nvidia-cuda-mps-control") for word in each.cmdline()
            )
            is_here = is_program and each.environ().get(
                "CUDA_MPS_PIPE_DIRECTORY"
            ) == str(pipe)
            if is_here and each.ppid() != os.getpid():
                yield each
