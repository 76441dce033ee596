"""A scripted worker on a raw socket, and what tests of the router share."""

import asyncio
import contextlib
import functools
import inspect
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from agents.base.device import ServiceRoute
from agents.base.protocol import ServiceReading
from agents.router.request_router import RequestRouter
from agents.serving.request_bodies import IS_RAW
from tests.waiting import run

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawWorker:
    """A TCP server that does with each connection as it is told."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.connections = 0
        self.ended = 0
        self.url = ""

    async def run(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._handler(reader, writer)
        finally:
            self.ended += 1
            writer.close()


@asynccontextmanager
async def raw_worker(handler: Handler, *, port: int = 0) -> AsyncIterator[RawWorker]:
    """It on a port, a free one unless told."""
    worker = RawWorker(handler)
    server = await asyncio.start_server(worker.run, "127.0.0.1", port)
    worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield worker
    finally:
        server.close()


@asynccontextmanager
async def served(
    app: web.Application,
    *,
    port: int = 0,
    cancels: bool = False,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """The app on a port, a free one unless told; its URL. `cancels`: a client that leaves ends what is done for it."""
    app[IS_RAW] = True
    runner = web.AppRunner(
        app,
        auto_decompress=False,
        handler_cancellation=cancels,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", port))
    await web.SockSite(runner, listening, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        # Python 3.11 leaves open what it accepted in the turn before the server's end, such as HAProxy's checks.
        asyncio.get_running_loop().remove_reader(listening)
        await asyncio.sleep(0)
        await runner.cleanup()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next request. Raises IncompleteReadError at the connection's end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(
        head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0
    )
    return head, await reader.readexactly(length)


async def tick_until(is_so: Callable[[], bool]) -> None:
    """Let the other tasks run until something holds."""
    while not is_so():  # noqa: ASYNC110, it is reached through sockets, not through an event
        await asyncio.sleep(0.001)


async def read_all(router: RequestRouter) -> list[ServiceReading]:
    """What the router counted, once all that came to it was answered.

    HAProxy counts an answer when its stream ends, which is after the client has read it."""
    totals: dict[str, ServiceReading] = {}
    while not totals or any(
        each.served + each.rejected + each.gone < each.arrivals
        for each in totals.values()
    ):
        # A client's end is seen by the loop that the router runs in.
        await asyncio.sleep(0.001)
        for each in await router.read_services():
            if (before := totals.get(each.service)) is not None:
                each = msgspec.structs.replace(
                    each,
                    arrivals=before.arrivals + each.arrivals,
                    served=before.served + each.served,
                    in_slo=before.in_slo + each.in_slo,
                    rejected=before.rejected + each.rejected,
                    gone=before.gone + each.gone,
                    unmeasured=before.unmeasured + each.unmeasured,
                    output_tokens=before.output_tokens + each.output_tokens,
                )
            totals[each.service] = each
    return list(totals.values())


def opened(
    make: Callable[..., AbstractAsyncContextManager[Any]], name: str
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """A test that is a coroutine function gets as its parameter of that name what `make` opens in a loop of its own.

    What `make` itself needs are fixtures."""
    needed = inspect.signature(make).parameters

    def decorate(
        test: Callable[..., Coroutine[Any, Any, None]],
    ) -> Callable[..., None]:
        known = inspect.signature(test)
        own = {key: each for key, each in known.parameters.items() if key != name}

        async def work(*args: object, **given: object) -> None:
            async with make(**{key: given[key] for key in needed}) as found:
                kept = {key: each for key, each in given.items() if key in own}
                await test(*args, **{name: found}, **kept)

        def tested(*args: object, **given: object) -> None:
            run(work(*args, **given))

        functools.update_wrapper(tested, test)
        asked = {**needed, **own} if "self" not in own else {**own, **needed}
        tested.__signature__ = known.replace(parameters=list(asked.values()))  # type: ignore[attr-defined]
        return tested

    return decorate


def a_route(*shares: tuple[str, float], service: str = "chat") -> ServiceRoute:
    return ServiceRoute(service=service, slo_ms=10_000.0, shares=shares)
