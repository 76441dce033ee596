"""Streams of language models through a node: token by token, measured as they pass, and whole when replicas change."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from agents.base.device import ServiceRoute
from agents.base.protocol import ServiceReading
from agents.llm.scheduler import EngineSize, LlmScheduler
from agents.llm.server import LlmServer, StepTime
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import open_haproxy
from agents.router.haproxy.supervised import PLACES
from agents.router.request_router import RequestRouter
from agents.router.router import Router
from agents.router.service_queue import ServiceQueue
from agents.router.streams import MAX_TOKENS, TokenMeter, answered_tokens
from tests.agents.router_harness import read_all, served
from tests.ports import a_free_port
from tests.waiting import eventually, in_loop

PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path=PLACES)
PATH = "/services/chat/v1/chat/completions"
KINDS = [
    "own",
    pytest.param(
        "haproxy",
        marks=pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed"),
    ),
]


def event(content: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % content.encode()


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
END = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n'


def test_a_meter_takes_neither_role_nor_usage_for_a_token() -> None:
    meter = TokenMeter(10.0)
    meter.feed(ROLE, 10.1)
    assert (meter.ttft_ms, meter.itl_ms, meter.tokens) == (None, None, 0)
    for number, now_s in enumerate((10.2, 10.3, 10.4)):
        meter.feed(event(str(number)), now_s)
    meter.feed(END, 10.4)
    assert meter.ttft_ms == pytest.approx(200.0)
    assert meter.itl_ms == pytest.approx(100.0)
    assert meter.tokens == 3


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_meter_counts_events_wherever_they_are_cut(cut: int) -> None:
    meter = TokenMeter(0.0)
    text = ROLE + event("a") + event("b") + event("c") + END
    for start in range(0, len(text), cut):
        meter.feed(text[start : start + cut], 1.0)
    assert meter.tokens == 3


def test_a_meter_believes_the_usage_where_events_hold_several_tokens() -> None:
    meter = TokenMeter(0.0)
    meter.feed(event("a"), 1.0)
    meter.feed(event('b \\"completion_tokens\\":9') + event("c"), 2.0)
    assert (meter.tokens, meter.itl_ms) == (3, 500.0)
    meter.feed(END.replace(b":3}", b":11}"), 2.0)
    assert (meter.tokens, meter.itl_ms) == (11, 100.0)
    meter = TokenMeter(0.0)
    meter.feed(event("a") + END, 1.0)
    assert (meter.tokens, meter.itl_ms) == (3, 0.0)


def test_whole_answers_tell_their_tokens() -> None:
    assert answered_tokens(b'{"usage":{"completion_tokens":7,"x":1}}') == 7
    assert answered_tokens(b'{"error":{}}') == answered_tokens(b"no JSON") == 1
    # A stream is whole where its first and last events were read together.
    assert answered_tokens(ROLE + event("a") + event("b") + b"data: [DONE]\n\n") == 2
    assert answered_tokens(event("a") + END) == 3


def test_no_replica_can_state_more_tokens_than_a_report_may_hold() -> None:
    lie = b'{"usage":{"completion_tokens":999999999}}'
    assert answered_tokens(lie) == MAX_TOKENS
    meter = TokenMeter(0.0)
    meter.feed(event("a") + b"data: " + lie + b"\n\n", 1.0)
    assert meter.tokens == MAX_TOKENS
    queue = ServiceQueue(a_route("r1"), queue_limit=1, replica_limit=1)
    for _ in range(1001):
        queue.finish(1.0, tokens=MAX_TOKENS)
    # What the control plane does not take is lost with all that was reported beside it.
    told = msgspec.json.encode(queue.read())
    assert msgspec.json.decode(told, type=ServiceReading).output_tokens == 10**9


@asynccontextmanager
async def engine(base_ms: float = 2.0) -> AsyncIterator[str]:
    """The URL of a stand-in."""
    server = LlmServer(
        "chat", LlmScheduler(EngineSize()), StepTime(base=base_ms, per_token=0.0)
    )
    async with served(server.make_app(), cancels=True) as url:
        yield url


@asynccontextmanager
async def front(kind: str, folder: Path) -> AsyncIterator[tuple[RequestRouter, str]]:
    """A router of that kind, and its URL."""
    if kind == "own":
        router = Router()
        async with served(router.make_app()) as url:
            yield router, url
        return
    port = a_free_port()
    settings = HaProxySettings(port=port, folder=folder, services=4, replicas=4)
    proxy = await open_haproxy(settings)
    try:
        yield proxy, f"http://127.0.0.1:{port}"
    finally:
        await proxy.close(keep=False)


@asynccontextmanager
async def served_model(
    kind: str, folder: Path, *, base_ms: float, ttft_ms: float = 60_000.0
) -> AsyncIterator[tuple[aiohttp.ClientSession, RequestRouter, str]]:
    """A client, and a router of that kind with its URL, which routes to one stand-in."""
    async with (
        aiohttp.ClientSession() as session,
        front(kind, folder) as (router, url),
        engine(base_ms) as where,
    ):
        await router.switch_routes((a_route("r1", ttft_ms=ttft_ms),), {"r1": where})
        yield session, router, url


def a_route(*names: str, ttft_ms: float = 60_000.0) -> ServiceRoute:
    return ServiceRoute(
        service="chat",
        slo_ms=ttft_ms,
        slo_itl_ms=60_000.0,
        shares=tuple((name, 1.0) for name in names),
    )


async def stream(
    session: aiohttp.ClientSession, url: str, tokens: int, begun: list[bytes]
) -> None:
    """An answer of so many tokens, which is whole; what comes first of it is put into the list."""
    body = {"model": "chat", "prompt": "a", "max_tokens": tokens, "stream": True}
    async with session.post(f"{url}{PATH}", json=body) as answer:
        assert answer.status == 200, await answer.text()
        first = await answer.content.readuntil(b"\n\n")
        begun.append(first)
        text = first + await answer.content.read()
    assert text.count(b'"content":" token"') == tokens
    assert text.endswith(b"data: [DONE]\n\n")


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_a_first_token_that_comes_late_is_no_answer_in_time(
    kind: str, tmp_path: Path
) -> None:
    node = served_model(kind, tmp_path, base_ms=60.0, ttft_ms=20.0)
    async with node as (session, router, url):
        await stream(session, url, 2, [])
        (reading,) = await read_all(router)
        assert (reading.served, reading.in_slo) == (1, 0)


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_streams_come_as_they_are_sent_and_go_on_when_their_replica_leaves_the_route(
    kind: str, tmp_path: Path
) -> None:
    goes_on, begun = asyncio.Event(), list[bytes]()

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        await response.write(ROLE + event(" token"))
        await goes_on.wait()
        await response.write(2 * event(" token") + END)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with (
        aiohttp.ClientSession() as session,
        front(kind, tmp_path) as (router, url),
        served(app) as old,
        engine() as new,
    ):

        async def are_in(count: int) -> bool:
            await router.look()
            return router.in_flight("old") == count

        await router.switch_routes((a_route("old"),), {"old": old})
        running = [
            asyncio.create_task(stream(session, url, 3, begun)) for _ in range(8)
        ]
        await eventually(lambda: len(begun) == 8)
        assert await are_in(8)
        await router.switch_routes((a_route("new"),), {"new": new})
        assert await are_in(8)
        await stream(session, url, 3, [])
        goes_on.set()
        await asyncio.gather(*running)
        await eventually(lambda: are_in(0))
        (reading,) = await read_all(router)
        assert (reading.arrivals, reading.served) == (9, 9)

        assert reading.output_tokens == 27


@pytest.mark.integration
@in_loop
async def test_models_are_listed_and_whole_answers_count_by_their_tokens() -> None:
    # Ten tokens take 200 ms: more than the first may take, and less than all ten.
    node = served_model("own", Path(), base_ms=20.0, ttft_ms=100.0)
    async with node as (session, router, url):
        async with session.get(f"{url}/services/chat/v1/models") as answer:
            assert (await answer.json())["data"][0]["id"] == "chat"
        body = {"prompt": "a", "max_tokens": 10}
        async with session.post(f"{url}{PATH}", json=body) as answer:
            assert (await answer.json())["usage"]["completion_tokens"] == 10
        (reading,) = await read_all(router)
        assert (reading.served, reading.in_slo) == (1, 1)
        assert reading.output_tokens == 10


@pytest.mark.integration
@in_loop
async def test_nothing_in_a_path_becomes_another_request() -> None:
    heads: list[bytes] = []

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        router, url = await stack.enter_async_context(front("own", Path()))
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        await stack.enter_async_context(server)
        port = server.sockets[0].getsockname()[1]
        await router.switch_routes((a_route("r1"),), {"r1": f"http://127.0.0.1:{port}"})
        for sent in ("x%20HTTP/1.1?a=%0D%0AX-Evil:1", "..%2F?b=%20c"):
            target = URL(f"{url}/services/chat/v1/{sent}", encoded=True)
            async with session.post(target, json={}) as answered:
                assert answered.status == 200
            # One line, with what was sent as it was sent.
            first, *others = heads.pop().split(b"\r\n")
            assert first == f"POST /v1/{sent} HTTP/1.1".encode()
            assert not any(each.startswith(b"X-Evil") for each in others)
