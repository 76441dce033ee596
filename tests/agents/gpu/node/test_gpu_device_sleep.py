"""A node with fake GPUs on which a language model's replica, a real process, sleeps while another has its memory."""

from pathlib import Path

import msgspec
import pytest

from agents.base.device import LaunchFailed
from agents.base.protocol import ReplicaCommand
from tests.agents.factories import a_replica, an_engine
from tests.agents.gpu_nodes import MODEL, Wanted, gpu_device, states, until
from tests.waiting import in_loop

pytestmark = pytest.mark.integration


def a_model_on(gpu_index: int) -> ReplicaCommand:
    replica = a_replica(memory_mib=900.0, sm_percent=100.0)
    engine = an_engine(gpu_index)
    return msgspec.structs.replace(replica, network=MODEL, engine=engine)


@in_loop
async def test_what_sleeps_leaves_room_to_another_and_wakes_when_that_is_gone(
    tmp_path: Path,
) -> None:
    async with gpu_device(Wanted(directory=tmp_path)) as device:

        async def becomes(state: str) -> None:
            async def is_so() -> bool:
                return (await states(device)).get("r1") == state

            await until(is_so)

        await device.start_replica(0, a_model_on(0))
        await becomes("ready")
        await device.drain("r1")
        await device.sleep("r1")
        await becomes("asleep")
        # Its ninth is 100 MiB of 16384.
        await device.start_replica(0, a_replica("r2", memory_mib=16_000.0))
        with pytest.raises(LaunchFailed, match="r1 needs 800 MiB"):
            await device.wake("r1")
        await device.stop_replica("r2")

        async def is_alone() -> bool:
            return set(await states(device)) == {"r1"}

        await until(is_alone)
        await device.wake("r1")
        await becomes("ready")
