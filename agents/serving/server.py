"""A replica's HTTP server.

    GET  /v2                        who serves           GET  /v2/health/live     200 unless the engine has failed
    GET  /v2/models/{name}          what it takes        GET  /v2/health/ready    200 with the status, or 503
    POST /v2/models/{name}/infer    one request          GET  /v2/models/{name}/ready
    ...  /v2/models/{name}/versions/1 and what follows: the same, for clients that insist on a version
    GET, PUT /batch                 largest batch and delay, both changeable while requests come
    PUT, DELETE /drain              take nothing more; take requests again
    PUT  /offload, /resume          the device's memory to the host and back; answered when it is done
    GET  /status                    the status, in any state
    GET  /metrics                   for Prometheus

What is below /v2 is the Open Inference Protocol's, the rest is for the node's agent: listen where only that can come.
Errors are RFC 9457 problems. Who is answered 503 or 504 was not run.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta
from prometheus_client import CONTENT_TYPE_LATEST

from agents.base.version import agent_version
from agents.serving.batching import InferAnswer
from agents.serving.engines.errors import (
    BadRequest,
    DeadlinePassed,
    EngineFailed,
    NotTaken,
    ServingError,
    WrongState,
)
from agents.serving.engines.tensors import TensorType
from agents.serving.http_problems import (
    DEADLINE,
    HttpHandler,
    parse_deadline_ms,
    problem,
    refusals_as_problems,
)
from agents.serving.metrics import Outcome
from agents.serving.replica import ServedReplica, Status
from agents.serving.request_bodies import is_compressed, read_body
from agents.serving.wire import (
    JSON_LENGTH_HEADER,
    VERSION,
    InferRequest,
    decode_request,
    encode_answer,
)

MIB = 1024 * 1024
MAX_BODY = 64 * MIB
"""As the router's."""
MAX_HELD = 256 * MIB
"""Bodies of all open requests together; who sends no length, or compresses, is counted with the largest body."""
BODY_TIMEOUT_S = 30.0
MAX_DELAY_MS = 10_000.0

_STATUS: dict[type[ServingError], tuple[HTTPStatus, Outcome]] = {
    BadRequest: (HTTPStatus.BAD_REQUEST, "bad"),
    NotTaken: (HTTPStatus.SERVICE_UNAVAILABLE, "not_taken"),
    DeadlinePassed: (HTTPStatus.GATEWAY_TIMEOUT, "late"),
    WrongState: (HTTPStatus.CONFLICT, "bad"),
    EngineFailed: (HTTPStatus.INTERNAL_SERVER_ERROR, "failed"),
}


class BatchChangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a batch change; what is not named stays."""

    batch: Annotated[int, Meta(ge=1)] | None = None
    delay_ms: Annotated[float, Meta(ge=0.0, le=MAX_DELAY_MS)] | None = None


class BatchAnswer(msgspec.Struct):
    """The limits in force. Batches with a number above `batches_begun` keep to them."""

    batch: int
    delay_ms: float
    batch_limit: int
    batches_begun: int


class WireKind(msgspec.Struct):
    """One tensor in the metadata; -1 = any length."""

    name: str
    datatype: str
    shape: list[int]


def make_app(
    replica: ServedReplica, *, largest_held: int = MAX_HELD
) -> web.Application:
    """The HTTP server of a replica; run it with `web.AppRunner`. `largest_held`: bytes of all open requests."""
    server = _Server(replica, largest_held)
    app = web.Application(
        client_max_size=MAX_BODY,
        middlewares=[refusals_as_problems, _as_problems],
    )
    app.router.add_get("/v2", server.about)
    app.router.add_get("/v2/", server.about)
    app.router.add_get("/v2/health/live", server.live)
    app.router.add_get("/v2/health/ready", server.ready)
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        app.router.add_get(path, server.describe)
        app.router.add_get(f"{path}/ready", server.ready_by_name)
        app.router.add_post(f"{path}/infer", server.infer)
    app.router.add_get("/batch", server.get_batch)
    app.router.add_put("/batch", server.put_batch)
    app.router.add_put("/drain", server.drain)
    app.router.add_delete("/drain", server.undrain)
    app.router.add_put("/offload", server.offload)
    app.router.add_put("/resume", server.resume)
    app.router.add_get("/status", server.status)
    app.router.add_get("/metrics", server.metrics)
    return app


@web.middleware
async def _as_problems(
    request: web.Request, handler: HttpHandler
) -> web.StreamResponse:
    """Every refusal of ours as a problem, by its kind."""
    try:
        return await handler(request)
    except ServingError as error:
        return _problem_of(error)


class _Server:
    """The handlers."""

    def __init__(self, replica: ServedReplica, largest_held: int) -> None:
        self._replica = replica
        self._largest_held = largest_held
        self._held = 0

    async def about(self, _: web.Request) -> web.Response:
        return _json(
            {
                "name": "plimsoll-worker",
                "version": agent_version(),
                "extensions": ["binary_tensor_data"],
            }
        )

    async def live(self, _: web.Request) -> web.Response:
        if self._replica.state == "failed":
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the engine has failed; the worker must be restarted",
            )
        return _json({"live": True})

    async def ready_by_name(self, request: web.Request) -> web.Response:
        self._check_name(request)
        answer = await self.ready(request)
        if answer.status != HTTPStatus.OK:
            return answer
        # Callers of the service ask here, for whom the status is not.
        return _json({"name": self._replica.settings.service, "ready": True})

    async def ready(self, _: web.Request) -> web.Response:
        status = self._replica.status()
        if status.state != "ready":
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the worker of {status.service} is {status.state}",
            )
        return _json(status)

    async def describe(self, request: web.Request) -> web.Response:
        self._check_name(request)
        signature = self._replica.signature
        return _json(
            {
                "name": self._replica.settings.service,
                "versions": [VERSION],
                "platform": self._replica.platform,
                "inputs": list(map(_wire_kind, signature.inputs)),
                "outputs": list(map(_wire_kind, signature.outputs)),
            }
        )

    async def infer(self, request: web.Request) -> web.Response:
        loop = asyncio.get_running_loop()
        came_s = loop.time()
        # Counted as failed until something else is known, so that every exit is counted.
        outcome: Outcome = "failed"
        try:
            self._check_name(request)
            with self._room_for(request):
                answer = await self._infer(request, came_s)
            outcome = "ok"
            return answer
        except ServingError as error:
            outcome = _kind_of(error)[1]
            raise
        except web.HTTPException:
            outcome = "bad"
            raise
        finally:
            self._replica.metrics.answered(outcome, loop.time() - came_s)

    async def _infer(self, request: web.Request, came_s: float) -> web.Response:
        deadline_s = came_s + _deadline_ms(request) / 1000.0
        self._replica.check_taking()  # Before the body is read: who is overloaded must not read on.
        asked = decode_request(
            await _body(request), request.headers.get(JSON_LENGTH_HEADER)
        )
        answer = await self._replica.answer(
            asked.inputs,
            came_s=came_s,
            deadline_s=deadline_s,
            # aiohttp drops the transport when the client hangs up; its request then needs no run.
            is_gone=lambda: request.transport is None,
        )
        return _encoded(self._replica.settings.service, asked, answer)

    @contextmanager
    def _room_for(self, request: web.Request) -> Iterator[None]:
        """Hold as many bytes as the request has, from before they are read until it is answered. Raises NotTaken."""
        length = (
            MAX_BODY
            if request.content_length is None or is_compressed(request)
            else min(request.content_length, MAX_BODY)
        )
        # Counted by what is announced, before a byte is read: the bodies themselves would fill the memory.
        if self._held + length > self._largest_held:
            self._replica.metrics.dropped("queue_full")
            raise NotTaken(
                f"open requests already hold {self._held / MIB:.1f} MiB",
                reason="queue_full",
            )
        self._held += length
        try:
            yield
        finally:
            self._held -= length

    async def get_batch(self, _: web.Request) -> web.Response:
        return _json(_batch_answer(self._replica.status()))

    async def put_batch(self, request: web.Request) -> web.Response:
        try:
            change = msgspec.json.decode(await _body(request), type=BatchChangeRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadRequest(
                f'not a batch change like {{"batch": 8, "delay_ms": 2}}: {error}'
            ) from error
        return _json(
            _batch_answer(
                self._replica.change_limits(
                    batch=change.batch, delay_ms=change.delay_ms
                )
            )
        )

    async def drain(self, _: web.Request) -> web.Response:
        return _json(self._replica.drain(), HTTPStatus.ACCEPTED)

    async def undrain(self, _: web.Request) -> web.Response:
        return _json(self._replica.undrain())

    async def offload(self, _: web.Request) -> web.Response:
        return _json(await self._replica.offload())

    async def resume(self, _: web.Request) -> web.Response:
        return _json(await self._replica.resume())

    async def status(self, _: web.Request) -> web.Response:
        return _json(self._replica.status())

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._replica.metrics.text(),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    def _check_name(self, request: web.Request) -> None:
        name = request.match_info["name"]
        mine = self._replica.settings.service
        if name != mine:
            raise web.HTTPNotFound(text=f"this worker serves {mine}, not {name}")
        version = request.match_info.get("version", VERSION)
        if version != VERSION:
            raise web.HTTPNotFound(
                text=f"{mine} has no version {version}; it has version {VERSION} alone"
            )


def _kind_of(error: ServingError) -> tuple[HTTPStatus, Outcome]:
    # By the nearest class, so that a subclass may have an answer of its own.
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def _problem_of(error: ServingError) -> web.Response:
    return problem(_kind_of(error)[0], str(error))


def _deadline_ms(request: web.Request) -> float:
    """Milliseconds that the request has; infinite without the header."""
    text = request.headers.get(DEADLINE)
    try:
        return math.inf if text is None else parse_deadline_ms(text)
    except ValueError as error:
        raise BadRequest(str(error)) from error


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await read_body(request, MAX_BODY)
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(
            text=f"the body was incomplete after {BODY_TIMEOUT_S:g} s"
        ) from error


def _batch_answer(status: Status) -> BatchAnswer:
    return BatchAnswer(
        batch=status.batch,
        delay_ms=status.delay_ms,
        batch_limit=status.batch_limit,
        batches_begun=status.batches_begun,
    )


def _wire_kind(kind: TensorType) -> WireKind:
    return WireKind(name=kind.name, datatype=kind.datatype, shape=[-1, *kind.row_shape])


def _encoded(service: str, asked: InferRequest, answer: InferAnswer) -> web.Response:
    body, json_length = encode_answer(
        service,
        asked,
        answer.outputs,
        {"batch": answer.batch_rows, "batch_number": answer.batch_number},
    )
    if json_length is None:
        return web.Response(body=body, content_type="application/json")
    return web.Response(
        body=body,
        content_type="application/octet-stream",
        headers={JSON_LENGTH_HEADER: str(json_length)},
    )


def _json(body: object, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )
