"""What runs on a GPU whose MPS is in a fault ends; tasks go on from what they kept, and those that are done stay so."""

from pathlib import Path

import pytest

from agents.base.protocol import TaskReading
from agents.gpu.node.device import GpuDevice
from tests.agents.factories import a_replica, a_task
from tests.agents.fakes.mps_client import break_gpu
from tests.agents.gpu_nodes import Wanted, gpu_device, is_ready, states, until
from tests.waiting import in_loop

pytestmark = pytest.mark.integration


async def reading(device: GpuDevice, name: str) -> TaskReading | None:
    """What a task did; None where there is none. Reading looks for faults, too."""
    return next(
        (each for each in (await device.read()).tasks if each.name == name), None
    )


async def is_at(device: GpuDevice, name: str, state: str, done: float = 0.0) -> bool:
    found = await reading(device, name)
    return found is not None and found.state == state and found.done_iterations >= done


async def is_gone(device: GpuDevice, name: str) -> bool:
    return await reading(device, name) is None


async def has_left(device: GpuDevice, replica_id: str) -> bool:
    return replica_id not in await states(device)


@in_loop
async def test_a_fault_of_mps_ends_the_replicas_and_tasks_of_its_gpu_which_go_on_from_what_they_kept(
    tmp_path: Path,
) -> None:
    async with gpu_device(Wanted(directory=tmp_path, has_mps=True)) as device:
        await device.start_task(0, a_task("done", iterations=1))
        await until(lambda: is_at(device, "done", "finished"))
        for gpu_index, name in ((0, "t1"), (1, "t2")):
            await device.start_task(gpu_index, a_task(name, iterations=1_000_000))
        await device.start_replica(0, a_replica("r1", sm_percent=40.0))
        await until(lambda: is_at(device, "t1", "running", done=3.0))
        await until(lambda: is_at(device, "t2", "running"))
        await until(lambda: is_ready(device, "r1"))
        break_gpu(str(tmp_path / "m" / "0" / "pipe"))
        await until(lambda: is_gone(device, "t1"))
        await until(lambda: has_left(device, "r1"))
        assert await is_at(device, "done", "finished"), (
            "its end is still to be reported"
        )
        assert await is_at(device, "t2", "running"), "GPU 1 has an MPS of its own"
        await device.start_task(0, a_task("t1", iterations=1_000_000))
        await until(lambda: is_at(device, "t1", "running", done=3.0))
