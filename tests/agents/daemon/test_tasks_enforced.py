"""Tasks next to replicas on fake GPUs, under the real agent: replicas come first, and nothing is promised twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.base.protocol import (
    GpuCommand,
    NodeCommand,
    ReplicaCommand,
    Route,
    TaskCommand,
)
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.gpu.node.device import GpuDevice
from agents.sync.ledger import Ledger
from tests.agents.factories import a_replica, a_task
from tests.agents.gpu_nodes import (
    CLOCK,
    GPU_TYPE,
    Commands,
    Wanted,
    gpu_device,
    states,
    until,
)
from tests.waiting import in_loop

pytestmark = pytest.mark.integration

LONG = 1_000_000


def a_command(
    generation: int, replicas: tuple[ReplicaCommand, ...], *tasks: TaskCommand
) -> NodeCommand:
    gpu = GpuCommand(
        index=0,
        gpu_type=GPU_TYPE,
        clock_mhz=1200.0,
        power_cap_w=250.0,
        replicas=replicas,
        tasks=tasks,
    )
    routes = (
        Route(service="chat", slo_ms=500.0, percentile=0.99, arrival_rate_rps=10.0),
    )
    return NodeCommand(node="n1", generation=generation, gpus=(gpu,), routes=routes)


@asynccontextmanager
async def agent(device: GpuDevice, control: Commands) -> AsyncIterator[None]:
    stop = asyncio.Event()
    settings = AgentSettings(node="n1", boot="b1", period_s=0.1, enforce_period_s=0.05)
    made = NodeAgent(
        settings, device, transport=control, clock=CLOCK, ledger=Ledger(None)
    )
    running = asyncio.create_task(made.run(stop))
    try:
        yield
    finally:
        stop.set()
        await running


async def task_states(device: GpuDevice) -> dict[str, str]:
    return {
        each.name: each.state
        for gpu in (await device.state()).gpus
        for each in gpu.tasks
    }


async def are(device: GpuDevice, **wanted: str) -> bool:
    """Whether replicas and tasks are in these states, and there are no others."""
    found = {**await states(device), **await task_states(device)}
    assert "failed" not in found.values(), (await device.read()).problems
    return found == wanted


@pytest.mark.parametrize(
    "has_mps", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
@in_loop
async def test_a_task_makes_room_for_a_replica_and_comes_back(
    tmp_path: Path, has_mps: bool
) -> None:
    # 16384 MiB: task 9000 and replica 5000 fit, a second replica of 5000 only without the task.
    control = Commands()
    first, second = (
        a_replica(name, memory_mib=5000.0, sm_percent=30.0) for name in ("r1", "r2")
    )
    task = a_task(memory_mib=9000.0, iterations=LONG)
    async with (
        gpu_device(Wanted(directory=tmp_path, has_mps=has_mps)) as device,
        agent(device, control),
    ):
        control.command = a_command(1, (first,), task)
        await until(lambda: are(device, r1="ready", t1="running"))
        away = a_task(memory_mib=9000.0, iterations=LONG, is_resident=False)
        control.command = a_command(2, (first, second), away)
        await until(lambda: are(device, r1="ready", r2="ready", t1="swapped"))
        control.command = a_command(3, (first,), task)
        await until(lambda: are(device, r1="ready", t1="running"))
        with pytest.raises(LaunchFailed, match="replica r9 needs 5000 MiB"):
            await device.start_replica(0, a_replica("r9", memory_mib=5000.0))


@in_loop
async def test_finished_and_unwanted_tasks_are_told_and_leave(tmp_path: Path) -> None:
    control = Commands()
    async with (
        gpu_device(Wanted(directory=tmp_path)) as device,
        agent(device, control),
    ):
        control.command = a_command(
            1, (), a_task("short", iterations=20), a_task("long", iterations=LONG)
        )
        await until(lambda: are(device, short="finished", long="running"))

        async def is_told() -> bool:
            told = {each.name: each for each in control.seen[-1].tasks}
            return "short" in told and told["short"].done_iterations == 20.0

        await until(is_told)
        control.command = a_command(2, ())
        await until(lambda: are(device))
