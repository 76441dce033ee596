"""The one real HTTP path: a client, the router, and timed workers, all over sockets of this machine."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from agents.base.clock import ScaledClock
from agents.base.device import (
    GpuState,
)
from agents.base.protocol import NodeCommand, ReplicaCommand
from agents.enforce.actions import perform
from agents.enforce.diff import actions, is_settled
from agents.fake.device import FakeDevice
from agents.fake.worker import FakeWorker
from agents.router.router import Router
from tests.agents.factories import a_command, a_gpu, a_replica, an_empty_gpu
from tests.agents.router_harness import a_route, served
from tests.integration.scenes import Body, scene
from tests.waiting import eventually, in_loop, run

pytestmark = pytest.mark.integration


def a_body(number: int) -> dict[str, object]:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [number, 1.0]}
    return {"id": str(number), "inputs": [tensor]}


class Node:
    """A router with two workers, and a client in front."""

    def __init__(self, *, router: Router) -> None:
        self.router = router
        self.workers = {
            name: FakeWorker(
                "chat",
                batch=4,
                execution_s=lambda _: 0.002,
                clock=ScaledClock(),
            )
            for name in ("a", "b")
        }
        self.addresses: dict[str, str] = {}
        self.url = ""
        self.client: aiohttp.ClientSession

    async def infer(self, number: int, *, service: str = "chat") -> int:
        """Status of one request; a good answer must be the request's own."""
        async with self.client.post(
            f"{self.url}/v2/models/{service}/infer", json=a_body(number)
        ) as response:
            if response.status == 200:
                answer = await response.json()
                assert answer["id"] == str(number)
                assert answer["outputs"][0]["data"] == [number + 1.0]
            return response.status

    def served_by(self) -> dict[str, int]:
        return {
            name: sum(worker.batches.elements())
            for name, worker in self.workers.items()
        }


def on_node(*, queue_limit: int | None = None) -> Callable[[Body], Callable[..., None]]:
    """For tests that run as a coroutine against a node of their own."""

    async def served_node(body: Body) -> None:
        router = Router() if queue_limit is None else Router(queue_limit=queue_limit)
        node = Node(router=router)
        async with AsyncExitStack() as stack:
            for name, worker in node.workers.items():
                node.addresses[name] = await stack.enter_async_context(
                    served(worker.make_app())
                )
            node.url = await stack.enter_async_context(served(node.router.make_app()))
            node.client = await stack.enter_async_context(aiohttp.ClientSession())
            await body(node)

    return scene(lambda body: run(served_node(body)), supplies=("node",))


async def tick_until(is_so: Callable[[], bool]) -> None:
    """Let the other tasks run until something holds."""
    while not is_so():  # noqa: ASYNC110, it is reached through sockets, not through an event
        await asyncio.sleep(0.001)


@on_node(queue_limit=3)
async def test_an_overloaded_service_answers_at_once_with_503_and_when_to_come_again(
    node: Node,
) -> None:
    node.router.switch((a_route(),), {})
    waiting = [asyncio.create_task(node.infer(number)) for number in range(3)]
    arrivals = 0
    while arrivals < 3:
        await asyncio.sleep(0.001)
        arrivals += node.router.read()[0].arrivals
    async with node.client.post(
        f"{node.url}/v2/models/chat/infer", json=a_body(9)
    ) as response:
        answer = await response.json()
        assert (response.status, answer["status"]) == (503, 503)
        assert response.headers["Retry-After"] == "1"
        assert response.content_type == "application/problem+json"
        assert "3 requests of service chat are already waiting" in answer["detail"]
    # They wait for a node where the service starts, until it is known that there is none.
    node.router.switch((), {})
    node.router.pass_on("chat", ())
    assert Counter(await asyncio.gather(*waiting)) == {503: 3}
    readings = node.router.read()
    assert sum(reading.rejected for reading in readings) == 4


def half_an_answer(*, of_bytes: int) -> web.Application:
    """A worker that breaks off after the first byte of an answer."""

    async def infer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(of_bytes)})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    app = web.Application()
    app.router.add_post("/v2/models/chat/infer", infer)
    return app


@pytest.mark.parametrize("of_bytes", [1000, 10_000_000])
@on_node()
async def test_a_worker_that_breaks_off_is_answered_for_by_the_router_or_breaks_the_callers_connection(
    node: Node, of_bytes: int
) -> None:
    async with served(half_an_answer(of_bytes=of_bytes)) as url:
        node.router.switch((a_route(("x", 1.0)),), {"x": url})
        if of_bytes == 1000:
            assert await node.infer(0) == 502
        else:
            with pytest.raises(aiohttp.ClientError):
                await node.infer(0)
    await tick_until(lambda: node.router.in_flight("x") == 0)
    (reading,) = node.router.read()
    assert (reading.arrivals, reading.served, reading.rejected) == (1, 0, 1)


async def wait_ready(device: FakeDevice, wanted: NodeCommand) -> None:
    async def is_ready() -> bool:
        if is_settled(wanted, await device.state()):
            return True
        for action in actions(wanted, await device.state()):
            await perform(device, action)
        return False

    await eventually(is_ready)


@in_loop
async def test_a_command_becomes_workers_and_a_new_one_replaces_them_under_load_without_losing_a_request() -> (
    None
):
    def execution_s(replica: ReplicaCommand, gpu: GpuState, size: int) -> float:
        return 0.001 * size * (100.0 / replica.sm_percent)

    device = FakeDevice(
        (an_empty_gpu(0),),
        execution_s=execution_s,
        iteration_s=lambda *_: 1.0,
        clock=ScaledClock(),
        launch_s=0.05,
    )
    first = a_command(a_gpu(a_replica("r1", sm_percent=20.0, batch=4)))
    second = a_command(a_gpu(a_replica("r2", sm_percent=60.0, batch=8)), generation=2)
    async with (
        served(device.router.make_app()) as url,
        aiohttp.ClientSession() as client,
    ):
        node = Node(router=device.router)
        node.url, node.client = url, client
        await wait_ready(device, first)
        load = [asyncio.create_task(node.infer(number)) for number in range(300)]
        await wait_ready(device, second)
        load += [asyncio.create_task(node.infer(number)) for number in range(300, 400)]
        assert Counter(await asyncio.gather(*load)) == {200: 400}
        await wait_ready(
            device,
            a_command(a_gpu(a_replica("r2", sm_percent=60.0, batch=2)), generation=3),
        )
        readings = await device.read()
        await device.close()
    (chat,) = readings.services
    assert (chat.arrivals, chat.served, chat.rejected) == (400, 400, 0)
    (now,) = readings.replicas
    assert (now.id, now.batch, now.state) == ("r2", 2, "ready")
    assert now.requests >= 100
    assert (await device.state()).gpus[0].replicas == ()
