"""What happens to every request: an id, limits on its body's size and time, and a line in the metrics."""

import asyncio
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.errors import problem_response
from app.api.http.parts import ApiParts

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})

BODY_WITHIN_S = 60.0
"""A body of the largest size then needs 70 kB/s. uvicorn itself waits for ever."""


class RequestMiddleware:
    """The outermost layer of ours."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_limit_bytes: int,
        body_within_s: float = BODY_WITHIN_S,
    ) -> None:
        """`body_within_s`: from the first look at the body to its end."""
        self._app = app
        self._limit = body_limit_bytes
        self._within_s = body_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # In the scope, where layers further in, handlers of errors and the audit find the same one.
        request_id = scope["plimsoll.request_id"] = _request_id(scope)
        watch = _Watch(scope)
        try:
            # Refused before a byte is read, where the client states the length.
            if _announced_bytes(scope) > self._limit:
                refusal = problem_response(
                    self._too_large(), path=scope["path"], request_id=request_id
                )
                await refusal(scope, receive, watch.sender(send, request_id))
            else:
                await self._app(
                    scope, self._limited(receive), watch.sender(send, request_id)
                )
        # Also after a fault: in-flight requests must not be counted for ever.
        finally:
            watch.done()

    def _limited(self, receive: Receive) -> Receive:
        """Bodies that do not announce their length are counted as they come, and no body may take for ever."""
        seen = 0
        ends_s: float | None = None
        is_complete = False

        async def limited() -> Message:
            nonlocal seen, ends_s, is_complete
            # Behind the body's end only the client's leaving is waited for, which may take as long as the answer.
            if is_complete:
                return await receive()
            if ends_s is None:
                ends_s = asyncio.get_running_loop().time() + self._within_s
            try:
                async with asyncio.timeout_at(ends_s):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            is_complete = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            # Raised while the body is read, so that no more than the limit is ever in memory.
            if seen > self._limit:
                raise self._too_large()
            return message

        return limited

    def _too_slow(self) -> HTTPException:
        return HTTPException(
            408,
            f"the body did not arrive within {self._within_s:g} s",
            # The rest of it would be taken for the next request.
            headers={"Connection": "close"},
        )

    def _too_large(self) -> HTTPException:
        return HTTPException(
            413,
            f"the body is larger than {self._limit} bytes (setting PLIMSOLL_REQUEST_LIMIT_BYTES)",
        )


class _Watch:
    """Measures one request."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        parts: ApiParts = scope["app"].state.parts
        self._metrics = parts.metrics
        self._began = time.perf_counter()
        # What is counted where no answer was begun.
        self._status = 500
        self._metrics.in_flight.inc()

    def sender(self, send: Send, request_id: str) -> Send:
        """`send` that notes the status and adds the request id."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        return noting

    def done(self) -> None:
        """Count the request under its route's template; paths that no route has share one label."""
        # A label per path would be a series per object, and per typo of anybody.
        route = getattr(self._scope.get("route"), "path", "none")
        method = (
            self._scope["method"] if self._scope["method"] in KNOWN_METHODS else "other"
        )
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(method, route, str(self._status)).inc()
        self._metrics.seconds.labels(method, route).observe(
            time.perf_counter() - self._began
        )


def _request_id(scope: Scope) -> str:
    """The caller's id where it is well-formed, else a new one."""
    # An arbitrary id could forge lines in logs.
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _announced_bytes(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    # `isdigit` alone takes digits of other scripts, of which `int` takes only some.
    return int(length) if length.isascii() and length.isdigit() else 0
