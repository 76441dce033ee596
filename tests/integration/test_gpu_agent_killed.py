"""The agent as a process, killed at random moments: nothing is orphaned, doubled, or left turned.

`python -m bench.kills` does the same a thousand times.
"""

from pathlib import Path
from random import Random

import pytest

from tests.agents.fakes.nvml.fixtures import library
from tests.integration.killing import DEFAULT_LIMIT_MW, Killing
from tests.integration.test_gpu_agent import locked_mhz, machine, play, workers_ports

pytestmark = pytest.mark.integration

__all__ = ("library", "workers_ports")

KILLS = 6


def test_killed_at_any_moment_nothing_is_orphaned_doubled_or_left_turned(tmp_path: Path, library: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path, library) as (node, plane):
            killing = Killing(node=node, plane=plane, draw=Random(7))
            for _ in range(KILLS):
                await killing.once()
            await killing.end()
            assert killing.violations == []
            assert 0 < killing.early < KILLS, "the seed chose no early kill, or nothing else"
            assert locked_mhz(node.gpus) in (900, 1200)
            assert "clock_mhz of" in node.restore()
            assert (locked_mhz(node.gpus), node.gpus.gpu(0).power_limit) == (0, DEFAULT_LIMIT_MW)

    play(scenario)


def test_what_is_wrong_is_seen(tmp_path: Path, library: Path) -> None:
    """Otherwise the test above would find nothing, whatever happened."""

    async def scenario() -> None:
        async with machine(tmp_path, library) as (node, plane):
            killing = Killing(node=node, plane=plane, draw=Random(7), patience_s=0.2)
            await killing.once()
            await killing.end()
            (record,) = (node.state / "workers" / "records").glob("*.json")
            text = record.read_text()
            record.unlink()
            node.gpus.gpu(0).lock_high += 15
            await killing.look_at_workers()
            killing.look_at_knobs()
            record.write_text(text)
            stray, clock = killing.violations
            assert stray.startswith("after kill 1: without a record live ['")
            assert "the journal does not say so" in clock

    play(scenario)
