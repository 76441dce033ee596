"""A fake model server on the CPU: Open Inference Protocol v2, greedy batches, execution times as told.

It answers each request with the sum of every input, so that a caller can tell that it got its own answer. The batch
size changes while it runs: `PUT /v2/models/{name}/batch` with `{"batch": 8}`.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from typing import Annotated, TypeAlias

import msgspec
from aiohttp import web

from agents.base.clock import Clock
from agents.base.http_problems import problem

QUEUE_LIMIT = 1024


class FakeTensor(msgspec.Struct):
    """One input or output of the protocol; data in row-major order."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class FakeInferRequest(msgspec.Struct):
    """The parts of a v2 request that the fake reads."""

    inputs: Annotated[list[FakeTensor], msgspec.Meta(min_length=1)]
    id: str = ""


class InferResponse(msgspec.Struct):
    """A v2 answer; `model_name` is the protocol's word."""

    model_name: str
    id: str
    outputs: list[FakeTensor]


class FakeBatchChange(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a batch change."""

    batch: Annotated[int, msgspec.Meta(ge=1, le=4096)]


class Stopped(Exception):
    """The worker ended before the request was answered."""


Pending: TypeAlias = tuple[FakeInferRequest, "asyncio.Future[InferResponse]"]


class FakeWorker:
    """One replica: a queue, a batch that runs, and HTTP around it."""

    def __init__(
        self,
        name: str,
        *,
        batch: int,
        execution_s: Callable[[int], float],
        clock: Clock,
    ) -> None:
        """`execution_s`: time of a batch of that many requests, in seconds of the clock."""
        self.name = name
        self.batch = batch
        self.batches: Counter[int] = Counter()
        """How many batches of each size ran."""
        self.busy_s = 0.0
        """Seconds of the clock in which a batch ran."""
        self._execution_s = execution_s
        self._clock = clock
        self._waiting: deque[Pending] = deque()
        # An event instead of a queue, since a batch takes as many requests as wait, all at once.
        self._arrived = asyncio.Event()

    def make_app(self) -> web.Application:
        """The HTTP server; its batches run as long as it does."""
        app = web.Application()
        app.router.add_post("/v2/models/{name}/infer", self._infer)
        app.router.add_put("/v2/models/{name}/batch", self._set_batch)
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/{name}/ready"):
            app.router.add_get(path, self._ready)
        app.cleanup_ctx.append(self._batching)
        return app

    async def _infer(self, request: web.Request) -> web.Response:
        if (unknown := self._unknown(request)) is not None:
            return unknown
        try:
            asked = msgspec.json.decode(await request.read(), type=FakeInferRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return problem(
                HTTPStatus.BAD_REQUEST, f"not a v2 inference request: {error}"
            )
        # Bounded as a real server's queue is, so that overload shows as refusals and not as memory.
        if len(self._waiting) >= QUEUE_LIMIT:
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{QUEUE_LIMIT} requests wait already"
            )
        answered: asyncio.Future[InferResponse] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiting.append((asked, answered))
        self._arrived.set()
        try:
            return _json(await answered)
        except Stopped as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    async def _set_batch(self, request: web.Request) -> web.Response:
        if (unknown := self._unknown(request)) is not None:
            return unknown
        try:
            self.batch = msgspec.json.decode(
                await request.read(), type=FakeBatchChange
            ).batch
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))
        return _json(FakeBatchChange(batch=self.batch))

    async def _ready(self, request: web.Request) -> web.Response:
        return self._unknown(request) or web.Response()

    def _unknown(self, request: web.Request) -> web.Response | None:
        name = request.match_info.get("name", self.name)
        return (
            None
            if name == self.name
            else problem(
                HTTPStatus.NOT_FOUND, f"this worker serves {self.name}, not {name}"
            )
        )

    async def _batching(self, _: web.Application) -> AsyncIterator[None]:
        running = asyncio.create_task(self._run_batches())
        yield
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        # Whoever waits is told at once, and does not run into its own timeout.
        self._turn_away(self._waiting)

    async def _run_batches(self) -> None:
        while True:
            await self._arrived.wait()
            taken = [
                self._waiting.popleft()
                # Read for each batch, so that a change takes effect with the next one.
                for _ in range(min(self.batch, len(self._waiting)))
            ]
            if not self._waiting:
                self._arrived.clear()
            if not taken:
                continue
            execution_s = self._execution_s(len(taken))
            try:
                await self._clock.sleep(execution_s)
            except asyncio.CancelledError:
                self._turn_away(taken)
                raise
            self.batches[len(taken)] += 1
            # The time that was asked for: how much longer the event loop sleeps is not the worker's execution.
            self.busy_s += execution_s
            for asked, answered in taken:
                if not answered.done():
                    answered.set_result(self._answer(asked))

    def _turn_away(self, requests: Iterable[Pending]) -> None:
        for _, answered in requests:
            if not answered.done():
                answered.set_exception(Stopped(f"worker {self.name} has stopped"))

    def _answer(self, asked: FakeInferRequest) -> InferResponse:
        outputs = [
            FakeTensor(
                name=each.name, shape=[1], datatype="FP32", data=[sum(each.data)]
            )
            for each in asked.inputs
        ]
        return InferResponse(model_name=self.name, id=asked.id, outputs=outputs)


def _json(body: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
