"""What ends or hangs takes nothing else along and leaves nothing behind: a device, its replicas, their counts."""

import os
from pathlib import Path

import pytest

from agents.router.haproxy.state import HaProxyError
from tests.agents.factories import a_replica
from tests.agents.gpu_nodes import FakeKnobs, Wanted, gpu_device, play, states, until
from tests.waiting import in_loop

pytestmark = pytest.mark.integration


def test_a_router_that_cannot_be_closed_keeps_neither_knobs_nor_replicas_as_they_are(
    tmp_path: Path,
) -> None:
    knobs = FakeKnobs()
    ended: list[int] = []

    async def fail(*, keep: bool) -> None:
        raise HaProxyError(f"its record cannot be removed; kept: {keep}")

    async def scenario() -> None:
        async with gpu_device(Wanted(directory=tmp_path, knobs=knobs)) as device:
            await device.start_replica(0, a_replica("r1"))
            ended.extend(view.pid for view in device._parts.workers.replicas())
            device.router.close = fail  # type: ignore[method-assign]

    with pytest.raises(HaProxyError, match="kept: False"):
        play(scenario)
    assert knobs.is_closed
    (pid,) = ended
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@in_loop
async def test_of_a_replica_that_is_gone_no_counts_are_kept(tmp_path: Path) -> None:
    async with gpu_device(Wanted(directory=tmp_path)) as device:
        await device.start_replica(0, a_replica("r1"))

        async def is_ready() -> bool:
            return await states(device) == {"r1": "ready"}

        async def is_gone() -> bool:
            return await states(device) == {}

        await until(is_ready)
        await device.stop_replica("r1")
        (reading,) = (await device.read()).replicas  # while it is being ended
        assert reading.state == "draining"
        await until(is_gone)
        assert (await device.read()).replicas == ()
        assert not device._counters._counted and not device._counters._asked_s
