"""What HAProxy answers itself and what it asks of replicas beside inference: none of it counts as a request."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import HaProxyRouter, open_haproxy
from agents.router.haproxy.supervised import PLACES
from tests.agents.router_harness import a_route, opened, read_all, served
from tests.ports import a_free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:{PLACES}") is None,
        reason="haproxy is not installed",
    ),
]


class Asked:
    """HAProxy, a client in front, and a replica that tells what it was asked."""

    def __init__(self, router: HaProxyRouter, url: str) -> None:
        self.router, self.url = router, url
        self.client: aiohttp.ClientSession

    async def get(
        self, path: str, method: str = "GET"
    ) -> tuple[int, dict[str, object]]:
        async with self.client.request(method, self.url + path) as answer:
            is_json = answer.content_type.endswith("json")
            has_body = is_json and method != "HEAD"
            return answer.status, await answer.json() if has_body else {}


async def tell(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response({"path": request.path_qs})


@asynccontextmanager
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    replica = web.Application()
    replica.router.add_route("*", "/{path:.*}", tell)
    settings = HaProxySettings(
        port=a_free_port(), folder=tmp_path / "h", services=3, replicas=2
    )
    async with served(replica) as address, aiohttp.ClientSession() as client:
        router = await open_haproxy(settings)
        try:
            routes = (a_route(("a", 1.0)), a_route(service="idle"))
            await router.switch_routes(routes, {"a": address})
            front = Asked(router, f"http://127.0.0.1:{settings.port}")
            front.client = client
            yield front
        finally:
            await router.close(keep=False)


on_front = opened(asked, "front")


@on_front
async def test_metadata_and_readiness_are_no_requests(front: Asked) -> None:
    for path in (
        "/v2/models/chat",
        "/v2/models/chat/versions/1",
        "/v2/models/chat/versions/1/ready",
        "/v2/models/chat/config",
        "/v2/models/chat/versions/1/stats?a=b",
    ):
        assert await front.get(path) == (200, {"path": path})
    assert await front.get("/v2/models/chat", "HEAD") == (200, {})
    # The replica would have told the path: HAProxy itself knows whether it is up.
    assert await front.get("/v2/models/chat/ready") == (200, {})
    assert (await front.get("/v2/models/chat/infer", "POST"))[0] == 200
    chat, idle = await read_all(front.router)
    assert (chat.arrivals, chat.served, chat.in_slo) == (1, 1, 1)
    for path in ("/v2/models/idle", "/v2/models/idle/ready"):
        status, body = await front.get(path)
        assert (status, body["error"]) == (
            503,
            "the service has no ready replica on this node",
        )
    assert (idle.arrivals, idle.rejected) == (0, 0)
    assert (await front.router.read_services())[1].arrivals == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v2/models/else", 404, "this node has no such service"),
        ("POST", "/v2/models/else/infer", 404, "this node has no such service"),
        ("GET", "/v2/models/chat/nothing", 404, "POST /v2/models/SERVICE/infer"),
        ("GET", "/v2/models/chat/infer", 405, "POST /v2/models/SERVICE/infer"),
        ("POST", "/v2/models/chat", 405, "GET /v2/models/SERVICE"),
        ("POST", "/v2/repository/index", 404, "POST /v2/models/SERVICE/infer"),
    ],
)
@on_front
async def test_what_there_is_not_is_told_as_the_protocol_says(
    front: Asked, method: str, path: str, status: int, words: str
) -> None:
    found, body = await front.get(path, method)
    assert found == status
    assert words in str(body["error"])
    assert (body["status"], body["detail"]) == (status, body["error"])
