"""Bodies that come too slowly, or not to their end, on a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from app.api.caches.request_metrics import ApiMetrics
from app.api.http import errors
from app.api.http.middleware import RequestMiddleware
from tests.waiting import PATIENCE_S, in_loop


async def _length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


@asynccontextmanager
async def _connected(
    registry: CollectorRegistry | None = None, within_s: float = PATIENCE_S
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server that answers with the length of the body. `registry`: of its metrics."""
    app = FastAPI(routes=[Route("/", _length, methods=["POST"])])
    errors.install(app)
    app.state.parts = SimpleNamespace(
        metrics=ApiMetrics(registry or CollectorRegistry())
    )
    app.add_middleware(RequestMiddleware, body_limit_bytes=1000, body_within_s=within_s)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


@in_loop
async def test_a_body_that_comes_a_byte_a_minute_is_answered_408_and_cut() -> None:
    async with _connected(within_s=0.3) as (reader, writer):
        writer.write(HEAD + b"a")
        # Until the server closes: the rest would else be taken for a request.
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the body did not arrive within 0.3 s" in answer


@in_loop
async def test_a_body_that_comes_in_time_may_come_in_parts_and_its_answer_may_take_long() -> (
    None
):
    async with _connected() as (reader, writer):
        writer.write(HEAD + b"ab")
        await writer.drain()
        writer.write(b"cde")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")


@in_loop
async def test_a_connection_that_is_cut_within_a_body_is_no_fault_of_ours() -> None:
    registry = CollectorRegistry()

    def answered(status: str) -> float | None:
        labels = {"method": "POST", "route": "none", "status": status}
        return registry.get_sample_value("plimsoll_http_requests_total", labels)

    async with _connected(registry) as (_, writer):
        writer.write(HEAD + b"a")
        await writer.drain()
        writer.close()
        while answered("400") is None:
            assert answered("500") is None
            await asyncio.sleep(0.01)
