"""What a node with GPUs says of who used them, with a real worker."""

import asyncio
from pathlib import Path

import pytest

from agents.base.protocol import Overuse
from agents.gpu.node.attribution import WINDOWS
from agents.gpu.nvml.types import GpuProcess, ProcessUse
from tests.agents.factories import a_replica
from tests.agents.gpu_nodes import FakeMemory, Wanted, gpu_device, states, until
from tests.waiting import in_loop

pytestmark = pytest.mark.integration


@in_loop
async def test_a_replica_that_holds_more_memory_than_it_was_granted_is_told(
    tmp_path: Path,
) -> None:
    memory = FakeMemory()
    async with gpu_device(Wanted(directory=tmp_path, memory=memory)) as device:
        await device.start_replica(0, a_replica("r1", memory_mib=1000.0))

        async def is_ready() -> bool:
            return await states(device) == {"r1": "ready"}

        await until(is_ready)
        (view,) = device._parts.workers.replicas()  # nothing else tells its process id
        memory.strangers = (GpuProcess(pid=view.pid, memory_mib=1400.0, is_mps=False),)
        memory.uses = (ProcessUse(pid=view.pid, sm_percent=25.0),)
        for _ in range(WINDOWS):
            await asyncio.sleep(0.01)  # a window has a length
            readings = await device.read()
        found = {(use.gpu_index, use.name): use for use in readings.uses}
        assert set(found) == {(0, "r1"), (0, "(idle)"), (1, "(idle)")}
        mine = found[0, "r1"]
        assert (mine.service, mine.memory_used_mib, mine.sm_percent) == (
            "chat",
            1400.0,
            25.0,
        )
        assert mine.over == (Overuse(quantity="memory", granted=1000.0, used=1400.0),)
        # 100 W all the time: all is idle's, and half of that is the replica's, who was granted 50 %.
        assert abs(mine.energy_j - found[0, "(idle)"].energy_j) <= 0.002
        assert mine.energy_j > 0.0
