"""The same node behind its own router and behind HAProxy: switches, successors and restarts of the agent under load."""

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp
import pytest

from agents.daemon.loop import AgentSettings, NodeAgent
from agents.gpu.node.device import GpuDevice
from agents.router.haproxy.supervised import PLACES
from agents.sync.ledger import Ledger
from tests.agents.factories import a_replica
from tests.agents.gpu.node.test_gpu_device import Commands, a_command
from tests.agents.gpu_nodes import (
    CLOCK,
    Wanted,
    front,
    gpu_device,
    inputs,
    states,
    until,
)
from tests.ports import a_free_port
from tests.waiting import in_loop

pytestmark = pytest.mark.integration
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path=PLACES)
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
RouterName = Literal["own", "haproxy"]
both = pytest.mark.parametrize(
    "router", ["own", pytest.param("haproxy", marks=needs_haproxy)]
)


@dataclass(slots=True, kw_only=True)
class Load:
    """What came of the requests of four clients that ask all the time."""

    url: str
    outcomes: Counter[str] = field(default_factory=Counter)
    clients: list["asyncio.Task[None]"] = field(default_factory=list)

    def begin(self) -> None:
        self.clients = [asyncio.create_task(self._ask()) for _ in range(4)]

    async def more(self, count: int = 50) -> None:
        before = self.outcomes.total()

        async def came() -> bool:
            return self.outcomes.total() >= before + count

        await until(came)

    async def end(self) -> None:
        for each in self.clients:
            each.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)

    async def _ask(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.post(
                        f"{self.url}/v2/models/chat/infer", json=inputs()
                    ) as answer:
                        await answer.read()
                        self.outcomes[str(answer.status)] += 1
                except aiohttp.ClientError as error:
                    self.outcomes[repr(error)] += 1


@asynccontextmanager
async def an_address(device: GpuDevice, wanted: Wanted) -> AsyncIterator[str]:
    if wanted.haproxy_port is not None:
        yield f"http://127.0.0.1:{wanted.haproxy_port}"
        return
    async with front(device) as url:
        yield url


@asynccontextmanager
async def running(
    device: GpuDevice, control: Commands, ledger: Ledger | None = None
) -> AsyncIterator[NodeAgent]:
    settings = AgentSettings(node="n1", boot="b1", period_s=0.2, enforce_period_s=0.1)
    agent = NodeAgent(
        settings, device, transport=control, clock=CLOCK, ledger=ledger or Ledger(None)
    )
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        yield agent
    finally:
        stop.set()
        await task


def wanted_node(directory: Path, router: RouterName) -> Wanted:
    return Wanted(
        directory=directory, haproxy_port=a_free_port() if router == "haproxy" else None
    )


async def applied(control: Commands, generation: int) -> None:
    async def is_applied() -> bool:
        acks = [
            ack
            for seen in control.seen
            for ack in seen.acks
            if ack.generation == generation
        ]
        return any(ack.status == "applied" for ack in acks)

    await until(is_applied)


@both
@in_loop
async def test_switches_of_shares_under_load_lose_no_request_and_all_are_counted(
    tmp_path: Path, router: RouterName
) -> None:
    control, wanted = Commands(), wanted_node(tmp_path, router)
    async with (
        gpu_device(wanted) as device,
        an_address(device, wanted) as url,
        running(device, control),
    ):
        control.command = a_command(1, a_replica("r1", sm_percent=20.0))
        await applied(control, 1)
        load = Load(url=url)
        load.begin()
        for generation, share in ((2, 40.0), (3, 60.0)):
            await load.more()
            control.command = a_command(
                generation, a_replica(f"r{generation}", sm_percent=share)
            )
            await applied(control, generation)
            assert await states(device) == {f"r{generation}": "ready"}
        await load.more()
        await load.end()
        assert load.outcomes.keys() == {"200"}

        async def are_counted() -> bool:
            served = sum(each.served for seen in control.seen for each in seen.services)
            return served >= load.outcomes["200"]

        await until(are_counted)
        services = [each for seen in control.seen for each in seen.services]
        # Whoever was cancelled at the end, four at most, may count as arrived or served without our knowing.
        assert (
            load.outcomes["200"]
            <= sum(each.arrivals for each in services)
            <= load.outcomes["200"] + 4
        )
        assert sum(each.in_slo for each in services) >= 0.9 * load.outcomes["200"]


@both
@in_loop
async def test_another_batch_of_a_server_that_takes_none_is_a_switch_without_a_lost_request(
    tmp_path: Path, router: RouterName
) -> None:
    control = Commands()
    wanted = wanted_node(tmp_path, router)
    wanted = Wanted(
        directory=tmp_path, haproxy_port=wanted.haproxy_port, batch_change="restart"
    )
    async with (
        gpu_device(wanted) as device,
        an_address(device, wanted) as url,
        running(device, control),
    ):
        control.command = a_command(1, a_replica("r1", batch=4))
        await applied(control, 1)
        load = Load(url=url)
        load.begin()
        control.command = a_command(2, a_replica("r1", batch=8))
        await applied(control, 2)
        assert await states(device) == {"r1~8": "ready"}
        await load.more()
        await load.end()
        assert load.outcomes.keys() == {"200"}
        assert {each.id for seen in control.seen for each in seen.replicas} == {"r1"}
        assert {each.batch for each in control.seen[-1].replicas} == {8}


@needs_haproxy
@in_loop
async def test_haproxy_and_replicas_carry_on_while_the_agent_is_exchanged(
    tmp_path: Path,
) -> None:
    control, port = Commands(), a_free_port()
    wanted = Wanted(directory=tmp_path, haproxy_port=port, keeps_replicas=True)
    load = Load(url=f"http://127.0.0.1:{port}")
    control.command = a_command(1, a_replica("r1"))
    async with (
        gpu_device(wanted) as device,
        running(device, control, Ledger(tmp_path / "state")),
    ):
        await applied(control, 1)
        load.begin()
        await load.more()
    await load.more()  # nobody but HAProxy and the replica is there
    control.seen.clear()
    last = Wanted(directory=tmp_path, haproxy_port=port)
    async with contextlib.AsyncExitStack() as stack:
        device = await stack.enter_async_context(gpu_device(last))
        await stack.enter_async_context(
            running(device, control, Ledger(tmp_path / "state"))
        )
        await applied(control, 1)
        await load.more()
        await load.end()
    assert load.outcomes.keys() == {"200"}
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(load.url)
