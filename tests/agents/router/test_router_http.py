"""The router over real sockets when something is wrong: workers that fail, clients that leave, deadlines, floods."""

import asyncio
import gzip
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agents.router import lateness
from agents.router.health import STRIKES
from agents.router.router import MAX_BODY, Router
from tests.agents.router_harness import (
    a_route,
    opened,
    raw_worker,
    read_request,
    served,
    tick_until,
)
from tests.waiting import PATIENCE_S, in_loop

pytestmark = pytest.mark.integration


class Worker:
    """Answers with its name and what it got; does as its fields say."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = 200
        self.is_ready = True
        self.requests: list[Mapping[str, str]] = []
        self.hold: asyncio.Event | None = None

    def make_app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/v2/models/chat/infer", self._infer)
        app.router.add_get("/v2/health/ready", self._ready)
        return app

    async def _infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(dict(request.headers))
        if self.hold is not None:
            await self.hold.wait()
        return web.Response(status=self.status, text=f"{self.name}:{len(body)}")

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)


class Front:
    """A router, two workers, and a client."""

    def __init__(self, router: Router, url: str, client: aiohttp.ClientSession) -> None:
        self.router, self.url, self.client = router, url, client
        self.a, self.b = Worker("a"), Worker("b")
        self.addresses: dict[str, str] = {}

    def switch(self, *replicas: str) -> None:
        self.router.switch(
            (a_route(*((each, 1.0) for each in replicas)),), self.addresses
        )

    async def post(
        self,
        body: bytes | io.BytesIO | AsyncIterator[bytes] = b"{}",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        async with self.client.post(
            f"{self.url}/v2/models/chat/infer", data=body, headers=headers
        ) as response:
            return response.status, await response.text()

    async def rejected(self) -> dict[str, float]:
        """Rejected requests by reason, from /metrics."""
        async with self.client.get(f"{self.url}/metrics") as response:
            assert response.content_type == "text/plain"
            lines = (await response.text()).splitlines()
        found = [
            line for line in lines if line.startswith("plimsoll_router_rejected_total{")
        ]
        return {
            line.split('reason="')[1].split('"')[0]: float(line.split()[1])
            for line in found
        }


@asynccontextmanager
async def a_front(router: Router, *, cancels: bool = False) -> AsyncIterator[Front]:
    async with (
        served(router.make_app(), cancels=cancels) as url,
        aiohttp.ClientSession() as client,
    ):
        front = Front(router, url, client)
        async with served(front.a.make_app()) as a, served(front.b.make_app()) as b:
            front.addresses = {"a": a, "b": b}
            yield front


def on_front(*, cancels: bool = False, **options: float) -> Callable[..., Any]:
    """A test that is a coroutine function gets a front; `options` are its router's."""
    return opened(lambda: a_front(Router(**options), cancels=cancels), "front")  # type: ignore[arg-type]


@on_front()
async def test_a_replica_that_answers_5xx_gets_nothing_until_it_is_ready(
    front: Front,
) -> None:
    front.switch("a", "b")
    front.a.status, front.a.is_ready = 500, False
    statuses = Counter([(await front.post())[0] for _ in range(20)])
    # Every second request goes to a, until it has failed often enough; then all go to b.
    assert statuses == {200: 20 - STRIKES, 500: STRIKES}
    assert front.router.out == ("a",)
    front.a.status, front.a.is_ready = 200, True
    await tick_until(lambda: not front.router.out)
    assert {(await front.post())[1] for _ in range(4)} == {"a:2", "b:2"}


@on_front()
async def test_a_service_that_comes_anew_while_its_former_self_is_still_probed_is_probed_itself(
    front: Front,
) -> None:
    for turn in range(2):
        front.switch("a", "b")
        front.a.status, front.a.is_ready = 500, False
        while not front.router.out:
            await front.post()
        if not turn:
            front.router.switch((), {})
            while (
                front.router.read()
            ):  # the second reading forgets a service that has left
                pass
    front.a.status, front.a.is_ready = 200, True
    await tick_until(lambda: not front.router.out)


@pytest.mark.parametrize("deadline", ["0", "-5", "0.4"])
@on_front()
async def test_a_deadline_that_has_passed_is_answered_at_once_and_counted(
    front: Front, deadline: str
) -> None:
    front.switch("a")
    status, text = await front.post(headers={"Plimsoll-Deadline-Ms": deadline})
    assert status == 504 and "deadline" in text
    assert front.a.requests == []
    assert (await front.rejected())["expired"] == 1
    (reading,) = front.router.read()
    assert (reading.arrivals, reading.served, reading.rejected) == (1, 0, 1)


@on_front()
async def test_a_deadline_that_is_no_number_is_refused_and_not_counted(
    front: Front,
) -> None:
    front.switch("a")
    assert (await front.post(headers={"Plimsoll-Deadline-Ms": "soon"}))[0] == 400
    assert front.router.read()[0].arrivals == 0


@in_loop
async def test_a_worker_is_told_what_the_queue_left_of_the_deadline() -> None:
    now_s = [1000.0]
    async with a_front(Router(now_s=lambda: now_s[0])) as front:
        front.switch()
        headers = {"Plimsoll-Deadline-Ms": "20000"}
        waiting = asyncio.create_task(front.post(headers=headers))
        await tick_until(lambda: front.router.read()[0].queued == 1)
        now_s[0] += 12.5
        front.switch("a")
        assert (await waiting)[0] == 200
        assert front.a.requests[0]["Plimsoll-Deadline-Ms"] == "7500"
        await front.post()
        assert "Plimsoll-Deadline-Ms" not in front.a.requests[1]


@on_front()
async def test_a_deadline_passes_in_the_queue(front: Front) -> None:
    front.switch()
    assert (await front.post(headers={"Plimsoll-Deadline-Ms": "50"}))[0] == 504
    assert front.router.read()[0].queued == 0
    assert (await front.rejected())["expired"] == 1


@on_front()
async def test_a_deadline_that_passes_while_the_replica_works_is_not_the_replicas_failure(
    front: Front,
) -> None:
    front.switch("a", "b")
    front.a.hold = front.b.hold = asyncio.Event()
    headers = {"Plimsoll-Deadline-Ms": "50"}
    answers = await asyncio.gather(
        *(front.post(headers=headers) for _ in range(4 * STRIKES))
    )
    assert {status for status, _ in answers} == {504}
    assert front.router.out == ()
    assert front.router.in_flight("a") == front.router.in_flight("b") == 0
    front.a.hold.set()


@pytest.mark.parametrize(
    ("deadline_ms", "slo_ms", "at_the_emptiest"), [("0", 60_000.0, 1), ("50", 40.0, 2)]
)
@on_front()
async def test_only_a_deadline_that_passes_at_a_replica_makes_a_service_late(
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
    deadline_ms: str,
    slo_ms: float,
    at_the_emptiest: int,
) -> None:
    monkeypatch.setattr(lateness, "CALM_S", PATIENCE_S)
    # Plenty is planned, so that nothing else makes the service late; only the longer deadline is beyond the SLO.
    route = replace(a_route(("a", 1000.0), ("b", 1000.0)), slo_ms=slo_ms)
    front.router.switch((route,), front.addresses)
    front.a.hold = asyncio.Event()
    posts = [asyncio.create_task(front.post()) for _ in range(4)]
    # Those of `b` are answered, and two stay at `a`.
    await tick_until(lambda: sum(post.done() for post in posts) == 2)
    front.b.hold = front.a.hold
    headers = {"Plimsoll-Deadline-Ms": deadline_ms}
    assert (await front.post(headers=headers))[0] == 504
    # While a service is late, both of two go to the emptiest; else each to another one.
    posts += [asyncio.create_task(front.post()) for _ in range(2)]
    await tick_until(lambda: sum(map(front.router.in_flight, "ab")) == 4)
    assert front.router.in_flight("b") == at_the_emptiest
    front.a.hold.set()
    assert {status for status, _ in await asyncio.gather(*posts)} == {200}


@on_front(max_held_bytes=1000)
async def test_bodies_that_wait_are_bounded_in_bytes(front: Front) -> None:
    front.switch()
    waiting = asyncio.create_task(front.post(b"x" * 900))
    await tick_until(lambda: front.router.read()[0].queued == 1)
    status, text = await front.post(b"x" * 200)
    assert status == 503 and "900 bytes" in text
    small = asyncio.create_task(front.post(b"x" * 100))
    await tick_until(lambda: front.router.read()[0].queued == 2)
    front.switch("a")
    assert (await waiting, await small) == ((200, "a:900"), (200, "a:100"))
    assert (await front.post(b"x" * 5000))[0] == 200  # alone it may be of any size


@on_front()
async def test_a_client_that_leaves_the_queue_costs_no_replica_anything(
    front: Front,
) -> None:
    front.switch()
    leaving = asyncio.create_task(front.post())
    await tick_until(lambda: front.router.read()[0].queued == 1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    for _ in range(
        5
    ):  # while it answers these, the router sees the end of that connection
        await front.rejected()
    front.switch("a")
    await tick_until(lambda: front.router.in_flight("a") == 0)
    assert front.a.requests == []
    assert (await front.rejected())["gone"] == 1


@on_front()
async def test_a_client_that_leaves_in_the_middle_of_an_answer_ends_the_workers_connection(
    front: Front,
) -> None:
    async def endless(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4\r\nabcd\r\n")
            await writer.drain()
            await asyncio.sleep(0.001)

    async with raw_worker(endless) as worker:
        front.addresses["x"] = worker.url
        front.switch("x")
        async with front.client.post(
            f"{front.url}/v2/models/chat/infer", data=b"{}"
        ) as response:
            assert (await response.content.readexactly(8)) == b"abcdabcd"
        await tick_until(lambda: worker.ended == 1)
        await tick_until(lambda: front.router.in_flight("x") == 0)
        assert (await front.rejected())["gone"] == 1


@on_front(answer_timeout_s=1.0)
async def test_a_replica_that_gives_no_answer_in_time_fails(front: Front) -> None:
    front.switch("a", "b")
    front.a.hold = asyncio.Event()
    front.a.is_ready = False
    answers: Counter[int] = Counter()
    while front.router.out != ("a",):
        # Every second one goes to a.
        together = await asyncio.gather(*(front.post() for _ in range(2 * STRIKES)))
        answers.update(status for status, _ in together)
    assert answers[502] >= STRIKES
    # The other one answers, if late where this process has stood still.
    while (answer := await front.post()) != (200, "b:2"):
        assert "replica b " in answer[1]
    front.a.hold.set()


@on_front(answer_timeout_s=0.05)
async def test_a_turn_that_does_not_come_in_time_is_answered_with_come_again(
    front: Front,
) -> None:
    front.switch()
    status, text = await front.post()
    assert (status, "had room within 0.05 s" in text) == (503, True)
    assert (await front.rejected())["full"] == 1
    assert (await front.post(headers={"Plimsoll-Deadline-Ms": "90000"}))[0] == 503


@on_front()
async def test_large_chunked_and_compressed_bodies_arrive_whole(front: Front) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 30_000

    front.switch("a")
    assert await front.post(parts()) == (200, "a:3000000")
    assert await front.post(io.BytesIO(b"y" * 20_000_000)) == (200, "a:20000000")
    packed = gzip.compress(b"z" * 5000)
    assert await front.post(packed, headers={"Content-Encoding": "gzip"}) == (
        200,
        "a:5000",
    )
    assert "Content-Encoding" not in front.a.requests[-1]
    assert (await front.post(io.BytesIO(b"x" * (MAX_BODY + 1))))[0] == 413


@on_front()
async def test_status_and_headers_of_the_worker_are_the_answers(front: Front) -> None:
    async def own(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        assert b"\r\nX-Mine: 1\r\n" in head
        writer.write(
            b"HTTP/1.1 429 Slow\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Type: x/y\r\nServer: own\r\n"
            b"Content-Length: 2\r\n\r\nok"
        )
        await reader.read()

    async with raw_worker(own) as worker:
        front.addresses["x"] = worker.url
        front.switch("x")
        url, headers = f"{front.url}/v2/models/chat/infer", {"X-Mine": "1"}
        async with front.client.post(url, data=b"", headers=headers) as response:
            assert (response.status, await response.text()) == (429, "ok")
            assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
            assert (response.headers["Content-Type"], response.headers["Server"]) == (
                "x/y",
                "own",
            )


@on_front()
async def test_thousands_of_requests_through_switches_lose_none(front: Front) -> None:
    front.switch("a")
    left = iter(range(2000))
    answers: Counter[int] = Counter()

    async def client() -> None:
        for number in left:
            answers[(await front.post())[0]] += 1
            if number % 100 == 0:
                front.switch("a" if number % 200 else "b")

    await asyncio.gather(*(client() for _ in range(16)))
    assert answers == {200: 2000}
    assert len(front.a.requests) + len(front.b.requests) == 2000
    assert min(len(front.a.requests), len(front.b.requests)) > 500


@on_front()
async def test_an_address_that_is_none_changes_nothing(front: Front) -> None:
    front.switch("a")
    with pytest.raises(ValueError, match="not an address"):
        front.router.switch((a_route(("c", 1.0)),), {"c": "ftp://x"})
    assert await front.post() == (200, "a:2")
