"""HAProxy as a process of the agent's: started, adopted, watched, ended, and what it counted."""

import asyncio
import contextlib
import math
import os
import shutil
import signal
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import psutil
import pytest

from agents.base.device import NotSupported, ServiceRoute
from agents.base.protocol import ServiceReading
from agents.router.haproxy import supervised
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.counts import Counted, Counter, parse_counts
from agents.router.haproxy.router import HaProxyRouter, open_haproxy
from agents.router.haproxy.state import HaProxyError
from agents.router.haproxy.supervised import PLACES, end_earlier, pause
from tests.agents.router.haproxy.test_router_haproxy import Worker
from tests.agents.router_harness import (
    a_route,
    read_all,
    served,
    tick_until,
)
from tests.ports import own_ports
from tests.waiting import PATIENCE_S, in_loop

PORT = own_ports()
PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path=PLACES)
real = [
    pytest.mark.integration,
    pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed"),
]

STAT = """# pxname,svname,scur,stot,hrsp_1xx,hrsp_2xx,hrsp_3xx,hrsp_4xx,hrsp_5xx,hrsp_other,
b1,BACKEND,2,10,0,5,0,1,3,1,
b2,BACKEND,0,0,0,0,0,0,0,0,
"""
TABLE = "# table: answers_in_slo, type: string, size:64, used:1\n0x55d: key=b1 use=0 exp=0 shard=0 gpc0=4\n"


def test_counts_are_read_from_what_haproxy_says() -> None:
    counts = parse_counts(STAT, TABLE)
    # 5 + 1 answers below 500; 3 of 5xx and 1 without any.
    assert counts["b1"] == Counted(
        arrivals=10, served=6, rejected=4, in_slo=4, queued=2
    )
    assert counts["b2"] == Counted()
    # In the SLO, tokens, unmeasured, failed, left in time and later.
    metered = parse_counts(STAT, TABLE, "b1 1 40 1 1 2 1\n\n")["b1"]
    assert metered == Counted(
        arrivals=10,
        served=2,
        rejected=6,
        in_slo=5,
        gone=2,
        unmeasured=1,
        output_tokens=40,
        queued=2,
    )
    with pytest.raises(HaProxyError, match="cannot read HAProxy's counts"):
        parse_counts(STAT, TABLE, "b1 x")
    with pytest.raises(HaProxyError, match="cannot read HAProxy's counts"):
        parse_counts(STAT.replace("stot", "total"), TABLE)


def test_a_reading_is_what_came_since_the_last_one() -> None:
    counter = Counter({"b1": Counted(arrivals=4, served=4, in_slo=4)})
    now = parse_counts(STAT, TABLE)
    (reading,) = counter.read(now, {"chat": "b1"})
    assert reading == ServiceReading(
        service="chat", arrivals=6, served=2, in_slo=0, rejected=4, queued=2
    )
    (reading,) = counter.read(now, {"other": "b1"})
    assert (reading.service, reading.arrivals, reading.served) == ("other", 0, 0)
    (reading,) = counter.read(
        {"b1": Counted(arrivals=3, served=2, in_slo=1)}, {"chat": "b1"}
    )  # it was started again
    assert (reading.arrivals, reading.served, reading.in_slo) == (3, 2, 1)


def test_a_hit_whose_answer_is_still_being_sent_is_told_with_the_answer() -> None:
    counter = Counter({})
    readings = [
        reading
        for served in (1, 1, 2)
        for reading in counter.read(
            {"b1": Counted(arrivals=2, served=served, in_slo=2)}, {"chat": "b1"}
        )
    ]
    assert [(each.served, each.in_slo) for each in readings] == [(1, 1), (0, 0), (1, 1)]


def test_one_that_ran_steadily_is_started_again_at_once_and_one_that_fails_again_waits() -> (
    None
):
    assert pause(0, ran_s=10.0) == pause(7, ran_s=10.0) == (0, 0.0)
    assert pause(0, ran_s=9.9) == (1, 1.0)
    assert pause(1, ran_s=1.0) == (2, 2.0)
    assert pause(9, ran_s=0.0) == (10, 30.0)


class Node:
    """Where HAProxy lives, a worker behind it, and a client before it."""

    def __init__(self, folder: Path) -> None:
        self.settings = HaProxySettings(
            port=PORT, folder=folder, services=4, replicas=3
        )
        self.worker = Worker("a")
        self.addresses: dict[str, str] = {}
        self.client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}/v2/models/chat/infer"

    async def post(self, **headers: str) -> int:
        async with self.client.post(self.url, data=b"{}", headers=headers) as answer:
            await answer.read()
            return answer.status

    async def tries(self) -> int:
        """The status, or 0 where nothing takes connections."""
        try:
            return await self.post()
        except aiohttp.ClientError:
            return 0

    @asynccontextmanager
    async def haproxy(
        self, *, keep: bool = False, **changes: int
    ) -> AsyncIterator[HaProxyRouter]:
        router = await open_haproxy(replace(self.settings, **changes))  # type: ignore[arg-type]
        try:
            yield router
        finally:
            await router.close(keep=keep)


@asynccontextmanager
async def a_node(folder: Path) -> AsyncIterator[Node]:
    node = Node(folder)
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        served(node.worker.make_app()) as url,
        aiohttp.ClientSession(connector=connector) as client,
    ):
        node.addresses, node.client = {"a": url}, client
        yield node


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def looked_until(router: HaProxyRouter, holds: Callable[[], bool]) -> None:
    while not holds():
        await router.look()
        await asyncio.sleep(0.01)


class TestReal:
    """Against the program itself."""

    pytestmark = real

    @in_loop
    async def test_it_is_kept_over_a_restart_of_the_agent_and_no_request_is_lost(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node:
            async with node.haproxy(keep=True) as router:
                await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
                assert await node.post() == 200
                pid = router.pid
            assert await node.post() == 200  # no agent there
            async with node.haproxy() as router:
                assert router.pid == pid
                assert await node.post() == 200
                await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
                assert await node.post() == 200
                # What was counted before this agent came is not its own.
                counted = await read_all(router)
                assert [(each.arrivals, each.served) for each in counted] == [(2, 2)]
            assert not alive(pid)
            assert not (tmp_path / "haproxy.json").exists()

    @in_loop
    async def test_after_a_kill_of_the_agent_the_next_one_has_exactly_one(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node:
            # Kept without a word of goodbye, then wanted on another port.
            async with node.haproxy(keep=True) as router:
                first = router.pid
            async with node.haproxy(port=PORT + 1) as router:
                assert router.pid != first
                assert not alive(first)
                assert await node.tries() == 0

    @in_loop
    async def test_an_agent_that_carries_requests_itself_ends_the_one_that_was_left(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node:
            async with node.haproxy(keep=True) as router:
                left = router.pid
            assert alive(left)
            await end_earlier(tmp_path)
            assert not alive(left)
            await end_earlier(tmp_path)  # there is none any more
            async with node.haproxy() as router:
                assert router.pid not in (0, left)

    @in_loop
    async def test_one_that_dies_comes_back_with_its_table(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
            first = router.pid
            os.kill(first, signal.SIGKILL)
            await tick_until(lambda: router.pid not in (0, first))
            await router.look()
            assert router.in_flight("a") == 0
            while await node.tries() != 200:
                pass
            await tick_until(lambda: router.routes == (a_route(("a", 1.0)),))

    @in_loop
    async def test_one_that_does_not_answer_keeps_the_agent_from_nothing_else(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
            os.kill(router.pid, signal.SIGSTOP)
            asked = [
                asyncio.create_task(each)
                for each in (
                    router.look(),
                    router.switch_routes((), {}),
                    router.read_services(),
                )
            ]
            for _ in range(20):
                await asyncio.sleep(0.0)
            assert not any(each.done() for each in asked)  # and yet this goes on
            os.kill(router.pid, signal.SIGCONT)
            await asyncio.gather(*asked)
            assert router.routes == ()

    @pytest.mark.thorough
    @in_loop
    async def test_one_that_cannot_be_started_at_first_is_tried_again(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
            first, log = router.pid, tmp_path / "haproxy.log"
            log.unlink()
            log.mkdir()  # so that its output can be put nowhere
            os.kill(first, signal.SIGKILL)
            # A start that failed leaves no table: enforcement sees it, and so does this.
            await tick_until(lambda: router.routes == ())
            log.rmdir()
            await tick_until(lambda: router.routes != ())
            assert router.pid not in (0, first)
            assert await node.post() == 200

    @in_loop
    async def test_while_it_is_down_nothing_is_in_flight_and_nothing_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with a_node(tmp_path) as node, node.haproxy() as router:
            await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
            # As long as this looks, it is not started again.
            monkeypatch.setattr(supervised, "pause", lambda *_, **__: (1, PATIENCE_S))
            os.kill(router.pid, signal.SIGKILL)
            await tick_until(lambda: router.pid == 0)
            router._seen_s = -math.inf
            await router.look()
            assert router.in_flight("a") == 0
            assert await router.read_services() == ()

    @in_loop
    async def test_it_counts_arrivals_answers_misses_and_refusals(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node, node.haproxy() as router:
            route = ServiceRoute(service="chat", slo_ms=60_000.0, shares=(("a", 1.0),))
            await router.switch_routes((route,), node.addresses)
            assert Tally([await node.post() for _ in range(5)]) == {200: 5}
            node.worker.delay_s = 0.15
            late = (replace(route, slo_ms=100.0),)
            await router.switch_routes(late, node.addresses)
            assert await node.post() == 200
            await router.switch_routes((route,), node.addresses)
            assert await node.post() == 200
            node.worker.delay_s, node.worker.status = 0.0, 500
            assert await node.post() == 500
            # 8 came: 7 were answered, of which one took longer than the SLO that held then.
            expected = ServiceReading(
                service="chat", arrivals=8, served=7, in_slo=6, rejected=1
            )
            assert await read_all(router) == [expected]
            assert [each.arrivals for each in await router.read_services()] == [0]
            await router.switch_routes(
                (ServiceRoute(service="chat", slo_ms=100.0),), {}
            )
            # Without a replica it waits, as long as its caller does.
            assert await node.post(**{"Plimsoll-Deadline-Ms": "50"}) == 504
            counted = await read_all(router)
            assert [(each.arrivals, each.rejected) for each in counted] == [(1, 1)]
            with pytest.raises(NotSupported, match="reports no latencies of chat"):
                router.total("chat")

    @in_loop
    async def test_what_is_under_way_is_finished_before_it_ends(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node:
            goes_on = node.worker.hold = asyncio.Event()

            async def release() -> None:
                # HAProxy, which answers this itself, takes no connection once it has been told to end.
                with pytest.raises(aiohttp.ClientError):
                    while True:
                        async with node.client.get(node.url):
                            pass
                goes_on.set()

            async with node.haproxy() as router:
                await router.switch_routes((a_route(("a", 1.0)),), node.addresses)
                asked = asyncio.create_task(node.post())
                await looked_until(router, lambda: router.in_flight("a") == 1)
                releasing = asyncio.create_task(release())
            await releasing
            assert await asked == 200

    @in_loop
    async def test_a_port_that_is_taken_is_told_and_nothing_is_left(
        self, tmp_path: Path
    ) -> None:
        async with a_node(tmp_path) as node, served(Worker("b").make_app()) as other:
            taken = int(other.rpartition(":")[2])
            with pytest.raises(HaProxyError, match="did not start"):
                async with node.haproxy(port=taken):
                    pass
            assert not (tmp_path / "haproxy.json").exists()
