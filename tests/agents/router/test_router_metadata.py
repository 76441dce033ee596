"""What is asked of a node besides inference: metadata, which counts nowhere, and what there is not."""

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
