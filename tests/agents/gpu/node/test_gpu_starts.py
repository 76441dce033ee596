"""A GPU that does not start keeps no other from use, says why, and is tried again."""

import asyncio
from dataclasses import dataclass, field

import pytest

from agents.base.device import DeviceError, GpuLost, LaunchFailed
from agents.gpu.mps.gpu_sharing import ByTurns
from agents.gpu.node.starts import FIRST_S, MAX_S, GpuStarts, StartedGpu
from agents.gpu.nvml.types import GpuCapabilities, GpuIdentity
from tests.agents.factories import a_replica
from tests.agents.gpu_nodes import GPUS, FakeErrors
from tests.waiting import in_loop


@dataclass
class Starter:
    """Fails for the GPUs that it is told to, as often as it is told."""

    fails: dict[int, int]
    error: Exception = field(default_factory=lambda: GpuLost("it fell off the bus"))
    tried: list[int] = field(default_factory=list)

    async def __call__(self, gpu: GpuIdentity) -> StartedGpu:
        self.tried.append(gpu.index)
        if self.fails.get(gpu.index, 0) > 0:
            self.fails[gpu.index] -= 1
            raise self.error
        return StartedGpu(
            sharing=ByTurns(gpu, "a test"),
            capabilities=GpuCapabilities(clocks_mhz=(510.0,)),
        )


@dataclass
class Sleeps:
    """Notes how long; lets go as often as it is allowed, then waits for ever."""

    most: int
    slept_s: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        if len(self.slept_s) > self.most:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


async def settle(sleeps: Sleeps) -> None:
    while len(sleeps.slept_s) <= sleeps.most:  # noqa: ASYNC110  it is told by no event
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "error",
    [GpuLost("it fell off the bus"), DeviceError("MPS hangs"), OSError("disk full")],
)
@in_loop
async def test_the_others_start_and_the_one_is_condemned_with_the_reason(
    error: Exception,
) -> None:
    sleeps = Sleeps(most=0)
    starts = GpuStarts(FakeErrors(), Starter({0: 9}, error), sleep=sleeps)
    await starts.begin(GPUS)
    assert (
        list(starts.condemned()) == [GPUS[0].uuid]
        and str(error) in starts.condemned()[GPUS[0].uuid]
    )
    assert isinstance(starts.sharings[1], ByTurns) and starts.capabilities[
        1
    ].clocks_mhz == (510.0,)
    with pytest.raises(LaunchFailed, match=str(error)):
        await starts.sharings[0].environment(a_replica("r1"))
    starts.close()


@in_loop
async def test_it_is_tried_again_ever_less_often_until_it_starts() -> None:
    sleeps, starter = Sleeps(most=20), Starter({0: 10})
    starts = GpuStarts(FakeErrors(), starter, sleep=sleeps)
    await starts.begin(GPUS)
    while starts.condemned():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert starter.tried == [0, 1] + [0] * 10
    assert isinstance(starts.sharings[0], ByTurns) and starts.capabilities[
        0
    ].clocks_mhz == (510.0,)
    # 5, 10, 20, 40, 80, 160 and then 300 s, each between half and all of it.
    bounds_s = [min(MAX_S, FIRST_S * 2.0**at) for at in range(10)]
    assert all(
        0.5 * most <= slept <= most
        for slept, most in zip(sleeps.slept_s, bounds_s, strict=True)
    )
    starts.close()


@in_loop
async def test_closing_from_another_thread_ends_the_trying() -> None:
    sleeps, starter = Sleeps(most=3), Starter({0: 99})
    starts = GpuStarts(FakeErrors(), starter, sleep=sleeps)
    await starts.begin(GPUS)
    await settle(sleeps)
    tried = len(starter.tried)
    await asyncio.to_thread(starts.close)
    while any(  # noqa: ASYNC110
        each.get_name().startswith("start of GPU") for each in asyncio.all_tasks()
    ):
        await asyncio.sleep(0)
    assert len(starter.tried) == tried
