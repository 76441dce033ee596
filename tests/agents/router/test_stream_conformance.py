"""Streams of language models through a node, by either router: as they are sent, judged by their tokens, and whole."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from agents.base.device import ServiceRoute
from agents.llm.scheduler import EngineSize, LlmScheduler
from agents.llm.server import LlmServer, StepTime
from tests.agents.router.api_streams import (
    DONE,
    FAILED,
    ROLE,
    STREAMS,
    UNKNOWN,
    WHOLE,
    ApiStream,
    chunk,
    data,
)
from tests.agents.router.routers import Door, both, front
from tests.agents.router_harness import raw_worker, read_request, served
from tests.waiting import eventually, in_loop

pytestmark = pytest.mark.integration

PATH = "/services/chat/v1/chat/completions"
LATE_S = 0.1
"""Until the first token, where the SLO is half of it."""


class Replica:
    """A language model's server that says what it is told to."""

    def __init__(self) -> None:
        self.before: tuple[bytes, ...] = ()
        self.events: tuple[bytes, ...] = ()
        self.pause_s = 0.0
        """Between the two."""
        self.document: object = None
        """An answer that comes at once."""
        self.status = 200
        """Of it."""
        self.read: asyncio.Event | None = None
        """What the pause waits for."""
        self.hold: asyncio.Event | None = None
        """What the end of a stream waits for."""
        self.headers: dict[str, str] = {}

    def make_app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.headers = dict(request.headers)
        if self.document is not None:
            return web.json_response(self.document, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in self.before:
            await response.write(event)
        if self.read is not None:
            await self.read.wait()
        await asyncio.sleep(self.pause_s)
        for event in self.events:
            await response.write(event)
        if self.hold is not None:
            await self.hold.wait()
        return response


@asynccontextmanager
async def a_model(
    kind: str, folder: Path, **slo_ms: float
) -> AsyncIterator[tuple[Door, Replica]]:
    """A router of that kind, and the one replica behind it."""
    replica = Replica()
    async with front(kind, folder) as door, served(replica.make_app()) as url:
        await door.switch(a_route("r1", **slo_ms), r1=url)
        yield door, replica


@asynccontextmanager
async def engine(base_ms: float) -> AsyncIterator[str]:
    """The URL of a stand-in."""
    server = LlmServer(
        "chat", LlmScheduler(EngineSize()), StepTime(base=base_ms, per_token=0.0)
    )
    async with served(server.make_app(), cancels=True) as url:
        yield url


def a_route(
    *names: str, ttft_ms: float = 60_000.0, itl_ms: float = 60_000.0
) -> ServiceRoute:
    return ServiceRoute(
        service="chat",
        slo_ms=ttft_ms,
        slo_itl_ms=itl_ms,
        shares=tuple((name, 1.0) for name in names),
    )


@pytest.mark.parametrize("api", STREAMS.values(), ids=STREAMS.keys())
@both
@in_loop
async def test_a_stream_is_judged_by_its_own_events(
    kind: str, tmp_path: Path, api: ApiStream
) -> None:
    async with a_model(kind, tmp_path) as (door, replica):
        replica.before, replica.events = api.before, (*api.tokens, *api.after)
        answer = await door.post(f"/services/chat{api.path}", Accept_Encoding="gzip")
        assert answer.body == b"".join((*replica.before, *replica.events))
        assert "Accept-Encoding" not in replica.headers
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.unmeasured) == (1, 1, 0)
        assert reading.output_tokens == api.count


@pytest.mark.parametrize(
    "api", ["chat", "responses", "responses with types last", "messages"]
)
@both
@in_loop
async def test_a_first_token_that_comes_late_is_no_answer_in_time(
    kind: str, tmp_path: Path, api: str
) -> None:
    node = a_model(kind, tmp_path, ttft_ms=500.0 * LATE_S)
    async with node as (door, replica):
        said = STREAMS[api]
        replica.before, replica.events = said.before, (*said.tokens, *said.after)
        replica.pause_s = LATE_S
        assert (await door.post(f"/services/chat{said.path}")).status == 200
        reading = await door.reading()
        assert (reading.served, reading.in_slo) == (1, 0)


PAIR = [
    {"index": index, "delta": {"content": "a"}, "finish_reason": None}
    for index in (0, 1)
]


@pytest.mark.parametrize(
    "pair",
    [tuple(data({"choices": [each]}) for each in PAIR), (data({"choices": PAIR}),)],
    ids=["an event for each", "one event"],
)
@both
@in_loop
async def test_several_answers_to_one_request_have_their_own_gaps(
    kind: str, tmp_path: Path, pair: tuple[bytes, ...]
) -> None:
    # Two answers of two tokens, LATE_S apart; of one answer of four tokens the gap would be a third of that.
    async with a_model(kind, tmp_path, itl_ms=600.0 * LATE_S) as (door, replica):
        replica.before, replica.events, replica.pause_s = pair, (*pair, DONE), LATE_S
        replica.read = asyncio.Event()
        async with door.client.post(door.url + PATH, data=b"{}") as answer:
            await answer.content.readexactly(len(b"".join(pair)))
            # Before the router has seen the first two it would see all four at once, where it stood still.
            replica.read.set()
            assert (answer.status, await answer.read() != b"") == (200, True)
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.output_tokens) == (1, 0, 4)


@pytest.mark.parametrize("events", UNKNOWN.values(), ids=UNKNOWN.keys())
@both
@in_loop
async def test_an_unknown_stream_is_counted_as_one_and_not_as_in_time(
    kind: str, tmp_path: Path, events: tuple[bytes, ...]
) -> None:
    async with a_model(kind, tmp_path) as (door, replica):
        replica.events = events
        assert (await door.post(PATH)).status == 200
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.unmeasured) == (1, 0, 1)
        assert reading.output_tokens == 0


@pytest.mark.parametrize("events", FAILED.values(), ids=FAILED.keys())
@both
@in_loop
async def test_a_stream_that_ends_with_an_error_is_lost(
    kind: str, tmp_path: Path, events: tuple[bytes, ...]
) -> None:
    async with a_model(kind, tmp_path) as (door, replica):
        replica.events = events
        assert (await door.post(PATH)).status == 200
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.rejected) == (0, 0, 1)


@pytest.mark.parametrize(("document", "tokens"), WHOLE.values(), ids=WHOLE.keys())
@both
@in_loop
async def test_an_answer_in_one_piece_counts_by_its_usage(
    kind: str, tmp_path: Path, document: object, tokens: int
) -> None:
    async with a_model(kind, tmp_path) as (door, replica):
        replica.document = document
        answer = await door.post("/services/chat/v1/anything")
        assert json.loads(answer.body) == document
        reading = await door.reading()
        assert (reading.served, reading.in_slo) == (1, 1)
        assert reading.output_tokens == tokens


# As vLLM 0.32 refuses a network's name that it does not know, and a prompt that is too long.
@pytest.mark.parametrize("status", [404, 400])
@pytest.mark.parametrize("is_long", [False, True])
@both
@in_loop
async def test_an_error_of_the_callers_has_no_tokens(
    kind: str, tmp_path: Path, status: int, is_long: bool
) -> None:
    async with a_model(kind, tmp_path) as (door, replica):
        message = "The model `else` does not exist." * (10_000 if is_long else 1)
        replica.document = {"error": {"message": message, "code": status}}
        replica.status = status
        assert (await door.post(PATH)).status == status
        reading = await door.reading()
        assert (reading.served, reading.output_tokens) == (1, 0)


@pytest.mark.parametrize(
    ("events", "ttft_ms", "gone"),
    [
        ((ROLE, chunk({"content": "a"})), 60_000.0, 1),
        ((ROLE, chunk({"content": "a"})), 0.0, 0),
        ((ROLE,), 60_000.0, 1),
        ((ROLE,), 0.0, 0),
    ],
    ids=["first token in time", "it was late", "none yet, in time", "none, and late"],
)
@both
@in_loop
async def test_a_client_that_leaves_a_stream_is_judged_by_its_first_token(
    kind: str, tmp_path: Path, events: tuple[bytes, ...], ttft_ms: float, gone: int
) -> None:
    async with a_model(kind, tmp_path, ttft_ms=ttft_ms) as (door, replica):
        replica.events, replica.hold = events, asyncio.Event()
        with contextlib.suppress(aiohttp.ClientError):
            async with door.client.post(door.url + PATH, data=b"{}") as answer:
                await answer.content.readexactly(len(b"".join(events)))
                answer.close()
        reading = await door.reading()
        found = (reading.served, reading.gone, reading.rejected)
        assert found == (0, gone, 1 - gone)
        replica.hold.set()


@both
@in_loop
async def test_streams_come_as_they_are_sent_and_go_on_when_their_replica_leaves_the_route(
    kind: str, tmp_path: Path
) -> None:
    begun, old, new = list[bytes](), Replica(), Replica()
    old.hold = asyncio.Event()
    old.events = (ROLE, chunk({"content": " token"}))
    new.events = (*old.events, DONE)
    async with (
        front(kind, tmp_path) as door,
        served(old.make_app()) as at_old,
        served(new.make_app()) as at_new,
    ):

        async def are_in(count: int) -> bool:
            await door.router.look()
            return door.router.in_flight("old") == count

        async def stream() -> None:
            async with door.client.post(door.url + PATH, data=b"{}") as answer:
                begun.append(await answer.content.readuntil(b"\n\n"))
                await answer.read()

        await door.switch(a_route("old"), old=at_old)
        running = [asyncio.create_task(stream()) for _ in range(8)]
        await eventually(lambda: len(begun) == 8)
        assert await are_in(8)
        await door.switch(a_route("new"), new=at_new)
        assert await are_in(8)
        await stream()
        old.hold.set()
        await asyncio.gather(*running)
        await eventually(lambda: are_in(0))
        reading = await door.reading()
        assert (reading.arrivals, reading.served) == (9, 9)
        assert reading.output_tokens == 9


@both
@in_loop
async def test_models_are_listed_and_whole_answers_count_by_their_tokens(
    kind: str, tmp_path: Path
) -> None:
    # Ten tokens take 200 ms: more than the first may take, and less than all ten.
    async with front(kind, tmp_path) as door, engine(20.0) as url:
        await door.switch(a_route("r1", ttft_ms=100.0), r1=url)
        listed = await door.ask("GET", "/services/chat/v1/models")
        assert json.loads(listed.body)["data"][0]["id"] == "chat"
        body = json.dumps({"prompt": "a", "max_tokens": 10}).encode()
        answer = await door.ask("POST", PATH, body)
        assert json.loads(answer.body)["usage"]["completion_tokens"] == 10
        reading = await door.reading()
        assert (reading.arrivals, reading.served, reading.in_slo) == (1, 1, 1)
        assert reading.output_tokens == 10


@both
@in_loop
async def test_nothing_in_a_path_becomes_another_request(
    kind: str, tmp_path: Path
) -> None:
    heads: list[bytes] = []

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head, _ = await read_request(reader)
        # HAProxy asks whether it is ready at any moment.
        if head.startswith(b"POST"):
            heads.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with raw_worker(answer) as worker, front(kind, tmp_path) as door:
        await door.switch(a_route("r1"), r1=worker.url)
        for sent in ("x%20HTTP/1.1?a=%0D%0AX-Evil:1", "..%2F?b=%20c"):
            target = URL(f"{door.url}/services/chat/v1/{sent}", encoded=True)
            async with door.client.post(target, json={}) as answered:
                assert answered.status == 200
            # One line, with what was sent as it was sent.
            first, *others = heads.pop().split(b"\r\n")
            assert first == f"POST /v1/{sent} HTTP/1.1".encode()
            assert not any(each.startswith(b"X-Evil") for each in others)
