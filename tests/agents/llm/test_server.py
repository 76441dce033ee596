"""The stand-in over HTTP: an OpenAI API, streams in real time, aborts, and vLLM's metrics."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import aiohttp

from agents.llm.scheduler import EngineSize, LlmScheduler
from agents.llm.server import LlmServer, StepTime
from agents.replicas.server_metrics import read_page, read_server
from tests.agents.router_harness import served
from tests.waiting import eventually

FAST = StepTime(base=1.0, per_token=0.0)


def with_server(
    work: Callable[[aiohttp.ClientSession, str], Awaitable[None]],
    *,
    load_s: float = 0.0,
    **size: int,
) -> None:
    """Do that with a server that serves `chat`."""

    async def run() -> None:
        server = LlmServer(
            "chat", LlmScheduler(EngineSize(**size)), FAST, load_s=load_s
        )
        async with (
            served(server.make_app(), cancels=True) as url,
            aiohttp.ClientSession() as session,
        ):
            await work(session, url)

    asyncio.run(run())


def chat(tokens: int, **more: object) -> dict[str, object]:
    """A request for `tokens` tokens."""
    messages = [{"role": "user", "content": "one two three"}]
    return {"model": "chat", "messages": messages, "max_tokens": tokens, **more}


def test_a_stream_has_the_role_every_token_usage_and_an_end() -> None:
    async def work(session: aiohttp.ClientSession, url: str) -> None:
        body = chat(5, stream=True, stream_options={"include_usage": True})
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            text = await answer.text()
        events = [each.removeprefix("data: ") for each in text.split("\n\n") if each]
        assert events[-1] == "[DONE]"
        first, *_ = (json.loads(each) for each in events[:-1])
        assert first["choices"][0]["delta"]["role"] == "assistant"
        assert text.count('"content":" token"') == 5
        assert json.loads(events[-2])["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
        }

    with_server(work)


def test_whole_answers_wrong_names_and_prompts_without_room() -> None:
    async def work(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(
            f"{url}/v1/completions", json={"prompt": "a b", "max_tokens": 3}
        ) as answer:
            assert (await answer.json())["choices"][0]["text"] == " token" * 3
        for body, status in (
            (chat(1, model="other"), 404),
            (chat(10_000), 400),
            ({"prompt": 3}, 400),
        ):
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                assert answer.status == status
                assert (await answer.json())["error"]["message"]

    with_server(work, kv_blocks=16)


def test_it_is_not_ready_before_it_has_loaded() -> None:
    async def work(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(f"{url}/health") as answer:
            assert answer.status == 503
        async with session.post(
            f"{url}/v1/completions", json={"prompt": "a"}
        ) as answer:
            assert answer.status == 503

    with_server(work, load_s=60.0)


def test_who_leaves_is_aborted_and_metrics_are_read_as_those_of_vllm() -> None:
    async def work(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(
            f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 4}
        ) as answer:
            await answer.read()
        leaving = await session.post(
            f"{url}/v1/completions",
            json={"prompt": "a", "max_tokens": 9999, "stream": True},
        )
        await leaving.content.readany()
        leaving.close()
        running = 'vllm:num_requests_running{model_name="chat"} 0.0'

        async def page() -> str:
            async with session.get(f"{url}/metrics") as answer:
                text = await answer.text()
            return text if running in text else ""

        # The engine hears of it when its next token cannot be sent.
        text = await eventually(page)
        counts = read_server(read_page(text), "vllm", "chat")
        assert counts.served == 1.0

    with_server(work, kv_blocks=4096)
