"""HAProxy as the front: commands worked out on paper, and the real program where it is installed."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agents.base.device import ServiceRoute
from agents.router.haproxy.commands import differences, plan_commands
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.process import HaProxy, parse_address
from agents.router.haproxy.state import (
    BackendServer,
    HaProxyError,
    ProxyState,
    parse_state,
)
from tests.agents.router_harness import a_route, opened, served
from tests.ports import a_free_port

SETTINGS = HaProxySettings(port=8000, folder=Path("/f"), services=2, replicas=3)
A, B, C, D = (("127.0.0.1", 9000 + number) for number in range(4))
EMPTY = ("127.0.0.1", 1)


def a_state(*places: BackendServer, **backends: str) -> ProxyState:
    """Two backends with three places each, of which some are taken."""
    taken = {(place.backend, place.name): place for place in places}
    names = [(backend, name) for backend in ("b1", "b2") for name in ("s1", "s2", "s3")]
    parked = {
        (backend, name): BackendServer(
            backend=backend,
            name=name,
            address=EMPTY,
            weight=1,
            is_ready=False,
            is_parked=True,
        )
        for backend, name in names
    }
    return ProxyState(backends=backends, places=tuple((parked | taken).values()))


def ready(
    backend: str,
    name: str,
    address: tuple[str, int],
    *,
    weight: int = 256,
    in_flight: int = 0,
) -> BackendServer:
    return BackendServer(
        backend=backend,
        name=name,
        address=address,
        weight=weight,
        is_ready=True,
        in_flight=in_flight,
    )


def test_a_first_service_gets_the_first_backend_and_is_named_after_its_replicas_are_there() -> (
    None
):
    assert plan_commands(a_state(), {"chat": {A: 256, B: 85}}, SETTINGS) == [
        "set server b1/s1 addr 127.0.0.1 port 9000",
        "set server b1/s1 weight 256",
        "set server b1/s1 state ready",
        "set server b1/s2 addr 127.0.0.1 port 9001",
        "set server b1/s2 weight 85",
        "set server b1/s2 state ready",
        "add map /f/services.map chat b1",
    ]


def test_the_old_replica_drains_after_the_new_one_is_there() -> None:
    state = a_state(ready("b1", "s1", A), chat="b1")
    assert plan_commands(state, {"chat": {B: 256}}, SETTINGS) == [
        "set server b1/s2 addr 127.0.0.1 port 9001",
        "set server b1/s2 weight 256",
        "set server b1/s2 state ready",
        "set server b1/s1 state drain",
    ]


def test_what_is_as_wanted_is_left_alone() -> None:
    state = a_state(
        ready("b1", "s1", A), ready("b2", "s3", B, weight=3), chat="b1", tag="b2"
    )
    assert plan_commands(state, {"chat": {A: 256}, "tag": {B: 3}}, SETTINGS) == []
    assert differences(state, {"chat": {A: 256}, "tag": {B: 3}}) == []


def test_a_service_that_leaves_is_unnamed_first_and_its_replicas_drain() -> None:
    state = a_state(ready("b1", "s1", A), chat="b1")
    assert plan_commands(state, {}, SETTINGS) == [
        "del map /f/services.map chat",
        "set server b1/s1 state drain",
    ]


def test_a_place_that_still_drains_is_not_given_away_and_an_idle_one_is_parked() -> (
    None
):
    busy = replace(ready("b1", "s1", A, in_flight=2), is_ready=False)
    idle = replace(ready("b1", "s2", B), is_ready=False)
    state = a_state(busy, idle, ready("b1", "s3", C), chat="b1")
    assert plan_commands(state, {"chat": {C: 256}}, SETTINGS) == [
        "set server b1/s2 state maint"
    ]
    commands = plan_commands(state, {"chat": {C: 256, D: 256}}, SETTINGS)
    # What drained there may be gone and count as down: by way of maintenance the new one counts as up.
    moved = "set server b1/s2 addr 127.0.0.1 port 9003"
    assert commands == [
        "set server b1/s2 state maint",
        moved,
        "set server b1/s2 state ready",
    ]
    with pytest.raises(HaProxyError, match="more replicas than the 3 places"):
        plan_commands(state, {"chat": {B: 256, C: 256, D: 256}}, SETTINGS)


def test_a_replica_that_drains_comes_back_to_its_own_place() -> None:
    busy = replace(ready("b1", "s1", A, in_flight=2), is_ready=False)
    assert plan_commands(a_state(busy, chat="b1"), {"chat": {A: 256}}, SETTINGS) == [
        "set server b1/s1 state ready"
    ]


def test_a_new_service_does_not_get_a_backend_that_still_drains() -> None:
    busy = replace(ready("b1", "s1", A, in_flight=1), is_ready=False)
    commands = plan_commands(a_state(busy), {"new": {}}, SETTINGS)
    assert commands == ["add map /f/services.map new b2"]
    with pytest.raises(HaProxyError, match="no backend is free for b; HAProxy has 2"):
        plan_commands(
            a_state(busy, chat="b1"), {"chat": {}, "a": {}, "b": {}}, SETTINGS
        )


@pytest.mark.parametrize("name", ["a b", "a;b", "", "a\nb", "ä", "a" * 254])
def test_a_name_that_could_be_a_command_is_refused(name: str) -> None:
    with pytest.raises(HaProxyError, match="not a valid name for HAProxy"):
        plan_commands(a_state(), {name: {}}, SETTINGS)


def test_differences_are_told_in_words() -> None:
    state = a_state(ready("b1", "s1", A), chat="b1", old="b2")
    assert differences(state, {"chat": {B: 1}, "new": {}}) == [
        "service new has no backend",
        "service old is still there",
        "service chat goes to {('127.0.0.1', 9000): 256}, not to {('127.0.0.1', 9001): 1}",
    ]


def test_what_haproxy_prints_is_read() -> None:
    servers = "1\n# be_id be_name srv_id srv_name srv_addr srv_admin_state srv_uweight srv_port\n"
    servers += "3 b1 1 s1 127.0.0.1 4 85 9000\n3 b1 2 s2 127.0.0.1 12 1 9001\n3 b1 3 s3 127.0.0.1 5 1 1\n"
    stat = "# pxname,svname,qcur,qmax,scur,smax,slim\nb1,s1,2,9,3,9,\nb1,s2,,9,1,9,\nb1,s3,0,0,0,0,\n\n"
    state = parse_state(servers, stat, "0x55aa chat b1\n\n")
    draining = replace(ready("b1", "s2", B, weight=1, in_flight=1), is_ready=False)
    parked = BackendServer(
        backend="b1", name="s3", address=EMPTY, weight=1, is_ready=False, is_parked=True
    )
    assert state.places == (
        ready("b1", "s1", A, weight=85, in_flight=5),
        draining,
        parked,
    )
    assert state.backends == {"chat": "b1"}
    with pytest.raises(HaProxyError, match="cannot read"):
        parse_state(servers.replace("srv_port", "port"), stat, "")


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:1", "http://name:1", "http://127.0.0.1:1/x", ""]
)
def test_an_address_that_haproxy_cannot_have_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an address for HAProxy"):
        parse_address(url)


PROGRAM = shutil.which("haproxy") or shutil.which(
    "haproxy", path="/usr/sbin:/usr/local/sbin"
)
real = [
    pytest.mark.integration,
    pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed"),
]


class Worker:
    """Answers with its name; ready as told."""

    def __init__(self, name: str) -> None:
        self.name, self.served, self.delay_s, self.status = name, 0, 0.0, 200
        self.hold: asyncio.Event | None = None

    def make_app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v2/models/{service}/infer", self._infer)
        app.router.add_get("/v2/health/ready", self._ready)
        return app

    async def _infer(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(self.delay_s)
        if self.hold is not None:
            await self.hold.wait()
        self.served += self.status == 200
        return web.Response(text=self.name, status=self.status)

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=self.status)


@contextmanager
def running(proxy: HaProxy, settings: HaProxySettings) -> Iterator[None]:
    """HAProxy with the proxy's configuration, until the block ends."""
    assert PROGRAM is not None
    with (settings.folder / "log").open("w") as log:
        command = [PROGRAM, "-db", "-f", str(settings.config_path)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not _answers(settings):
                assert process.poll() is None, (settings.folder / "log").read_text()
                time.sleep(0.01)
            yield
        finally:
            process.kill()
            process.wait()


def _answers(settings: HaProxySettings) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        return connection.connect_ex(str(settings.socket_path)) == 0


class Front:
    """HAProxy, two workers and a client."""

    def __init__(self, folder: Path) -> None:
        self.settings = HaProxySettings(
            port=a_free_port(), folder=folder, services=4, replicas=3
        )
        self.proxy = HaProxy(self.settings)
        self.a, self.b = Worker("a"), Worker("b")
        self.addresses: dict[str, str] = {}
        self.client: aiohttp.ClientSession

    def switch(self, **weights: float) -> None:
        self.proxy.switch((a_route(*weights.items()),), self.addresses)

    async def post(self, service: str = "chat", **headers: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.settings.port}/v2/models/{service}/infer"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(url, data=b"{}", headers=named) as response:
            return response.status, await response.text()


@asynccontextmanager
async def a_front(tmp_path: Path) -> AsyncIterator[Front]:
    front = Front(tmp_path)
    front.proxy.write_config()
    async with (
        served(front.a.make_app()) as a,
        served(front.b.make_app()) as b,
        aiohttp.ClientSession() as client,
    ):
        front.addresses, front.client = {"a": a, "b": b}, client
        with running(front.proxy, front.settings):
            yield front


on_front = opened(a_front, "front")


class TestReal:
    """Against the program itself."""

    pytestmark = real

    @on_front
    async def test_load_is_shared_by_weight(self, front: Front) -> None:
        front.switch(a=3.0, b=1.0)
        answers = Counter([await front.post() for _ in range(80)])
        assert answers.keys() == {(200, "a"), (200, "b")}
        # 60 and 20; each of HAProxy's threads may begin its round elsewhere.
        assert 54 <= answers[200, "a"] <= 66

    @on_front
    async def test_what_cannot_be_served_is_told(self, front: Front) -> None:
        routes = (a_route(("a", 1.0)), a_route(service="idle"))
        front.proxy.switch(routes, front.addresses)
        assert front.proxy.routes == routes
        assert (await front.post("nobody"))[0] == 404
        assert (await front.post("idle"))[0] == 503
        assert (await front.post(Plimsoll_Deadline_Ms="0"))[0] == 504
        assert (await front.post(Plimsoll_Deadline_Ms="100"))[0] == 200
        base = f"http://127.0.0.1:{front.settings.port}"
        for path, status in (
            ("/v2/health/live", 200),
            ("/metrics", 200),
            ("/else", 404),
        ):
            async with front.client.get(base + path) as response:
                assert response.status == status
        many = ServiceRoute(
            service="chat",
            slo_ms=1.0,
            shares=tuple((str(each), 1.0) for each in range(4)),
        )
        addresses = {str(each): f"http://127.0.0.1:{9000 + each}" for each in range(4)}
        with pytest.raises(HaProxyError, match="3 places"):
            front.proxy.switch((many,), addresses)
        assert await front.post() == (200, "a")
