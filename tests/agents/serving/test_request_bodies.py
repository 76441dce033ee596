"""Bodies of requests that are compressed, by what is known here and by what is not."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from agents.serving.http_problems import refusals_as_problems
from agents.serving.request_bodies import read_body
from tests.agents.router_harness import served
from tests.waiting import in_loop

LIMIT = 100_000
BODY = b"abc" * 1000


def packed(body: bytes) -> bytes:
    """By gzip, without the time at which that was done."""
    return gzip.compress(body, mtime=0)


def raw_deflate(body: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(body) + packing.flush()


@asynccontextmanager
async def an_echo() -> AsyncIterator[str]:
    """The URL of a server that answers with what it read."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request, LIMIT))

    app = web.Application(middlewares=[refusals_as_problems])
    app.router.add_post("/", answer)
    async with served(app) as url:
        yield url


async def ask(encoding: str, sent: bytes) -> tuple[int, bytes]:
    async with an_echo() as url, aiohttp.ClientSession() as client:
        headers = {"Content-Encoding": encoding} if encoding else {}
        async with client.post(url, data=sent, headers=headers) as answer:
            return answer.status, await answer.read()


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        ("", BODY),
        ("identity", BODY),
        ("gzip", packed(BODY)),
        ("GZip", packed(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", raw_deflate(BODY)),
        ("gzip", b""),
    ],
)
@in_loop
async def test_a_body_is_read_as_it_was_before_it_was_compressed(
    encoding: str, sent: bytes
) -> None:
    assert await ask(encoding, sent) == (200, BODY if sent else b"")


@pytest.mark.parametrize(
    ("encoding", "sent", "status", "words"),
    [
        ("zstd", b"(\xb5/\xfd", 415, "Content-Encoding zstd is not supported"),
        ("br", BODY, 415, "send the body as it is, or by gzip or deflate"),
        ("gzip, gzip", BODY, 415, "gzip, gzip"),
        ("gzip", b"no gzip", 400, "does not match its Content-Encoding (gzip)"),
        ("gzip", packed(BODY)[:20], 400, "does not match"),
        ("gzip", packed(b"0" * (LIMIT + 1)), 413, "Maximum request body size"),
        # Of a bomb only as much is unpacked as is allowed.
        ("gzip", packed(b"0" * 10**8), 413, "Maximum request body size"),
    ],
)
@in_loop
async def test_a_body_that_cannot_be_read_is_told_in_the_protocols_words(
    encoding: str, sent: bytes, status: int, words: str
) -> None:
    found, body = await ask(encoding, sent)
    assert found == status
    assert words in json.loads(body)["error"]
