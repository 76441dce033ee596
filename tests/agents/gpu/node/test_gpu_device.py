"""A node with fake GPUs, whose replicas are real processes behind the real router, driven by the real agent."""

from pathlib import Path

import aiohttp
import psutil
import pytest

from agents.base.device import DeviceError, LaunchFailed, ServiceRoute, UnknownPart
from agents.gpu.node.device import GpuDevice
from agents.gpu.nvml.types import Capability
from tests.agents.factories import a_replica, a_task
from tests.agents.gpu_nodes import (
    GPUS,
    NOT_PERMITTED,
    FakeErrors,
    FakeKnobs,
    Wanted,
    front,
    gpu_device,
    inputs,
    is_ready,
    states,
    until,
)
from tests.waiting import PATIENCE_S, in_loop

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.gpu.node.device.POLL_LIMIT_S", PATIENCE_S)


ROUTE = ServiceRoute(service="chat", slo_ms=500.0, shares=(("r1", 1.0),))


async def ask(
    session: aiohttp.ClientSession, url: str, value: float = 1.0
) -> tuple[int, list[float]]:
    async with session.post(
        f"{url}/v2/models/chat/infer", json=inputs(value)
    ) as answer:
        body = await answer.json()
        return answer.status, body["outputs"][0]["data"] if answer.ok else []


@in_loop
async def test_a_replica_is_started_served_changed_counted_and_ended(
    tmp_path: Path,
) -> None:
    async with (
        gpu_device(Wanted(directory=tmp_path)) as device,
        front(device) as url,
        aiohttp.ClientSession() as web,
    ):
        await device.start_replica(0, a_replica())
        assert await states(device) == {"r1": "starting"}
        await until(lambda: is_ready(device, "r1"))
        await device.switch_routes((ROUTE,))
        assert await ask(web, url, 41.0) == (200, [42.0])
        await device.set_batch("r1", 8)
        (replica,) = (await device.state()).gpus[0].replicas
        assert (replica.batch, replica.sm_percent, replica.in_flight) == (8, 50.0, 0)
        readings = await device.read()
        (served,) = readings.replicas
        assert (served.requests, served.batches) == (1, 1)
        assert served.execution_ms >= 2.0
        assert [each.arrivals for each in readings.services] == [1]
        assert [(gpu.power_w, gpu.healthy) for gpu in readings.gpus] == [
            (100.0, True),
            (100.0, True),
        ]
        assert (await device.read()).replicas[0].requests == 0
        await device.switch_routes(())
        await device.drain("r1")
        assert await states(device) == {"r1": "draining"}
        await device.stop_replica("r1")
        await until(lambda: _is_empty(device))


async def _is_empty(device: GpuDevice) -> bool:
    return not await states(device)


@in_loop
async def test_memory_is_not_promised_twice_and_what_is_not_there_is_named(
    tmp_path: Path,
) -> None:
    async with gpu_device(Wanted(directory=tmp_path)) as device:
        await device.start_replica(0, a_replica(memory_mib=10_000.0))
        with pytest.raises(
            LaunchFailed,
            match="r2 needs 6385 MiB; of the 16384 of GPU 0 10000 are promised",
        ):
            await device.start_replica(0, a_replica("r2", memory_mib=6385.0))
        with pytest.raises(UnknownPart, match=r"no GPU 7; this node has \[0, 1\]"):
            await device.start_replica(7, a_replica("r3"))
        with pytest.raises(UnknownPart, match="not ready"):
            await device.switch_routes(
                (ServiceRoute(service="chat", slo_ms=1.0, shares=(("r9", 1.0),)),)
            )
        with pytest.raises(
            LaunchFailed,
            match="task t1 needs 6385 MiB; of the 16384 of GPU 0 10000 are promised",
        ):
            await device.start_task(0, a_task(memory_mib=6385.0))


@in_loop
async def test_knobs_are_turned_and_one_that_is_refused_is_told_and_not_asked_for_again(
    tmp_path: Path,
) -> None:
    knobs = FakeKnobs()
    async with gpu_device(Wanted(directory=tmp_path, knobs=knobs)) as device:
        await device.lock_clock_mhz(0, 1200.0)
        await device.limit_power_w(1, 250.0)
        first, second = (await device.state()).gpus
        assert (first.clock_mhz, second.power_limit_w) == (1200.0, 250.0)
        knobs.refusal = NOT_PERMITTED
        await device.lock_clock_mhz(0, 900.0)
        (first, _) = (await device.state()).gpus
        assert (first.clock_mhz, first.has_clock_lock, first.has_power_limit) == (
            1200.0,
            False,
            True,
        )
        problems = (await device.read()).problems
        assert any(
            "GPU 0: the clock is not in force: could not turn it" in words
            for words in problems
        )
        assert any(
            "GPU 1 is shared by turns, SM percents are not in force" in words
            for words in problems
        )
    assert knobs.turned == [("clock", 0, 1200.0), ("power", 1, 250.0)]
    assert knobs.is_closed


@in_loop
async def test_a_knob_that_the_gpu_lacks_is_known_before_anybody_turns_it(
    tmp_path: Path,
) -> None:
    why_not = (
        (Capability.LOCK_CLOCK, "this GPU does not have it"),
        (Capability.SM_ACTIVITY, "too old"),
    )
    async with gpu_device(Wanted(directory=tmp_path, why_not=why_not)) as device:
        assert [gpu.has_clock_lock for gpu in (await device.state()).gpus] == [
            False,
            True,
        ]
        problems = (await device.read()).problems
        assert "GPU 0: the clock is not in force: this GPU does not have it" in problems


@in_loop
async def test_a_critical_error_condemns_its_gpu_alone(tmp_path: Path) -> None:
    errors = FakeErrors()
    async with gpu_device(Wanted(directory=tmp_path, errors=errors)) as device:
        assert [gpu.healthy for gpu in (await device.state()).gpus] == [True, True]
        errors.gpus[GPUS[1].uuid] = "Xid 79: it fell off the bus"
        assert [gpu.healthy for gpu in (await device.state()).gpus] == [True, False]
        readings = await device.read()
        assert [gpu.healthy for gpu in readings.gpus] == [True, False]
        assert "GPU 1: Xid 79: it fell off the bus" in readings.problems


@in_loop
async def test_a_poll_tells_what_happened_since_the_last_one_and_a_silent_server_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        gpu_device(Wanted(directory=tmp_path)) as device,
        front(device) as url,
        aiohttp.ClientSession() as web,
    ):
        await device.start_replica(0, a_replica())
        await until(lambda: is_ready(device, "r1"))
        await device.switch_routes((ROUTE,))
        for _ in range(3):
            await ask(web, url)
        poll = await device.poll(0)
        (replica,) = poll.replicas
        assert (replica.requests, replica.batches, replica.queued) == (3, 3, 0)
        assert (poll.peak_power_w, replica.execution_ms >= 2.0) == (100.0, True)
        assert sum(count for _, count in replica.latency_buckets) == 3
        await ask(web, url)
        (replica,) = (await device.poll(0)).replicas
        counted = sum(count for _, count in replica.latency_buckets)
        assert (replica.requests, counted) == (1, 1)
        assert (await device.read()).replicas[0].requests == 4, "readings are apart"
        assert (await device.poll(1)).replicas == ()
        children = psutil.Process().children()
        # Those of earlier tests may not have been waited for.
        living = [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
        (server,) = (each for each in living if "chat" in each.cmdline())
        server.suspend()
        with monkeypatch.context() as now:
            now.setattr("agents.gpu.node.device.POLL_LIMIT_S", 0.1)
            with pytest.raises(DeviceError, match="do not tell within"):
                await device.poll(0)
        server.resume()
        assert len((await device.poll(0)).replicas) == 1


@in_loop
async def test_one_that_missed_mps_never_takes_requests(tmp_path: Path) -> None:
    async with gpu_device(
        Wanted(directory=tmp_path, has_mps=True, words=("--outside",))
    ) as device:
        await device.start_replica(0, a_replica(sm_percent=40.0))

        async def has_failed() -> bool:
            return await states(device) == {"r1": "failed"}

        await until(has_failed)
        (problem,) = (await device.read()).problems
        assert "it sees all 132 SMs at 40 %, so it runs outside MPS" in problem
