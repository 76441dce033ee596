"""A stand-in for vLLM: its API, its metrics and its scheduler, with steps that take time and compute nothing.

    POST /v1/completions, /v1/chat/completions     streamed or whole; `max_tokens` tokens, always
    GET  /v1/models                                the one that is served
    GET  /health                                   503 until it has loaded
    GET  /metrics                                  vLLM's names
    POST /sleep, /wake_up, GET /is_sleeping        as vLLM has them with --enable-sleep-mode; asleep it takes nothing

A prompt has as many tokens as it has words. Who leaves is aborted, as vLLM does. For tests and demonstrations without a
GPU; see `agents.llm.scheduler`.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec
from aiohttp import web

from agents.llm.metrics import EngineMetrics
from agents.llm.scheduler import EngineRequest, LlmScheduler, Step

WORD = " token"
DEFAULT_TOKENS = 16
MAX_TOKENS = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long a step takes, in ms: a straight line over what it computes."""

    base: float = 8.0
    per_token: float = 0.02
    per_sequence: float = 0.03
    per_cached_token: float = 1e-5
    per_pair: float = 1e-6
    speed: float = 1.0
    """Times are divided by this."""

    def seconds(self, step: Step) -> float:
        """That one step takes."""
        ms = self.base + self.per_token * step.tokens
        ms += self.per_sequence * len(step.decoding)
        ms += self.per_cached_token * step.cached_tokens + self.per_pair * step.pairs
        return ms / 1000.0 / self.speed


class _Message(msgspec.Struct):
    content: str | None = ""


class _Body(msgspec.Struct):
    model: str = ""
    prompt: str | list[int] | None = None
    messages: list[_Message] = msgspec.field(default_factory=list)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: dict[str, bool] | None = None

    @property
    def prompt_tokens(self) -> int:
        """One per word."""
        if isinstance(self.prompt, list):
            return max(1, len(self.prompt))
        texts = [self.prompt or "", *(each.content or "" for each in self.messages)]
        return max(1, sum(len(each.split()) for each in texts))

    @property
    def output_tokens(self) -> int:
        """How many are asked for."""
        asked = self.max_completion_tokens or self.max_tokens or DEFAULT_TOKENS
        return min(MAX_TOKENS, max(1, asked))


class LlmServer:
    """One engine and its HTTP API."""

    def __init__(
        self,
        served_as: str,
        scheduler: LlmScheduler,
        step_time: StepTime,
        *,
        load_s: float = 0.0,
        can_sleep: bool = False,
        sleep_s: float = 0.0,
    ) -> None:
        """`load_s`: it is not ready before; `sleep_s`: it takes so long to fall asleep."""
        self._can_sleep, self._sleep_s = can_sleep, sleep_s
        self._is_asleep = False
        self._served_as, self._scheduler = served_as, scheduler
        self._step_time, self._load_s = step_time, load_s
        self._metrics = EngineMetrics(served_as, scheduler)
        self._ids = itertools.count(1)
        self._answers: dict[str, asyncio.Queue[bool]] = {}
        """By request: whether each token is the last."""
        self._wake = asyncio.Event()
        self._ready_s = 0.0

    def make_app(self) -> web.Application:
        """The server; run it with handlers that are cancelled when their client leaves."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._show_metrics)
        if self._can_sleep:
            app.router.add_post("/sleep", self._sleep)
            app.router.add_post("/wake_up", self._wake_up)
            app.router.add_get("/is_sleeping", self._show_sleep)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, _: web.Application) -> AsyncIterator[None]:
        self._ready_s = time.monotonic() + self._load_s
        engine = asyncio.create_task(self._run())
        yield
        engine.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await engine

    async def _run(self) -> None:
        """The engine's loop: one step after the other."""
        due_s = time.monotonic()
        while True:
            step = self._scheduler.step()
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due_s = time.monotonic()
                continue
            took_s = self._step_time.seconds(step)
            # By the clock and not by sleeps, whose lateness would add up; one that is far behind goes on from now.
            due_s = max(due_s, time.monotonic() - took_s) + took_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            got = self._scheduler.finish(step)
            self._metrics.note_step(step, len(got))
            for request_id, is_done in got:
                if request_id in self._answers:
                    self._answers[request_id].put_nowait(is_done)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if not self.is_ready:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "the engine is loading")
        if self._is_asleep:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "the engine sleeps")
        try:
            body = msgspec.json.decode(await request.read(), type=_Body)
        except msgspec.DecodeError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        if body.model not in ("", self._served_as):
            return _error(HTTPStatus.NOT_FOUND, f"no model is called {body.model!r}")
        asked = EngineRequest(
            id=f"r{next(self._ids)}",
            prompt_tokens=body.prompt_tokens,
            output_tokens=body.output_tokens,
        )
        if not self._scheduler.fits(asked):
            return _error(
                HTTPStatus.BAD_REQUEST, "the request is longer than the cache"
            )
        self._answers[asked.id] = asyncio.Queue()
        self._scheduler.add(asked)
        self._wake.set()
        came_s = time.monotonic()
        try:
            is_chat = request.path.endswith("/chat/completions")
            answer = _Answer(self._served_as, asked, is_chat=is_chat)
            tokens = self._tokens(asked.id, came_s)
            if not body.stream:
                return web.json_response(
                    answer.complete([each async for each in tokens])
                )
            with_usage = bool((body.stream_options or {}).get("include_usage"))
            return await _stream(request, answer, tokens, with_usage=with_usage)
        finally:
            # Also where the client has left: its blocks are another's now.
            self._scheduler.abort(asked.id)
            del self._answers[asked.id]

    async def _tokens(self, request_id: str, came_s: float) -> AsyncIterator[str]:
        before_s = came_s
        for number in itertools.count():
            is_done = await self._answers[request_id].get()
            now_s = time.monotonic()
            self._metrics.note_token(now_s - before_s, is_first=number == 0)
            before_s = now_s
            yield WORD
            if is_done:
                self._metrics.note_end(now_s - came_s, number + 1)
                return

    @property
    def is_ready(self) -> bool:
        """Whether it has loaded."""
        return time.monotonic() >= self._ready_s > 0.0

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": self._served_as, "object": "model", "owned_by": "stand-in"}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)

    async def _sleep(self, _: web.Request) -> web.Response:
        await asyncio.sleep(self._sleep_s)
        self._is_asleep = True
        return web.Response()

    async def _wake_up(self, _: web.Request) -> web.Response:
        self._is_asleep = False
        return web.Response()

    async def _show_sleep(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self._is_asleep})

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), content_type="text/plain")


@dataclass(slots=True)
class _Answer:
    """The texts of one answer."""

    model: str
    request: EngineRequest
    is_chat: bool = field(kw_only=True)

    def complete(self, tokens: list[str]) -> dict[str, object]:
        text = "".join(tokens)
        choice: dict[str, object] = {"index": 0, "finish_reason": "length"}
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {
            **self._head(""),
            "choices": [choice],
            "usage": self._usage(len(tokens)),
        }

    def role(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": 0, "delta": delta, "finish_reason": None}])

    def token(self, text: str) -> bytes:
        choice: dict[str, object] = {"index": 0, "finish_reason": None}
        if self.is_chat:
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        return self._event([choice])

    def usage(self, tokens: int) -> bytes:
        event = {**self._head(".chunk"), "choices": [], "usage": self._usage(tokens)}
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _event(self, choices: list[dict[str, object]]) -> bytes:
        event = {**self._head(".chunk"), "choices": choices}
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _head(self, kind: str) -> dict[str, object]:
        name = f"chat.completion{kind}" if self.is_chat else "text_completion"
        return {"id": self.request.id, "object": name, "model": self.model}

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = self.request.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }


async def _stream(
    request: web.Request,
    answer: _Answer,
    tokens: AsyncIterator[str],
    *,
    with_usage: bool,
) -> web.StreamResponse:
    """Token by token. Raises ConnectionError where the client has left."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    count = 0
    async for each in tokens:
        # The role comes with the first token, as vLLM sends it.
        if answer.is_chat and not count:
            await response.write(answer.role())
        await response.write(answer.token(each))
        count += 1
    if with_usage:
        await response.write(answer.usage(count))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _error(status: HTTPStatus, message: str) -> web.Response:
    body = {"error": {"message": message, "code": int(status)}}
    return web.json_response(body, status=int(status))
