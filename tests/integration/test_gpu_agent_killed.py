"""The agent as a process, killed at random moments and at every step of a switch: nothing is orphaned, doubled, or left
turned.

`python -m bench.kills` does the same a thousand times.
"""

import asyncio
from pathlib import Path
from random import Random
from signal import SIGKILL

import pytest

from agents.base.protocol import ReplicaCommand
from tests.agents.factories import a_replica
from tests.agents.fakes.nvml.fixtures import library
from tests.agents.gpu_nodes import FAKES
from tests.integration.killing import DEFAULT_LIMIT_MW, Killing
from tests.integration.test_gpu_agent import (
    PATIENCE_S,
    ControlPlane,
    Machine,
    a_command,
    locked_mhz,
    machine,
    until,
    workers_ports,
)
from tests.waiting import in_loop

pytestmark = pytest.mark.integration

__all__ = ("library", "workers_ports")

KILLS = 4
STEPS = {
    "start_replica": True,
    "switch_routes": True,
    "drain": False,
    "stop_replica": False,
}
"""What a switch tells the device, and whether of the new replica; else it is of the old one."""


@in_loop
async def test_killed_at_any_moment_nothing_is_orphaned_doubled_or_left_turned(
    tmp_path: Path, library: Path
) -> None:
    async with machine(tmp_path, library) as (node, plane):
        killing = Killing(node=node, plane=plane, draw=Random(7))
        for _ in range(KILLS):
            await killing.once()
        await killing.end()
        assert killing.violations == []
        assert 0 < killing.early < KILLS, (
            "the seed chose no early kill, or nothing else"
        )
        assert locked_mhz(node.gpus) in (900, 1200)
        assert "clock_mhz of" in node.restore()
        assert locked_mhz(node.gpus) == 0
        assert node.gpus.gpu(0).power_limit == DEFAULT_LIMIT_MW


@pytest.mark.parametrize(
    ("when", "steps"),
    [
        ("after", ["stop_replica"]),
        pytest.param("before", list(STEPS), marks=pytest.mark.thorough),
        pytest.param("after", list(STEPS), marks=pytest.mark.thorough),
    ],
)
@in_loop
async def test_a_switch_that_is_cut_off_at_any_step_is_finished_by_the_next_agent(
    tmp_path: Path, library: Path, when: str, steps: list[str]
) -> None:
    async with machine(tmp_path, library) as (node, plane):
        killing = Killing(node=node, plane=plane, draw=Random(7))
        await _apply(node, plane, 1)
        for generation, method in enumerate(steps, start=2):
            plane.command = a_command(generation, _replica(generation))
            dies_at = _replica(generation if STEPS[method] else generation - 1).id
            node.start(program=(str(FAKES / "dying_agent.py"), when, method, dies_at))
            assert node.process is not None
            assert await asyncio.to_thread(node.process.wait, PATIENCE_S) == -SIGKILL
            killing.look_at_knobs()
            await _apply(node, plane, generation)
            await killing.look_at_workers()
        assert killing.violations == []


def _replica(generation: int) -> ReplicaCommand:
    """Another one than that of the generation before, with another share."""
    return a_replica(f"r{generation}", sm_percent=(40.0, 60.0)[generation % 2])


async def _apply(node: Machine, plane: ControlPlane, generation: int) -> None:
    """A new agent carries the command out with its replica alone; then it is killed."""
    before, plane.command = plane.boot, a_command(generation, _replica(generation))
    await asyncio.to_thread(node.start)
    await until(
        lambda: plane.has_applied(generation, before),
        f"generation {generation} is not applied",
    )
    assert [each.id for each in plane.told[-1].replicas] == [_replica(generation).id]
    await until(lambda: node.workers() == 1, "the old worker lives on")
    await asyncio.to_thread(node.end, SIGKILL)
