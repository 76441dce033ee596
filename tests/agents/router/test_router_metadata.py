"""What is asked of a node beside inference: metadata, which counts nowhere, and what there is not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from agents.base.device import ServiceRoute
from agents.router.router import Router
from tests.agents.router_harness import a_route, opened, served

pytestmark = pytest.mark.integration


class Asked:
    """A router, a client in front, and a replica that tells what it was asked."""

    def __init__(self, url: str, replica_url: str) -> None:
        self.router = Router()
        self.url, self.replica_url = url, replica_url
        self.client: aiohttp.ClientSession

    def switch(self, *routes: ServiceRoute, **others: str) -> None:
        self.router.switch(routes, {"a": self.replica_url, **others})

    async def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, object]]:
        async with self.client.request(
            method, self.url + path, headers=headers
        ) as answer:
            is_json = answer.content_type.endswith("json")
            return answer.status, await answer.json() if is_json else {}


async def tell(request: web.Request) -> web.StreamResponse:
    asked = {"method": request.method, "path": request.path_qs}
    if "in_parts" not in request.query:
        return web.json_response(asked)
    # Without a length, as servers that stream answer.
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for part in (b'{"method": ', b'"GET"}'):
        await response.write(part)
    return response


@asynccontextmanager
async def asked() -> AsyncIterator[Asked]:
    replica = web.Application()
    replica.router.add_get("/{path:.*}", tell)
    async with served(replica) as replica_url, aiohttp.ClientSession() as client:
        front = Asked("", replica_url)
        front.client = client
        async with served(front.router.make_app()) as front.url:
            yield front


on_front = opened(asked, "front")


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/chat",
        "/v2/models/chat/versions/1",
        "/v2/models/chat/versions/1/ready",
        "/v2/models/chat/config",
        "/v2/models/chat/versions/1/stats?a=b",
    ],
)
@on_front
async def test_metadata_is_a_replicas_own_and_is_no_request(
    front: Asked, path: str
) -> None:
    front.switch(a_route(("a", 1.0)))
    assert await front.get(path) == (200, {"method": "GET", "path": path})
    assert (await front.get(path, "HEAD"))[0] == 200
    (reading,) = front.router.read()
    assert (reading.arrivals, reading.served, reading.rejected) == (0, 0, 0)
    assert front.router.in_flight("a") == 0


@on_front
async def test_a_replica_that_is_gone_leaves_the_answer_to_another(
    front: Asked,
) -> None:
    async with served(web.Application()) as gone:
        pass
    front.switch(a_route(("gone", 1.0), ("a", 1.0)), gone=gone)
    assert (await front.get("/v2/models/chat"))[0] == 200
    # Nothing was held against the one that did not answer: it was no request.
    assert front.router.out == ()
    front.switch(a_route(("gone", 1.0)), gone=gone)
    status, body = await front.get("/v2/models/chat")
    assert status == 502
    assert str(body["error"]).startswith("replica gone did not answer")


@on_front
async def test_metadata_of_a_service_without_a_replica_is_no_demand(
    front: Asked,
) -> None:
    front.switch(a_route())
    status, body = await front.get("/v2/models/chat")
    assert (status, body["error"]) == (
        503,
        "service chat has no ready replica on this node",
    )
    assert front.router.read()[0].arrivals == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v2/models/else", 404, "this node has no service else"),
        ("POST", "/v2/models/else/infer", 404, "this node has no service else"),
        ("GET", "/v2/models/chat/nothing", 404, "GET /v2/models/chat/nothing"),
        ("GET", "/v2/models/chat/infer", 405, "Method Not Allowed"),
        ("POST", "/v2/repository/index", 404, "POST /v2/repository/index: Not Found"),
    ],
)
@on_front
async def test_what_there_is_not_is_told_as_the_protocol_says(
    front: Asked, method: str, path: str, status: int, words: str
) -> None:
    front.switch(a_route(("a", 1.0)))
    found, body = await front.get(path, method)
    assert found == status
    assert words in str(body["error"])
    assert (body["status"], body["detail"]) == (status, body["error"])


@on_front
async def test_a_body_that_cannot_be_unpacked_is_the_clients_mistake(
    front: Asked,
) -> None:
    front.switch(a_route(("a", 1.0)))
    async with front.client.post(
        f"{front.url}/v2/models/chat/infer",
        data=b"no gzip at all",
        headers={"Content-Encoding": "gzip"},
    ) as answer:
        assert answer.status == 400
        assert "gzip" in (await answer.json())["error"]
