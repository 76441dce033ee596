"""Connections on which no request comes, and clients that take no answer."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.importer import import_from_string

from app.base.settings import Settings
from app.serve.connections import TAKEN_WITHIN_S, TimedProtocol, open_socket
from tests.waiting import PATIENCE_S, in_loop

ROOT = Path(__file__).parents[3]
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


class QuickProtocol(TimedProtocol):
    """The same with little patience."""

    within_s = 0.3


@asynccontextmanager
async def _connected() -> AsyncIterator[
    tuple[asyncio.StreamReader, asyncio.StreamWriter]
]:
    """A connection to a server that answers "here" to everything."""
    server = uvicorn.Server(
        uvicorn.Config(
            PlainTextResponse("here"),
            http=QuickProtocol,
            log_config=None,
            lifespan="off",
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


async def is_cut(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"X-More: a"])
@in_loop
async def test_headers_that_do_not_end_are_cut(sent: bytes) -> None:
    async with _connected() as (reader, writer):
        writer.write(sent)
        assert await is_cut(reader)


@in_loop
async def test_headers_of_a_later_request_that_do_not_end_are_cut_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(QuickProtocol, "within_s", PATIENCE_S)
    async with _connected() as (reader, writer):
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200 ")
        monkeypatch.setattr(QuickProtocol, "within_s", 0.3)
        writer.write(HEAD)
        assert await is_cut(reader)


def test_who_takes_nothing_of_an_answer_is_cut_by_the_kernel() -> None:
    with (
        open_socket(Settings(port=0)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        taken, _ = listening.accept()
        with taken:
            assert (
                taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                == 1000 * TAKEN_WITHIN_S
            )


def test_the_documented_command_of_an_api_alone_closes_slow_connections() -> None:
    documented = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    (protocol,) = re.findall(r"app_from_environment --http (\S+)`", documented)
    assert import_from_string(protocol) is TimedProtocol
