"""vLLM itself behind either router: its APIs are measured by what it states, and clients get what it says.

Only where `tests/real_vllm.py` finds one: five minutes, most of them for its two starts. Nothing goes by its speed.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from aiohttp import web

from agents.base.device import ServerTraits, ServiceRoute
from agents.replicas.adapters import Endpoint, make_adapters
from agents.replicas.answers import ServerUnanswered
from tests.agents.router.routers import Door, DoorAnswer, both, front
from tests.agents.router.vllm_apis import (
    APIS,
    COMPLETIONS,
    EMBEDDING,
    LONG,
    MANY,
    MESSAGES,
    STREAMED,
    Api,
    stated_tokens,
)
from tests.agents.router_harness import raw_worker, served
from tests.app.runner import cli
from tests.ports import a_free_port
from tests.real_vllm import make_network, needs_vllm, serving
from tests.waiting import eventually, in_loop

pytestmark = [pytest.mark.integration, needs_vllm]

HOUR_MS = 3_600_000.0
TRAITS = ServerTraits(ready_path="/health")
OPTIONS = ("--served-model-name", "chat", "--max-model-len", "1024")
FULL = ("--max-num-seqs", "2", "--max-num-queued-reqs", "4")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_network(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="module")
def server(network: Path) -> Iterator[str]:
    with serving(network, network.parent / "log", *OPTIONS, *FULL) as url:
        yield url


@pytest.fixture(scope="module")
def embedder(network: Path) -> Iterator[str]:
    convert = ("--runner", "pooling", "--convert", "embed")
    with serving(network, network.parent / "log2", *OPTIONS, *convert) as url:
        yield url


@asynccontextmanager
async def before(
    kind: str,
    folder: Path,
    url: str,
    *,
    ttft_ms: float = HOUR_MS,
    itl_ms: float = HOUR_MS,
    **others: str,
) -> AsyncIterator[Door]:
    """A router of that kind, and vLLM behind it; `others`: replicas besides."""
    async with front(kind, folder) as door:
        addresses = {"vllm": url, **others}
        route = ServiceRoute(
            service="chat",
            slo_ms=ttft_ms,
            slo_itl_ms=itl_ms,
            shares=tuple((name, 1.0) for name in addresses),
        )
        traits = dict.fromkeys(addresses, TRAITS)
        await door.switch(route, traits=traits, **addresses)
        yield door


async def ask(door: Door, path: str, body: dict[str, Any]) -> DoorAnswer:
    """The answer to a request of OpenAI's or Anthropic's."""
    data = json.dumps({"model": "chat", **body}).encode()
    return await door.ask(
        "POST", f"/services/chat/v1/{path}", data, Content_Type="application/json"
    )


async def gauge(door: Door, url: str, name: str) -> float:
    """One of vLLM's own."""
    async with door.client.get(f"{url}/metrics") as answer:
        text = await answer.text()
    rows = (line for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
    return sum(float(row.rpartition(" ")[2]) for row in rows)


@asynccontextmanager
async def occupied(door: Door, url: str, times: int = 1) -> AsyncIterator[None]:
    """Both of vLLM's places are taken; further times wait for them."""

    async def hold() -> None:
        body = {"model": "chat", **LONG}
        async with door.client.post(f"{url}/v1/completions", json=body) as answer:
            await answer.read()

    tasks = [asyncio.create_task(hold()) for _ in range(times)]

    async def are_there() -> bool:
        running = await gauge(door, url, "num_requests_running")
        return running + await gauge(door, url, "num_requests_waiting") == 2 * times

    await eventually(are_there)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await eventually(lambda: is_idle(door, url))


async def is_idle(door: Door, url: str) -> bool:
    names = ("num_requests_running", "num_requests_waiting")
    return not any([await gauge(door, url, name) for name in names])


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("api", APIS.values(), ids=APIS.keys())
@both
@in_loop
async def test_an_answer_counts_by_its_usage(
    kind: str, tmp_path: Path, server: str, api: Api, is_stream: bool
) -> None:
    async with before(kind, tmp_path, server) as door:
        extra = {"stream": True, **api.streamed} if is_stream else {}
        answer = await ask(door, api.path, {**api.body, **extra})
        assert answer.status == 200, answer.body
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.unmeasured) == (1, 1, 0)
        tokens = stated_tokens(api, answer.body, is_stream=is_stream)
        assert reading.output_tokens == tokens > 0


@pytest.mark.parametrize("name", STREAMED)
@both
@in_loop
async def test_a_first_token_that_waited_for_a_place_is_late(
    kind: str, tmp_path: Path, server: str, name: str
) -> None:
    # vLLM begins a stream of the Responses API at once, whenever its first token comes.
    api = APIS[name]
    async with before(kind, tmp_path, server, ttft_ms=20.0) as door:
        async with occupied(door, server):
            answer = await ask(door, api.path, {**api.body, "stream": True})
        assert answer.status == 200
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.unmeasured) == (1, 0, 0)


@pytest.mark.parametrize("name", STREAMED)
@both
@in_loop
async def test_gaps_between_tokens_are_seen(
    kind: str, tmp_path: Path, server: str, name: str
) -> None:
    api = APIS[name]
    many = {"max_output_tokens": 300} if name == "responses" else MANY
    body = {**api.body, **many, "stream": True, **api.streamed}
    async with before(kind, tmp_path, server, itl_ms=0.001) as door:
        assert (await ask(door, api.path, body)).status == 200
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.unmeasured) == (1, 0, 0)


@pytest.mark.parametrize("is_waiting", [False, True])
@both
@in_loop
async def test_a_client_that_leaves_frees_vllm(
    kind: str, tmp_path: Path, server: str, is_waiting: bool
) -> None:
    async with before(kind, tmp_path, server) as door:
        url = f"{door.url}/services/chat/v1/completions"
        body = {"model": "chat", **LONG}

        async def read_until_cancelled() -> None:
            async with door.client.post(url, json=body) as answer:
                await answer.read()

        async def count(name: str) -> float:
            return await gauge(door, server, name)

        busy = occupied(door, server) if is_waiting else contextlib.nullcontext()
        async with busy:
            task = asyncio.create_task(read_until_cancelled())
            name = "num_requests_waiting" if is_waiting else "num_requests_running"

            async def has_it() -> bool:
                return await count(name) > 0

            await eventually(has_it)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            reading = await door.reading()
            assert (reading.served, reading.gone, reading.rejected) == (0, 1, 0)
            if is_waiting:
                await eventually(lambda: _is_zero(count(name)))
        await eventually(lambda: is_idle(door, server))


async def _is_zero(count: Any) -> bool:
    return not await count


async def calm(request: web.Request) -> web.Response:
    """Another replica."""
    await request.read()
    return web.json_response({"usage": {"completion_tokens": 1}, "choices": []})


@both
@in_loop
async def test_a_full_vllm_is_passed_by_and_stays_in(
    kind: str, tmp_path: Path, server: str
) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", calm)
    body = {**COMPLETIONS, "max_tokens": 1}
    async with (
        served(app) as at_other,
        before(kind, tmp_path, server, other=at_other) as door,
    ):
        async with occupied(door, server, times=2):
            for _ in range(8):
                assert (await ask(door, "completions", body)).status == 200

        async def is_asked() -> bool:
            answer = await ask(door, "completions", body)
            return b'"model":"chat"' in answer.body

        await eventually(is_asked)
        reading = await door.reading()
        assert reading.rejected == 0


@both
@in_loop
async def test_a_full_vllm_alone_says_when_to_come_again(
    kind: str, tmp_path: Path, server: str
) -> None:
    async with before(kind, tmp_path, server) as door:
        async with occupied(door, server, times=2):
            for name in STREAMED:
                api = APIS[name]
                answer = await ask(door, api.path, {**api.body, "stream": True})
                assert answer.status == 503, answer.body
                assert answer.headers["Retry-After"].isdecimal()
                assert b"busy" in answer.body
        reading = await door.reading()
        assert (reading.served, reading.rejected) == (0, len(STREAMED))
        assert (await ask(door, "completions", COMPLETIONS)).status == 200


@pytest.mark.parametrize("name", STREAMED)
@both
@in_loop
async def test_a_name_that_vllm_does_not_know_is_the_callers_error(
    kind: str, tmp_path: Path, server: str, name: str
) -> None:
    api = APIS[name]
    async with before(kind, tmp_path, server) as door:
        for _ in range(4):
            answer = await ask(door, api.path, {**api.body, "model": "else"})
            assert answer.status == 404
            assert b"else" in answer.body
        reading = await door.reading()
        assert (reading.served, reading.rejected, reading.output_tokens) == (4, 0, 0)
        assert (await ask(door, api.path, api.body)).status == 200


@both
@in_loop
async def test_counted_prompts_have_no_tokens(
    kind: str, tmp_path: Path, server: str
) -> None:
    async with before(kind, tmp_path, server) as door:
        answer = await ask(door, "messages/count_tokens", {"messages": MESSAGES})
        assert json.loads(answer.body)["input_tokens"] > 0
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.output_tokens) == (1, 1, 0)
        listed = await door.ask("GET", "/services/chat/v1/models")
        assert json.loads(listed.body)["data"][0]["id"] == "chat"


@both
@in_loop
async def test_a_vllm_that_could_not_be_reached_comes_back(
    kind: str, tmp_path: Path, server: str
) -> None:
    app, port = web.Application(), a_free_port()
    app.router.add_route("*", "/{path:.*}", calm)
    body = {**COMPLETIONS, "max_tokens": 1}
    to = server.rpartition(":")[2]

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", int(to))
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, outer))
            group.create_task(_copy(inner, writer))

    async with (
        served(app) as at_other,
        before(
            kind,
            tmp_path,
            f"http://127.0.0.1:{port}",
            other=at_other,
        ) as door,
    ):
        for _ in range(8):
            assert (await ask(door, "completions", body)).status == 200
        async with raw_worker(pass_on, port=port):

            async def is_asked() -> bool:
                answer = await ask(door, "completions", body)
                return b'"model":"chat"' in answer.body

            await eventually(is_asked)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@pytest.mark.parametrize("path", EMBEDDING)
@both
@in_loop
async def test_embeddings_and_scores_have_no_tokens_of_their_own(
    kind: str, tmp_path: Path, embedder: str, path: str
) -> None:
    async with before(kind, tmp_path, embedder) as door:
        answer = await ask(door, path, EMBEDDING[path])
        assert answer.status == 200, answer.body
        assert json.loads(answer.body)["usage"]["total_tokens"] > 0
        reading = await door.reading()
        assert (reading.served, reading.in_slo, reading.output_tokens) == (1, 1, 0)


@in_loop
async def test_the_agent_reads_what_vllm_tells_of_itself(server: str) -> None:
    endpoint = Endpoint(url=server, served_as="chat", metrics_url=f"{server}/metrics")
    async with aiohttp.ClientSession() as session:
        adapter = make_adapters(session)["vllm"]
        assert await adapter.is_ready(endpoint)
        assert adapter.traits(endpoint) == TRAITS
        assert await adapter.is_asleep(endpoint) is False
        with pytest.raises(ServerUnanswered, match="404"):
            await adapter.sleep(endpoint)
        first = await adapter.metrics(endpoint)
        body = {"model": "chat", **COMPLETIONS, "n": 2, "ignore_eos": True}
        async with session.post(f"{server}/v1/completions", json=body) as answer:
            usage = (await answer.json())["usage"]

        async def has_counted() -> bool:
            now = await adapter.metrics(endpoint)
            return (now.requests or 0) > (first.requests or 0)

        await eventually(has_counted)
        last = await adapter.metrics(endpoint)
        grown = [
            getattr(last, name) - getattr(first, name)
            for name in ("requests", "failures", "prompt_tokens", "answer_tokens")
        ]
        # It counts each of the two answers as a request, and its prompt twice.
        prompt, answers = usage["prompt_tokens"], usage["completion_tokens"]
        assert grown == [2, 0, 2 * prompt, answers]


def test_relay_reads_what_vllm_tells_of_itself(server: str) -> None:
    shown = cli(f"relay {server}/metrics --kind vllm --served-as chat", api=None)
    assert shown.code == 0, shown.err
    quantities = {line.split()[0] for line in shown.out.splitlines()}
    assert quantities >= {"served", "failed", "first_token", "mean_gaps", "latency"}
    slo = {"ttft_ms": HOUR_MS, "itl_ms": HOUR_MS}
    pushed: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/metrics":
            page = httpx2.get(f"{server}/metrics", timeout=60.0)
            body = {"model": "chat", **COMPLETIONS}
            httpx2.post(f"{server}/v1/completions", json=body, timeout=60.0)
            return httpx2.Response(200, text=page.text, headers=page.headers)
        if request.method == "POST":
            pushed.append(json.loads(request.content))
        return httpx2.Response(200, json={"spec": {"slo": slo}})

    relay = f"relay {server}/metrics --kind vllm --service chat --windows 2"
    result = cli(relay, api=answer)
    assert result.code == 0, result.err
    found = [(each["arrivals"], each["served"], each["in_slo"]) for each in pushed]
    assert found == [(1, 1, 1)] * 2
