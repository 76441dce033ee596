"""Both ways of requests through a node, the own router and HAProxy, for tests that hold for both.

@both
def test_...(kind, tmp_path): ...
    async with front(kind, tmp_path) as door: await door.switch(a_route(("a", 1.0)), a=url); await door.post(...)
"""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from agents.base.device import ServerTraits, ServiceRoute
from agents.base.protocol import ServiceReading
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import open_haproxy
from agents.router.haproxy.supervised import PLACES
from agents.router.request_router import NO_TRAITS, RequestRouter
from agents.router.router import Router
from tests.agents.router_harness import read_all, served
from tests.ports import a_free_port

PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path=PLACES)
KINDS = [
    "own",
    pytest.param(
        "haproxy",
        marks=pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed"),
    ),
]
both = pytest.mark.parametrize("kind", KINDS)
INFER = "/v2/models/chat/infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorAnswer:
    """An answer of the node's."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True, kw_only=True)
class Door:
    """A router, its URL, and a client in front."""

    router: RequestRouter
    url: str
    client: aiohttp.ClientSession

    async def switch(
        self,
        *routes: ServiceRoute,
        traits: Mapping[str, ServerTraits] = NO_TRAITS,
        **addresses: str,
    ) -> None:
        """Put a table in force."""
        await self.router.switch_routes(routes, addresses, traits)

    async def ask(
        self, method: str, path: str, data: bytes | None = None, **headers: str
    ) -> DoorAnswer:
        """The answer to a request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = self.url + path
        async with self.client.request(method, url, data=data, headers=named) as answer:
            body = await answer.read()
            return DoorAnswer(status=answer.status, headers=answer.headers, body=body)

    async def post(self, path: str = INFER, **headers: str) -> DoorAnswer:
        """The answer to a small request."""
        return await self.ask("POST", path, b"{}", **headers)

    async def reading(self) -> ServiceReading:
        """What was counted of the one service, when all of it was answered."""
        (found,) = await read_all(self.router)
        return found


@asynccontextmanager
async def front(kind: str, folder: Path) -> AsyncIterator[Door]:
    """A router of that kind, as a node runs it."""
    async with aiohttp.ClientSession() as client:
        if kind == "own":
            router = Router()
            async with served(router.make_app(), cancels=True) as url:
                yield Door(router=router, url=url, client=client)
            return
        settings = HaProxySettings(
            port=a_free_port(), folder=folder, services=4, replicas=4
        )
        proxy = await open_haproxy(settings)
        try:
            url = f"http://127.0.0.1:{settings.port}"
            yield Door(router=proxy, url=url, client=client)
        finally:
            await proxy.close(keep=False)
