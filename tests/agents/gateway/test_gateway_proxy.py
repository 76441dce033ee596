"""The gateway's HAProxy before two nodes that become ready and leave."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from agents.gateway.config import GatewaySettings
from agents.gateway.proxy import GatewayProxy
from agents.gateway.table import GatewayTable
from agents.router.haproxy.process import parse_address
from agents.router.haproxy.supervised import ProxyServer
from tests.agents.router.conftest import patient_haproxy as patient_haproxy
from tests.agents.router.haproxy.test_router import real
from tests.agents.router_harness import served, tick_until
from tests.ports import a_free_port
from tests.waiting import in_loop

pytestmark = real


class NodeFront:
    """A node's router: ready as it is told; answers with its name whatever it is asked."""

    def __init__(self, name: str) -> None:
        self.name, self.is_ready = name, False

    def make_app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v2/models/chat/ready", self._ready)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=self.name)


class Setting:
    """The gateway, two nodes and a caller."""

    def __init__(self, port: int, proxy: GatewayProxy) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.proxy = proxy
        self.a, self.b = NodeFront("a"), NodeFront("b")
        self.addresses: dict[str, tuple[str, int]] = {}
        self.client: aiohttp.ClientSession

    async def switch(self, *weights: str, waiting: str = "") -> None:
        table = GatewayTable(
            weights={"chat": {self.addresses[each]: 256 for each in weights}},
            waiting={"chat": tuple(self.addresses[each] for each in waiting)},
        )
        await self.proxy.put(table)

    async def ask(self, path: str = "/v2/models/chat/infer") -> tuple[int, str]:
        async with self.client.post(self.url + path, data=b"{}") as answer:
            return answer.status, await answer.text()

    async def until(self, name: str) -> None:
        while (await self.ask())[1] != name:  # noqa: ASYNC110  HAProxy does not tell
            await asyncio.sleep(0.02)


@asynccontextmanager
async def a_setting() -> AsyncIterator[Setting]:
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        port = a_free_port()
        settings = GatewaySettings(folder=Path(folder), port=port, services=3, nodes=3)
        proxy = GatewayProxy(settings)
        made = Setting(port, proxy)

        async def restore() -> None:
            await proxy.put(proxy.table)

        server = ProxyServer(proxy, settings.folder, restore)
        await server.open()
        try:
            async with (
                served(made.a.make_app()) as a,
                served(made.b.make_app()) as b,
                aiohttp.ClientSession() as client,
            ):
                made.addresses = {"a": parse_address(a), "b": parse_address(b)}
                made.client = client
                yield made
        finally:
            await server.close(keep=False)


@in_loop
async def test_a_service_moves_from_node_to_node_and_no_request_fails() -> None:
    async with a_setting() as made:
        made.a.is_ready = True
        # Without a waiting place an answer says that the check was good.
        await made.switch("a")
        await made.until("a")
        answers: Counter[tuple[int, str]] = Counter()
        stop = asyncio.Event()

        async def call() -> None:
            while not stop.is_set():
                answers[await made.ask()] += 1

        callers = [asyncio.create_task(call()) for _ in range(4)]
        # Planned there, and not ready: nothing goes there yet.
        await made.switch("a", "b", waiting="b")
        await tick_until(lambda: answers[200, "a"] >= 100)
        assert (200, "b") not in answers
        made.b.is_ready = True
        await tick_until(lambda: (200, "b") in answers)
        made.a.is_ready = False
        await made.until("b")
        await made.switch("b", waiting="b")
        stop.set()
        await asyncio.gather(*callers)
        assert answers.keys() == {(200, "a"), (200, "b")}


@in_loop
async def test_requests_wait_at_a_planned_node_while_none_is_ready() -> None:
    async with a_setting() as made:
        await made.switch("b", waiting="b")
        assert await made.ask() == (200, "b")
        assert (await made.ask("/v2/models/other/infer"))[0] == 404
        assert await made.ask("/v2/models/chat") == (200, "b")
        # Every node knows what the server itself is asked; the first check of one may be under way.
        while (await made.ask("/v2"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await made.switch()
        assert (await made.ask())[0] == 503
