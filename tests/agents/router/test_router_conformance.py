"""What callers and replicas may rely on, whichever way requests go: by the own router or by HAProxy."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from agents.base.device import ServerTraits, ServiceRoute
from agents.base.protocol import ServiceReading
from tests.agents.router.routers import INFER, Door, both, front
from tests.agents.router_harness import a_route, served
from tests.ports import a_free_port
from tests.waiting import eventually, in_loop

pytestmark = pytest.mark.integration

# As vLLM 0.32 refuses what exceeds --max-num-queued-reqs, without Retry-After.
BUSY = {"error": {"message": "The engine is currently busy", "code": 503}}
READY_PATHS = {
    "worker": "/v2/health/ready",
    "triton": "/v2/models/chat/ready",
    "vllm": "/health",
    "a template's": "/own/ready",
}


class Server:
    """Answers with its name, or as told; ready at one path, and 404 at all others that are asked for readiness."""

    def __init__(self, name: str, ready_path: str = "/v2/health/ready") -> None:
        self.name, self.ready_path = name, ready_path
        self.status, self.is_ready = 200, True
        self.unknown = 404
        """How it answers at paths that it does not know."""
        self.requests = 0
        self.hold: asyncio.Event | None = None

    def make_app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._infer)
        app.router.add_get("/{path:.*}", self._ready)
        return app

    async def _infer(self, request: web.Request) -> web.Response:
        await request.read()
        self.requests += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.status in {429, 503}:
            return web.json_response(BUSY, status=self.status)
        return web.Response(status=self.status, text=self.name)

    async def _ready(self, request: web.Request) -> web.Response:
        if request.path != self.ready_path:
            return web.Response(status=self.unknown)
        return web.Response(status=200 if self.is_ready else 503)


async def names(door: Door, requests: int = 12) -> set[str]:
    """Who answers the requests, all of them well."""
    answers = [await door.post() for _ in range(requests)]
    assert {each.status for each in answers} == {200}
    return {each.body.decode() for each in answers}


async def both_serve(door: Door) -> None:
    """Return when a and b have answered."""

    async def answered() -> bool:
        return {(await door.post()).body.decode() for _ in range(8)} == {"a", "b"}

    await eventually(answered, "one of the two gets nothing any more")


@pytest.mark.parametrize("status", [503, 429])
@both
@in_loop
async def test_a_replica_that_is_busy_is_passed_by_and_stays_in(
    kind: str, status: int, tmp_path: Path
) -> None:
    if (kind, status) == ("haproxy", 429):
        pytest.skip("HAProxy 2.6 knows no 429 for which it would ask elsewhere")
    a, b = Server("a", "/health"), Server("b", "/health")
    async with (
        front(kind, tmp_path) as door,
        served(a.make_app()) as at_a,
        served(b.make_app()) as at_b,
    ):
        await door.switch(a_route(("a", 1.0), ("b", 1.0)), a=at_a, b=at_b)
        a.status = status
        assert await names(door) == {"b"}
        assert a.requests > 3, "it was asked again after three refusals"
        b.status = status
        for _ in range(5):
            answer = await door.post()
            assert answer.status == status
            assert answer.headers["Retry-After"].isdecimal()
            assert json.loads(answer.body) == BUSY
        # Nothing was held against them: both serve at once.
        a.status = b.status = 200
        assert await names(door) <= {"a", "b"}
        reading = await door.reading()
        assert (reading.served, reading.rejected) == (24, 5)
        await both_serve(door)


@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize("is_model", [False, True], ids=["network", "model"])
@both
@in_loop
async def test_a_service_with_one_busy_replica_tells_when_to_come_again(
    kind: str, tmp_path: Path, *, is_model: bool, status: int
) -> None:
    a = Server("a")
    route = replace(a_route(("a", 1.0)), slo_itl_ms=50.0 if is_model else None)
    async with front(kind, tmp_path) as door, served(a.make_app()) as at_a:
        await door.switch(route, a=at_a)
        a.status = status
        answers = [await door.post() for _ in range(6)]
        assert {each.status for each in answers} == {status}
        assert all("Retry-After" in each.headers for each in answers)
        a.status = 200
        assert (await door.post()).status == 200
        reading = await door.reading()
        counts = (reading.arrivals, reading.served, reading.in_slo, reading.rejected)
        assert counts == (7, 1, 1, 6)


@pytest.mark.parametrize("ready_path", READY_PATHS.values(), ids=READY_PATHS.keys())
@both
@in_loop
async def test_a_replica_that_was_put_out_is_asked_where_its_kind_answers(
    kind: str, tmp_path: Path, ready_path: str
) -> None:
    a, b = Server("a", ready_path), Server("b")
    async with (
        front(kind, tmp_path) as door,
        served(a.make_app()) as at_a,
        served(b.make_app()) as at_b,
    ):
        await door.switch(
            a_route(("a", 1.0), ("b", 1.0)),
            traits={"a": ServerTraits(ready_path=ready_path)},
            a=at_a,
            b=at_b,
        )
        a.status, a.is_ready = 500, False

        async def is_out() -> bool:
            return {(await door.post()).status for _ in range(8)} == {200}

        await eventually(is_out)
        a.status = 200
        # It says itself that it is not ready.
        assert await names(door) == {"b"}
        a.is_ready = True
        await both_serve(door)


@pytest.mark.parametrize("status", [401, 403, 404, 405, 501])
@both
@in_loop
async def test_a_server_that_knows_no_readiness_comes_back_too(
    kind: str, tmp_path: Path, status: int
) -> None:
    a, b = Server("a", "/nowhere"), Server("b", "/nowhere")
    a.unknown = b.unknown = status
    async with (
        front(kind, tmp_path) as door,
        served(a.make_app()) as at_a,
        served(b.make_app()) as at_b,
    ):
        await door.switch(a_route(("a", 1.0), ("b", 1.0)), a=at_a, b=at_b)
        a.status = 500
        statuses = Counter([(await door.post()).status for _ in range(6)])
        assert statuses[500] == 3
        a.status = 200
        await both_serve(door)


@both
@in_loop
async def test_a_failed_connection_costs_no_request_and_the_replica_comes_back(
    kind: str, tmp_path: Path
) -> None:
    a, b, port = Server("a", "/health"), Server("b", "/health"), a_free_port()
    async with front(kind, tmp_path) as door, served(b.make_app()) as at_b:
        async with served(a.make_app(), port=port) as at_a:
            await door.switch(a_route(("a", 1.0), ("b", 1.0)), a=at_a, b=at_b)
            assert await names(door) == {"a", "b"}
        assert await names(door) == {"b"}
        async with served(a.make_app(), port=port):
            await both_serve(door)


async def left(door: Door, server: Server) -> ServiceReading:
    """What is counted of a client that leaves while a replica has its request."""
    server.hold = asyncio.Event()
    asked = asyncio.create_task(door.post())
    await eventually(lambda: server.requests == 1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    return await door.reading()


@pytest.mark.parametrize(
    ("slo_ms", "gone", "rejected"), [(60_000.0, 1, 0), (0.0, 0, 1)]
)
@both
@in_loop
async def test_a_client_that_leaves_is_a_miss_after_the_slos_latency_alone(
    kind: str, tmp_path: Path, slo_ms: float, gone: int, rejected: int
) -> None:
    a = Server("a")
    async with front(kind, tmp_path) as door, served(a.make_app()) as at_a:
        route = ServiceRoute(service="chat", slo_ms=slo_ms, shares=(("a", 1.0),))
        await door.switch(route, a=at_a)
        reading = await left(door, a)
        found = (reading.arrivals, reading.served, reading.gone, reading.rejected)
        assert found == (1, 0, gone, rejected)
        assert a.hold is not None
        a.hold.set()


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, zstd", "x-own"])
@both
@in_loop
async def test_an_encoding_that_is_not_supported_is_refused_in_the_protocols_words(
    kind: str, tmp_path: Path, encoding: str
) -> None:
    a = Server("a")
    async with front(kind, tmp_path) as door, served(a.make_app()) as at_a:
        await door.switch(a_route(("a", 1.0)), a=at_a)
        answer = await door.post(Content_Encoding=encoding)
        assert answer.status == 415
        assert answer.headers["Accept-Encoding"] == "gzip, deflate"
        assert "Content-Encoding" in json.loads(answer.body)["error"]
        assert (await door.post(Content_Encoding="identity")).status == 200
        assert a.requests == 1


@pytest.mark.parametrize("is_binary", [True, False])
@both
@in_loop
async def test_binary_tensors_are_offered_where_all_servers_take_them(
    kind: str, tmp_path: Path, is_binary: bool
) -> None:
    async with front(kind, tmp_path) as door, served(Server("a").make_app()) as at_a:
        traits = {"b": ServerTraits(is_binary=is_binary)}
        routes = (a_route(("a", 1.0)), a_route(("b", 1.0), service="b"))
        await door.switch(*routes, traits=traits, a=at_a, b=at_a)
        for path in ("/v2", "/v2/"):
            about = json.loads((await door.ask("GET", path)).body)
            assert about["extensions"] == ["binary_tensor_data"] * is_binary


@both
@in_loop
async def test_a_service_that_leaves_is_served_and_not_ready(
    kind: str, tmp_path: Path
) -> None:
    async with front(kind, tmp_path) as door, served(Server("a").make_app()) as at_a:
        for is_leaving, status in ((False, 200), (True, 503), (False, 200)):
            route = ServiceRoute(
                service="chat",
                slo_ms=10_000.0,
                shares=(("a", 1.0),),
                is_leaving=is_leaving,
            )
            await door.switch(route, a=at_a)
            assert (await door.ask("GET", "/v2/models/chat/ready")).status == status
            assert (await door.post()).body == b"a"


async def tell(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response({"path": request.path_qs})


METADATA = (
    "/v2/models/chat",
    "/v2/models/chat/versions/1",
    "/v2/models/chat/versions/1/ready",
    "/v2/models/chat/config",
    "/v2/models/chat/versions/1/stats?a=b",
)


@both
@in_loop
async def test_metadata_is_a_replicas_own_and_is_no_request(
    kind: str, tmp_path: Path
) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", tell)
    async with front(kind, tmp_path) as door, served(app) as at_a:
        await door.switch(a_route(("a", 1.0)), a_route(service="idle"), a=at_a)
        for path in METADATA:
            answer = await door.ask("GET", path)
            assert (answer.status, json.loads(answer.body)) == (200, {"path": path})
            assert (await door.ask("HEAD", path)).status == 200
        # The replica would have told the path: the node itself knows.
        ready = await door.ask("GET", "/v2/models/chat/ready")
        assert (ready.status, ready.body) == (200, b"")
        for path in ("/v2/models/idle", "/v2/models/idle/ready"):
            answer = await door.ask("GET", path)
            assert answer.status == 503
            assert "no ready replica on this node" in json.loads(answer.body)["error"]
        assert (await door.post()).status == 200
        counts = {each.service: each for each in await door.router.read_services()}
        assert counts["idle"].arrivals == 0
        assert counts["chat"].arrivals == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/else", 404),
        ("POST", "/v2/models/else/infer", 404),
        ("POST", "/services/else/v1/chat/completions", 404),
        ("GET", "/v2/models/chat/nothing", 404),
        ("GET", INFER, 405),
        ("PUT", "/services/chat/v1/completions", 405),
        ("GET", "/services/chat/v1/completions", 405),
        ("POST", "/v2/repository/index", 404),
    ],
)
@both
@in_loop
async def test_what_there_is_not_is_told_as_the_protocol_says(
    kind: str, tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with front(kind, tmp_path) as door, served(Server("a").make_app()) as at_a:
        await door.switch(a_route(("a", 1.0)), a=at_a)
        answer = await door.ask(method, path)
        body = json.loads(answer.body)
        assert (answer.status, body["status"]) == (status, status)
        assert body["error"] == body["detail"]


@both
@in_loop
async def test_a_request_is_never_sent_again_once_a_replica_may_have_begun_it(
    kind: str, tmp_path: Path
) -> None:
    a, b = Server("a"), Server("b")
    async with (
        front(kind, tmp_path) as door,
        served(a.make_app()) as at_a,
        served(b.make_app()) as at_b,
    ):
        await door.switch(a_route(("a", 1.0), ("b", 1.0)), a=at_a, b=at_b)
        a.status = b.status = 500
        assert {(await door.post()).status for _ in range(4)} == {500}
        assert a.requests + b.requests == 4
