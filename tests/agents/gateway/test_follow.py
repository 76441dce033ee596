"""Following the control plane's list: what is put in force, and when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agents.gateway import follow
from agents.gateway.config import GatewaySettings
from agents.gateway.follow import Follower, ListSource
from agents.gateway.table import GatewayTable
from agents.router.haproxy.state import HaProxyError
from tests.agents.router_harness import served
from tests.waiting import in_loop

SETTINGS = GatewaySettings(folder=Path("unused"), services=4, nodes=4)
EMPTY = GatewayTable(weights={}, waiting={})


@dataclass(slots=True)
class Proxy:
    """Notes what it is given; it refuses as often as it is told."""

    table: GatewayTable = EMPTY
    is_in_force: bool = False
    refusals: int = 0
    put_times: int = 0

    async def put(self, table: GatewayTable) -> None:
        if self.refusals:
            self.refusals -= 1
            raise HaProxyError("it does not answer")
        self.table, self.is_in_force = table, True
        self.put_times += 1


@dataclass(slots=True)
class Plane:
    """The control plane's list, while it answers."""

    status: int = 200
    trouble: str = ""
    """What happens instead of an answer."""
    nodes: list[str] = field(default_factory=lambda: ["http://10.0.0.1:8081"])
    replicas: int = 1
    """Of the service, at each of these."""

    async def answer(self, request: web.Request) -> web.Response:
        if self.trouble == "reset":
            assert request.transport is not None
            request.transport.abort()
        elif self.trouble == "timeout":
            await asyncio.Event().wait()
        elif self.trouble == "page":
            return web.Response(text="<html>", content_type="text/html")
        count = self.replicas
        node = {"weight_rps": 1.0, "planned_replicas": count, "ready_replicas": count}
        nodes = [{"url": url, **node} for url in self.nodes]
        items = [{"service": "chat", "nodes": nodes}]
        return web.json_response({"items": items}, status=self.status)


@asynccontextmanager
async def following(
    plane: Plane, proxy: Proxy
) -> AsyncIterator[tuple[Follower, aiohttp.ClientSession]]:
    app = web.Application()
    app.router.add_get("/api/v1/endpoints", plane.answer)
    async with served(app) as url, aiohttp.ClientSession() as session:
        yield Follower(ListSource(url=url, token="t"), proxy, SETTINGS), session


@in_loop
async def test_a_list_is_put_in_force_once() -> None:
    proxy = Proxy()
    async with following(Plane(), proxy) as (follower, session):
        assert [await follower.step(session) for _ in range(3)] == [True] * 3
    assert list(proxy.table.weights["chat"]) == [("10.0.0.1", 8081)]
    assert proxy.put_times == 1


@in_loop
async def test_a_haproxy_that_was_started_anew_gets_the_last_table_also_while_the_control_plane_is_away() -> (
    None
):
    plane, proxy = Plane(), Proxy()
    async with following(plane, proxy) as (follower, session):
        await follower.step(session)
        plane.status = 503
        # Its first try fails: nothing else would try again, since the list is the same.
        proxy.is_in_force, proxy.refusals = False, 1
        assert [await follower.step(session) for _ in range(2)] == [False, False]
    assert proxy.is_in_force
    assert proxy.put_times == 2


@in_loop
async def test_what_an_earlier_gateway_left_stays_until_there_is_a_list() -> None:
    plane, proxy = Plane(status=503), Proxy()
    async with following(plane, proxy) as (follower, session):
        assert not await follower.step(session)
        assert not proxy.put_times
        plane.status = 200
        assert await follower.step(session)
    assert proxy.is_in_force


@in_loop
async def test_a_service_at_rest_waits_where_it_is_known() -> None:
    statuses = {"a": 404, "b": 503}

    def node(name: str) -> web.Application:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=statuses[name])

        app = web.Application()
        app.router.add_get("/v2/models/chat/ready", answer)
        return app

    def ports(proxy: Proxy) -> list[int]:
        return [port for _, port in proxy.table.waiting["chat"]]

    async with served(node("a")) as a, served(node("b")) as b:
        first, second = (int(url.rsplit(":", 1)[1]) for url in (a, b))
        plane, proxy = Plane(nodes=[a, b], replicas=0), Proxy()
        async with following(plane, proxy) as (follower, session):
            await follower.step(session)
            assert ports(proxy) == [second]
            statuses["a"] = 503
            await follower.step(session)
            assert ports(proxy) == [first, second]
            # One that is gone stays listed: HAProxy goes on to the other.
            plane.nodes = ["http://127.0.0.1:1", b]
            await follower.step(session)
            assert ports(proxy) == [1, second]


@in_loop
async def test_a_service_that_no_node_knows_stays_where_it_was_while_that_is_there() -> (
    None
):
    one, other = web.Application(), web.Application()
    async with served(one) as old, served(other) as new:
        plane, proxy = Plane(nodes=[old]), Proxy()
        async with following(plane, proxy) as (follower, session):
            await follower.step(session)
            before = proxy.table.waiting["chat"]
            plane.nodes, plane.replicas = [new, old], 0
            await follower.step(session)
            assert proxy.table.waiting["chat"] == before
            plane.nodes = [new]
            await follower.step(session)
            assert proxy.table.waiting["chat"] == ()


@pytest.mark.parametrize(
    ("status", "trouble"),
    [(503, ""), (429, ""), (502, ""), (200, "reset"), (200, "timeout"), (200, "page")],
)
@in_loop
async def test_whatever_passes_leaves_the_last_table_in_force(
    monkeypatch: pytest.MonkeyPatch, status: int, trouble: str
) -> None:
    monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", 0.2)
    plane, proxy = Plane(), Proxy()
    async with following(plane, proxy) as (follower, session):
        await follower.step(session)
        plane.status, plane.trouble = status, trouble
        assert [await follower.step(session) for _ in range(2)] == [False, False]
        assert list(proxy.table.weights["chat"]) == [("10.0.0.1", 8081)]
        # What changed meanwhile is in the first list that comes.
        plane.status, plane.trouble = 200, ""
        plane.nodes = ["http://10.0.0.2:8081"]
        monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", 60.0)
        assert await follower.step(session)
    assert list(proxy.table.weights["chat"]) == [("10.0.0.2", 8081)]
