"""Requests of a service without a replica: held while one starts, however long, and passed on where it starts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network

import aiohttp
import pytest

from agents.base.device import ServiceRoute
from agents.router import attempts
from agents.router.access import RouterAccess, guard
from agents.router.router import Router
from tests.agents.router.test_router_http import Worker
from tests.agents.router_harness import a_route, opened, served, tick_until
from tests.ports import a_free_port

pytestmark = pytest.mark.integration
SHORT_S = 0.01


class TwoNodes:
    """A node's router that gives a turn up at once, another node's, a worker, and a client."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.client = client
        self.here, self.there = Router(answer_timeout_s=SHORT_S), Router()
        self.worker = Worker("w")
        self.urls: dict[str, str] = {}

    async def post(self, service: str = "chat", **headers: str) -> tuple[int, str]:
        url = f"{self.urls['here']}/v2/models/{service}/infer"
        async with self.client.post(url, data=b"{}", headers=headers) as answer:
            return answer.status, await answer.text()

    def ask(self, service: str = "chat") -> "asyncio.Task[tuple[int, str]]":
        return asyncio.create_task(self.post(service))

    async def until_waiting(self, count: int = 1) -> None:
        await tick_until(lambda: sum(each.queued for each in self.here.read()) == count)


@asynccontextmanager
async def two_nodes() -> AsyncIterator[TwoNodes]:
    async with aiohttp.ClientSession() as client:
        nodes = TwoNodes(client)
        async with (
            served(nodes.here.make_app(), cancels=True) as here,
            served(nodes.there.make_app(), cancels=True) as there,
            served(nodes.worker.make_app()) as worker,
        ):
            nodes.urls = {"here": here, "there": there, "w": worker}
            yield nodes


on_two_nodes = opened(two_nodes, "nodes")
STARTING = replace(a_route(), is_starting=True)
SERVED = a_route(("w", 1.0))


@on_two_nodes
async def test_who_waits_for_a_first_replica_waits_as_long_as_it_starts(
    nodes: TwoNodes,
) -> None:
    nodes.here.switch((STARTING, a_route(service="other")), {})
    first = nodes.ask()
    await nodes.until_waiting()
    # The same time is over for one that came later, whose service has none that starts.
    assert (await nodes.post("other"))[0] == 503
    assert not first.done()
    nodes.here.switch((SERVED,), nodes.urls)
    status, text = await first
    # Only then the time for the answer begins, which is as short here.
    assert (status, text) == (200, "w:2") or "did not answer in 0.01 s" in text


@on_two_nodes
async def test_a_start_that_fails_gives_up_what_waits_for_it(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_LOOK_S", SHORT_S)
    nodes.here.switch((STARTING,), {})
    first = nodes.ask()
    await nodes.until_waiting()
    nodes.here.switch((a_route(),), {})
    status, text = await first
    assert status == 503
    assert "no replica of chat had room within 0.01 s, and none is starting" in text


@on_two_nodes
async def test_a_deadline_ends_the_wait_for_a_start(nodes: TwoNodes) -> None:
    nodes.here.switch((STARTING,), {})
    status, _ = await nodes.post(**{"Plimsoll-Deadline-Ms": "50"})
    assert status == 504


@on_two_nodes
async def test_what_waits_is_passed_on_to_the_node_where_the_replica_starts(
    nodes: TwoNodes,
) -> None:
    nodes.there.switch((SERVED,), nodes.urls)
    nodes.here.switch((a_route(), a_route(service="gone")), {})
    nodes.here._answer_timeout_s = 60.0
    asked, gone = nodes.ask(), nodes.ask("gone")
    await nodes.until_waiting(2)
    nodes.here.switch((), {})
    assert nodes.here.stranded == ("chat", "gone")
    # Who has not heard of it yet waits with the others.
    late = nodes.ask()
    await nodes.until_waiting(3)
    # A service that is nowhere any more.
    nodes.here.pass_on("gone", ())
    assert (await gone)[0] == 503
    nodes.here.pass_on("chat", ("https://10.0.0.1:1", nodes.urls["there"]))
    assert [await asked, await late] == [(200, "w:2"), (200, "w:2")]
    assert not nodes.here.stranded
    # Nor has who comes before the next reading.
    assert (await nodes.post())[0] == 200
    nodes.here.read()
    assert (await nodes.post())[0] == 404
    assert [each.served for each in nodes.there.read()] == [3]


@on_two_nodes
async def test_a_language_models_requests_are_passed_on_as_they_came(
    nodes: TwoNodes,
) -> None:
    model = ServiceRoute(service="chat", slo_ms=1000.0, slo_itl_ms=50.0)
    nodes.here._answer_timeout_s = 60.0
    nodes.here.switch((model,), {})

    async def complete() -> int:
        url = f"{nodes.urls['here']}/services/chat/v1/chat/completions"
        async with nodes.client.post(url, json={}) as answer:
            return answer.status

    asked = asyncio.create_task(complete())
    await nodes.until_waiting()
    nodes.here.switch((), {})
    # The worker does not know the path that the other node's router would make of it: 404 is its own answer.
    nodes.there.switch((replace(model, shares=(("w", 1.0),)),), nodes.urls)
    nodes.here.pass_on("chat", (nodes.urls["there"],))
    assert await asked == 404
    assert [each.arrivals for each in nodes.there.read()] == [1]


@on_two_nodes
async def test_a_service_that_comes_back_has_what_waited_for_it(
    nodes: TwoNodes,
) -> None:
    nodes.here._answer_timeout_s = 60.0
    nodes.here.switch((a_route(),), {})
    asked = nodes.ask()
    await nodes.until_waiting()
    nodes.here.switch((), {})
    nodes.here.switch((SERVED,), nodes.urls)
    assert (nodes.here.stranded, await asked) == ((), (200, "w:2"))


@on_two_nodes
async def test_nodes_that_do_not_answer_are_asked_for_no_longer_than_for_what_waits(
    nodes: TwoNodes,
) -> None:
    nodes.here._answer_timeout_s = 60.0
    nodes.here.switch((a_route(),), {})
    asked = nodes.ask()
    await nodes.until_waiting()
    nodes.here.switch((), {})
    (retired,) = nodes.here._retired
    unreachable = f"http://127.0.0.1:{a_free_port()}"
    nodes.here.pass_on("chat", (unreachable, nodes.urls["w"]))
    assert (await asked)[0] == 200
    assert retired.out
    while nodes.here.read():
        pass
    assert not retired.out


@pytest.mark.parametrize("kind", ["unknown service", "address", "key", "unreachable"])
@on_two_nodes
async def test_what_another_node_refuses_may_come_again(
    nodes: TwoNodes, kind: str
) -> None:
    access = {
        "address": RouterAccess(allow=(ip_network("10.9.0.0/16"),)),
        "key": RouterAccess(keys={}),
    }
    there = Router().make_app()
    if kind in access:
        there.middlewares.append(guard(access[kind]))
    nodes.here._answer_timeout_s = 60.0
    nodes.here.switch((a_route(),), {})
    asked = nodes.ask()
    await nodes.until_waiting()
    nodes.here.read()
    nodes.here.switch((), {})
    async with served(there) as url:
        if kind == "unreachable":
            url = f"http://127.0.0.1:{a_free_port()}"
        nodes.here.pass_on("chat", (url,))
        status, text = await asked
    assert (status, url in text) == (503, False)
    assert "the next one does not take requests yet" in text
    (reading,) = nodes.here.read()
    assert (reading.served, reading.rejected) == (0, 1)
