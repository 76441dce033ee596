"""Bodies of which only the length comes: the router holds no room for them."""

import asyncio

import pytest

from agents.router.router import MAX_BODY, Router
from tests.agents.router_harness import a_route, served
from tests.waiting import in_loop

pytestmark = pytest.mark.integration


async def answer(url: str, length: int, body: bytes = b"") -> str:
    """The status line and headers that a request gets of whose body only this comes."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"POST /v2/models/chat/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
        writer.write(head.encode() + body)
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    finally:
        writer.close()


@in_loop
async def test_a_body_that_says_that_it_is_too_long_is_refused_and_holds_no_room() -> (
    None
):
    router = Router(max_held_bytes=1000)
    router.switch((a_route(),), {})
    async with served(router.make_app()) as url:
        assert (await answer(url, 2_000_000_000)).startswith("HTTP/1.1 413 ")
        assert (await answer(url, MAX_BODY + 1)).startswith("HTTP/1.1 413 ")
    assert not router.total("chat").rejected


@in_loop
async def test_a_body_that_does_not_come_is_given_up_and_its_room_is_free_again() -> (
    None
):
    router = Router(max_held_bytes=1000, body_timeout_s=0.2)
    router.switch((a_route(),), {})
    async with served(router.make_app()) as url:
        # Each alone would be all that the router may hold.
        for _ in range(2):
            slow = await answer(url, 2000, b"a")
            assert slow.startswith("HTTP/1.1 408 ")
            assert "connection: close" in slow.lower()
    assert not router.total("chat").rejected
