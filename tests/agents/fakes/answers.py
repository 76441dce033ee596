"""A server that says the same to everybody, for what hostile workers answer."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def always(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """Its URL; whatever is asked for is answered by that body."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with served(app) as url:
        yield url


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """The URL of an application on a free port of this machine."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
