"""A node of which a GPU does not answer, or does not tell all of itself: the other GPUs serve on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agents.base.protocol import GpuCommand, NodeCommand, Route
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.devices import Devices
from agents.gpu.node.inventory import FILE, load_inventory, save_inventory
from agents.gpu.node.open import GpuNodeSettings, open_gpu_device
from agents.gpu.nvml.known_memory import memory_mib_of
from agents.gpu.nvml.session import Nvml
from tests.agents.factories import a_replica
from tests.agents.fakes.nvml.fake_gpus import NO_LOCK, NO_MEMORY, NO_POWER, FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.agents.gpu_nodes import CLOCK, Commands, commanded, play
from tests.waiting import eventually as until

__all__ = ("fake", "library")

GPU_TYPE = "H100"
LOST = 15


@asynccontextmanager
async def opened(
    directory: Path, gpu_type: str = GPU_TYPE, memory_mib: float | None = None
) -> AsyncIterator[GpuDevice]:
    """The node's device, as an agent opens it."""
    settings = GpuNodeSettings(
        state_dir=directory / "s",
        mps_dir=directory / "m",
        type_of=lambda _: gpu_type,
        memory_mib=lambda _: memory_mib_of(gpu_type, memory_mib),
        uses_mps=False,
    )
    device = await open_gpu_device(settings, CLOCK)
    try:
        yield device
    finally:
        await device.close()


async def problems(device: GpuDevice) -> str:
    return "; ".join((await device.read()).problems)


async def health(device: GpuDevice) -> dict[int, bool]:
    await device.read()
    return {gpu.index: gpu.healthy for gpu in (await device.state()).gpus}


def both_gpus(generation: int) -> NodeCommand:
    """A replica on each GPU."""
    gpus = tuple(
        GpuCommand(
            index=index,
            gpu_type=GPU_TYPE,
            clock_mhz=0.0,
            power_cap_w=0.0,
            replicas=(a_replica(f"r{index}", service="chat"),),
        )
        for index in range(2)
    )
    route = Route(
        service="chat", slo_ms=60_000.0, percentile=0.99, arrival_rate_rps=1.0
    )
    return NodeCommand(node="n1", generation=generation, gpus=gpus, routes=(route,))


async def is_served_on_gpu_1(control: Commands) -> None:
    """Wait until the agent has told that the replica of GPU 1 is ready; that of GPU 0 never began."""

    def is_ready() -> bool:
        found = {each.id: each.state for seen in control.seen for each in seen.replicas}
        assert "r0" not in found
        return found.get("r1") == "ready"

    await until(is_ready)


def said_of(control: Commands, generation: int) -> tuple[str, str]:
    """What the agent acknowledged of that command last."""
    acks = [ack for seen in control.seen for ack in seen.acks]
    (*_, last) = (ack for ack in acks if ack.generation == generation)
    return last.status, last.detail


@pytest.mark.parametrize("code", [15, 16, 17, 999])
def test_any_error_of_one_handle_at_the_start_costs_that_gpu_and_its_replicas_alone(
    fake: FakeGpus, tmp_path: Path, code: int
) -> None:
    async def scenario() -> None:
        fake.fail("nvmlDeviceGetHandleByIndex_v2", code, times=1)
        async with opened(tmp_path) as device:
            assert await health(device) == {1: True}
            assert "GPU 0 is not used: could not open GPU 0: " in await problems(device)
            control = Commands()
            control.command = both_gpus(1)
            async with commanded(device, control):
                await is_served_on_gpu_1(control)
            assert said_of(control, 1) == (
                "failed",
                "there is no GPU 0; this node has [1]",
            )

    play(scenario)


def test_a_gpu_that_is_known_and_lost_at_the_start_is_ill_and_used_when_it_is_back(
    fake: FakeGpus, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as device:
            assert await health(device) == {0: True, 1: True}
        fake.gpu(0).lost = LOST
        async with opened(tmp_path) as device:
            assert await health(device) == {0: False, 1: True}
            control = Commands()
            control.command = both_gpus(1)
            async with commanded(device, control):
                await is_served_on_gpu_1(control)
                assert said_of(control, 1) == ("failed", "GPU 0 does not answer")
                fake.gpu(0).lost = 0
                await control.applied(1)
            assert await health(device) == {0: True, 1: True}

            # Its errors are listened to, which was not possible at the start.
            async def is_condemned() -> bool:
                # Nothing says when they are: what came before that is not heard.
                fake.happens(79, gpu=0)
                return not (await health(device))[0]

            async def is_acquitted() -> bool:
                # One more of them may come after it.
                await device.acquit(0)
                return await health(device) == {0: True, 1: True}

            await until(is_condemned)
            await until(is_acquitted)

    play(scenario)


def test_a_place_that_another_gpu_took_is_forgotten_and_a_damaged_file_costs_nothing(
    fake: FakeGpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Nvml() as nvml:
        save_inventory(tmp_path, Devices(nvml).gpus())
        known = load_inventory(tmp_path)
        assert [gpu.uuid for gpu in known] == ["GPU-0", "GPU-1"]
        # The driver counts from the first again: what was GPU 1 is GPU 0 now, and a third GPU is lost.
        fake.gpu(0).uuid, fake.gpu(1).lost = b"GPU-1", LOST
        found = Devices(nvml, known=known)
        assert [(gpu.index, gpu.uuid) for gpu in found.gpus()] == [(0, "GPU-1")]
        assert "GPU 1 is not used: " in "; ".join(found.look().problems)
        # Where no GPU is used the control plane may take no report, so that the log alone says why.
        assert "GPU 1 is not used: " in caplog.text
    (tmp_path / FILE).write_text("{")
    assert load_inventory(tmp_path) == ()


@pytest.mark.parametrize("without", [NO_POWER, NO_POWER | NO_LOCK])
def test_a_gpu_that_does_not_tell_its_power_is_healthy_and_its_caps_are_said_not_to_be_kept(
    fake: FakeGpus, tmp_path: Path, without: int
) -> None:
    async def scenario() -> None:
        fake.gpu(0).without = without
        async with opened(tmp_path) as device:
            assert await health(device) == {0: True, 1: True}
            said = await problems(device)
            assert "GPU 0: its driver does not tell power" in said
            assert "power caps are not kept there" in said
            assert "GPU 0: the power limit is not in force" in said
            (state, _) = (await device.state()).gpus
            assert not state.has_power_limit

    play(scenario)


def test_memory_that_is_not_told_is_that_of_the_type_else_what_is_given(
    fake: FakeGpus, tmp_path: Path
) -> None:
    async def scenario() -> None:
        fake.gpu(0).without = NO_MEMORY
        async with opened(tmp_path) as device:
            (state, other) = (await device.state()).gpus
            assert (state.memory_mib, other.memory_mib) == (81559.0, 81920.0)
            assert "does not tell memory in use" in await problems(device)
            assert await health(device) == {0: True, 1: True}
        async with opened(tmp_path / "b", "GB10", 122_880.0) as device:
            assert (await device.state()).gpus[0].memory_mib == 122_880.0
        async with opened(tmp_path / "c", "GB10") as device:
            assert await health(device) == {1: True}
            said = await problems(device)
            for part in (
                "GPU 0",
                "nvmlDeviceGetMemoryInfo",
                "--gpu-memory-mib",
                "GB10",
            ):
                assert part in said

    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    play(scenario)


def test_a_gpu_is_ill_while_its_driver_asks_for_a_reset_and_not_for_one_that_can_wait(
    fake: FakeGpus, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as device:
            for action, is_healthy, asked in (
                (1, False, "asks to reset the GPU; until then it is not used"),
                (4, True, "asks to drain the node, then reset the GPU"),
                (42, False, "asks to take recovery action 42"),
                (0, True, ""),
            ):
                fake.gpu(0).recovery = action
                assert await health(device) == {0: is_healthy, 1: True}
                said = await problems(device)
                assert (asked in said) if asked else ("its driver asks" not in said)

    play(scenario)


def test_a_gpu_that_does_not_say_whether_it_is_sliced_costs_itself_alone(
    fake: FakeGpus,
) -> None:
    with Nvml() as nvml:
        fake.fail("nvmlDeviceGetMigMode", 999, times=1)
        found = Devices(nvml)
        assert [gpu.index for gpu in found.gpus()] == [1]
        assert "GPU 0 is not used: could not read the MIG mode of" in "; ".join(
            found.look().problems
        )
        fake.fail("nvmlDeviceGetMigMode", 4)
        assert [gpu.index for gpu in Devices(nvml).gpus()] == [0, 1], "a guest's GPU"
