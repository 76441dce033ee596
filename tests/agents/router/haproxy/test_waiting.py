"""Requests of services without a replica, held for HAProxy until one is ready."""

import asyncio
import contextlib
import gzip
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agents.base.device import ServiceRoute
from agents.router.access import RouterAccess
from agents.router.haproxy.config import SECRET_HEADER
from agents.router.haproxy.router import HaProxyRouter
from agents.router.haproxy.runtime_socket import RuntimeSocket
from agents.router.haproxy.state import BackendServer, HaProxyError
from agents.router.haproxy.supervised import PLACES
from agents.router.haproxy.waiting import fill_places
from tests.agents.router.haproxy.test_router import a_node
from tests.agents.router_harness import a_route, read_all, served
from tests.waiting import eventually, in_loop

PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path=PLACES)
HERE, THERE = ("127.0.0.1", 9000), ("127.0.0.1", 9001)


def a_place(number: int, *, is_ready: bool) -> BackendServer:
    return BackendServer(
        backend="b1", name=f"w{number}", address=HERE, weight=1, is_ready=is_ready
    )


def test_places_where_requests_wait_are_filled_moved_and_emptied() -> None:
    open_place, closed = a_place(1, is_ready=True), a_place(2, is_ready=False)
    places = {"b1": [open_place, closed]}
    assert list(fill_places(places, {"b1": (HERE,)})) == []
    assert list(fill_places(places, {})) == ["set server b1/w1 state maint"]
    assert list(fill_places(places, {"b1": (THERE, THERE)})) == [
        "set server b1/w1 state maint",
        "set server b1/w1 addr 127.0.0.1 port 9001",
        "set server b1/w1 state ready",
        "set server b1/w2 state maint",
        "set server b1/w2 addr 127.0.0.1 port 9001",
        "set server b1/w2 state ready",
    ]


async def hello(_: web.Request) -> web.Response:
    return web.Response()


async def until_queued(router: HaProxyRouter, count: int) -> None:
    """Until this number of the service's requests waits or runs; what is read on the way is gone."""

    async def is_so() -> bool:
        return (await router.read_services())[0].queued == count

    await eventually(is_so)


@pytest.mark.integration
@pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed")
class TestReal:
    """Against the program itself."""

    @in_loop
    async def test_what_comes_before_the_first_replica_waits_for_it(
        self, tmp_path: Path
    ) -> None:
        waiting = replace(a_route(), is_starting=True)
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((waiting,), {})
            asked = [asyncio.create_task(node.post()) for _ in range(3)]
            await until_queued(router, 3)
            ready = f"http://127.0.0.1:{router._settings.port}/v2/models/chat/ready"
            async with node.client.get(ready) as answer:
                assert answer.status == 503
            # Who leaves gives the place up, so that the service may rest again.
            asked.pop().cancel()
            await until_queued(router, 2)
            goes_on = node.worker.hold = asyncio.Event()
            await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
            await eventually(lambda: router.in_flight("a") == 2)
            async with node.client.get(ready) as answer:
                assert answer.status == 200
            goes_on.set()
            assert await asyncio.gather(*asked) == [200, 200]
            assert await node.post() == 200
            # Back at rest, the next one waits again.
            await router.switch_routes((waiting,), {})
            last = asyncio.create_task(node.post())
            await until_queued(router, 1)
            await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
            assert await last == 200

    @in_loop
    async def test_a_language_models_paths_keep_their_service_while_they_wait(
        self, tmp_path: Path
    ) -> None:
        route = ServiceRoute(
            service="chat", slo_ms=1000.0, slo_itl_ms=50.0, is_starting=True
        )
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((route,), {})
            base = f"http://127.0.0.1:{router._settings.port}/services/chat/v1"
            async with node.client.get(f"{base}/models") as answer:
                assert (await answer.json())["data"][0]["id"] == "chat"
            url = f"{base}/chat/completions"
            headers = {"Plimsoll-Deadline-Ms": "200"}
            async with node.client.post(url, json={}, headers=headers) as answer:
                assert answer.status == 504
            (counted,) = await read_all(router)
            assert (counted.arrivals, counted.rejected) == (1, 1)

    @in_loop
    async def test_where_a_request_goes_is_decided_once(self, tmp_path: Path) -> None:
        """Threads of HAProxy may see its map and its servers' states at different moments, as here all do."""
        route = ServiceRoute(service="chat", slo_ms=1000.0, slo_itl_ms=50.0)
        async with a_node(tmp_path) as node, node.haproxy() as router:
            model = web.Application()
            model.router.add_post("/v1/completions", hello)
            proxy, waits = router._proxy, node.settings.waiting_path
            url = f"http://127.0.0.1:{node.settings.port}/services/chat/v1/completions"

            async def status() -> int:
                async with node.client.post(url, json={}) as answer:
                    return answer.status

            async with served(model) as address:
                awake = replace(route, shares=(("a", 1.0),))
                await router.switch_routes((awake,), {"a": address})
                assert await status() == 200
                # It is already told to wait, and its replica still takes requests.
                proxy.ask(f"add map {waits} chat {proxy.secret}")
                assert await status() == 200
                # It is not yet told to wait, and its replica takes no more.
                proxy.ask(f"del map {waits} chat; set server model1/s1 state drain")
                assert await status() == 503

    @in_loop
    async def test_a_service_wakes_after_its_replicas_and_rests_before_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        ask = RuntimeSocket.ask

        def noted(self: RuntimeSocket, line: str) -> str:
            done.extend(line.split("; "))
            return ask(self, line)

        def turn(word: str) -> int:
            (place,) = (number for number, each in enumerate(done) if word in each)
            return place

        monkeypatch.setattr(RuntimeSocket, "ask", noted)
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((a_route(),), {})
            waits = node.settings.waiting_path
            done.clear()
            await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
            assert turn("s1 state ready") < turn(f"del map {waits}")
            done.clear()
            await router.switch_routes((a_route(),), {})
            assert turn(f"add map {waits}") < turn("s1 state drain")

    @in_loop
    async def test_a_refusal_is_not_asked_for_again_where_there_is_only_one_to_ask(
        self, tmp_path: Path
    ) -> None:
        asked = 0

        async def refuse(request: web.Request) -> web.Response:
            nonlocal asked
            is_check = request.path.endswith("/ready")
            asked += not is_check
            return web.Response(status=200 if is_check else 503)

        busy = web.Application()
        busy.router.add_route("*", "/{path:.*}", refuse)
        async with a_node(tmp_path) as node, node.haproxy() as router:
            async with served(busy) as url:
                await router.switch_routes((a_route(("a", 1.0)),), {"a": url})
                assert (await node.post(), asked) == (503, 1)
            router._waiting._router._answer_timeout_s = 0.01
            await router.switch_routes((a_route(),), {})
            assert await node.post() == 503
            counts = router._waiting._router.total("chat")
            assert counts.arrivals == 1

    @in_loop
    async def test_only_what_came_by_haproxy_may_wait_and_its_key_goes_on_with_it(
        self, tmp_path: Path
    ) -> None:
        keys = {"chat": frozenset({hashlib.sha256(b"K").hexdigest()})}
        seen: list[tuple[str | None, bool, bytes]] = []

        async def take(request: web.Request) -> web.Response:
            head, body = request.headers, await request.read()
            seen.append((head.get("Authorization"), SECRET_HEADER in head, body))
            return web.Response()

        peer, packed = web.Application(), gzip.compress(b"{}")
        peer.router.add_route("*", "/{path:.*}", take)
        async with a_node(tmp_path) as node, served(peer) as url:
            node.settings = replace(node.settings, access=RouterAccess(keys=keys))
            async with node.haproxy(keep=True) as router:
                await router.switch_routes((replace(a_route(), is_starting=True),), {})
                host, port = router._waiting.address
                around = f"http://{host}:{port}/v2/models/chat/infer"
                async with node.client.post(around, data=b"{}") as answer:
                    assert answer.status == 403
                headers = {"Authorization": "Bearer K", "Content-Encoding": "gzip"}
                asked = asyncio.create_task(
                    node.client.post(node.url, data=packed, headers=headers)
                )
                await until_queued(router, 1)
                await router.switch_routes((), {})
                router.pass_on("chat", (url,))
                assert (await asked).status == 200
                await router.switch_routes((a_route(),), {})
                proxy = router._proxy
            # To a port that is another process's soon nothing may go.
            assert not any(each.is_ready for each in proxy.state().only("w").places)
            async with node.haproxy():
                pass
        # The queue has opened the body, as the own router's does.
        assert seen == [("Bearer K", False, b"{}")]

    @in_loop
    async def test_its_port_is_closed_where_haproxy_cannot_be_started(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node:
            router = HaProxyRouter(node.settings)
            (tmp_path / "haproxy.json").write_text("{")
            with pytest.raises(HaProxyError, match=r"haproxy\.json"):
                await router.open()
        host, port = router._waiting.address
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, port)

    @in_loop
    async def test_what_waits_when_its_service_leaves_is_counted_with_what_comes_late(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((replace(a_route(), is_starting=True),), {})
            first = asyncio.create_task(node.post())
            await until_queued(router, 1)
            await router.switch_routes((), {})
            late = asyncio.create_task(node.post())
            await until_queued(router, 2)
            assert router.routes == ()
            router.pass_on("chat", (node.addresses["a"],))
            assert [await first, await late] == [200, 200]
            served_there = 0
            # When all is counted, the service is let go of.
            while readings := await router.read_services():
                served_there += readings[0].served
            assert served_there == 2
            assert await node.post() == 404

    @in_loop
    async def test_it_is_left_when_the_agent_ends(self, tmp_path: Path) -> None:
        async with a_node(tmp_path) as node:
            async with node.haproxy(keep=True) as router:
                await router.switch_routes((replace(a_route(), is_starting=True),), {})
                asked = asyncio.create_task(node.post())
                await until_queued(router, 1)
            with contextlib.suppress(aiohttp.ClientError):
                assert await asked in (502, 503)
            async with node.haproxy() as router:
                await router.switch_routes((a_route(),), {})
                asked = asyncio.create_task(node.post())
                await until_queued(router, 1)
                await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
                assert await asked == 200
