"""The same node behind its own router and behind HAProxy: switches, successors and restarts of the agent under load."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import aiohttp
import pytest

from agents.gpu.node.device import GpuDevice
from agents.router.haproxy.supervised import PLACES
from agents.sync.ledger import Ledger
from tests.agents.factories import a_replica
from tests.agents.gpu_nodes import (
    Commands,
    Load,
    Wanted,
    a_node_command,
    commanded,
    front,
    gpu_device,
    states,
    until,
)
from tests.agents.router.conftest import patient_haproxy as patient_haproxy
from tests.ports import a_free_port
from tests.waiting import in_loop

pytestmark = pytest.mark.integration
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path=PLACES)
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
RouterName = Literal["own", "haproxy"]
both = pytest.mark.parametrize(
    "router", ["own", pytest.param("haproxy", marks=needs_haproxy)]
)


@asynccontextmanager
async def an_address(device: GpuDevice, wanted: Wanted) -> AsyncIterator[str]:
    if wanted.haproxy_port is not None:
        yield f"http://127.0.0.1:{wanted.haproxy_port}"
        return
    async with front(device) as url:
        yield url


def wanted_node(directory: Path, router: RouterName) -> Wanted:
    if router == "own":
        return Wanted(directory=directory, has_mps=True, batch_change="restart")
    port = a_free_port()
    return Wanted(directory=directory, haproxy_port=port, batch_change="restart")


@both
@in_loop
async def test_a_switch_of_shares_under_load_loses_no_request_and_all_are_counted(
    tmp_path: Path, router: RouterName
) -> None:
    control, wanted = Commands(), wanted_node(tmp_path, router)
    async with (
        gpu_device(wanted) as device,
        an_address(device, wanted) as url,
        commanded(device, control),
    ):
        await control.apply(1, a_replica("r1", sm_percent=20.0))
        load = Load(url=url)
        load.begin()
        await load.more()
        await control.apply(2, a_replica("r2", sm_percent=40.0))
        assert await states(device) == {"r2": "ready"}
        await load.more()
        # A server that takes no other batch while it runs is exchanged, under the name that was commanded.
        await control.apply(3, a_replica("r2", sm_percent=40.0, batch=8))
        assert await states(device) == {"r2~8": "ready"}
        assert {each.id for each in control.seen[-1].replicas} == {"r2"}
        await load.more()
        await load.end()
        assert load.outcomes.keys() == {"200"}

        async def are_counted() -> bool:
            served = sum(each.served for seen in control.seen for each in seen.services)
            return served >= load.outcomes["200"]

        await until(are_counted)
        services = [each for seen in control.seen for each in seen.services]
        # Those cancelled at the end, four at most, may count as arrived or served without our knowing.
        assert (
            load.outcomes["200"]
            <= sum(each.arrivals for each in services)
            <= load.outcomes["200"] + 4
        )
        assert all(each.in_slo == each.served for each in services)


@needs_haproxy
@in_loop
async def test_haproxy_and_replicas_carry_on_while_the_agent_is_exchanged(
    tmp_path: Path,
) -> None:
    control, port = Commands(), a_free_port()
    wanted = Wanted(directory=tmp_path, haproxy_port=port, keeps_replicas=True)
    load = Load(url=f"http://127.0.0.1:{port}")
    control.command = a_node_command(1, a_replica("r1"))
    async with (
        gpu_device(wanted) as device,
        commanded(device, control, Ledger(tmp_path / "state")),
    ):
        await control.applied(1)
        load.begin()
        await load.more()
    await load.more()  # only HAProxy and the replica are there
    control.seen.clear()
    last = Wanted(directory=tmp_path, haproxy_port=port)
    async with contextlib.AsyncExitStack() as stack:
        device = await stack.enter_async_context(gpu_device(last))
        await stack.enter_async_context(
            commanded(device, control, Ledger(tmp_path / "state"))
        )
        await control.applied(1)
        await load.more()
        await load.end()
    assert load.outcomes.keys() == {"200"}
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(load.url)
