"""Errors of the node's own HTTP servers: RFC 9457 problems that clients of the Open Inference Protocol read, too."""

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from aiohttp import web

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
COMES_AGAIN = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE)
"""Both pass by themselves, when a replica becomes ready or another one takes over."""

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def problem(status: HTTPStatus, detail: str) -> web.Response:
    """An `application/problem+json` answer; with Retry-After where coming again makes sense."""
    headers = {"Content-Type": PROBLEM_TYPE}
    if status in COMES_AGAIN:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return web.Response(
        status=status,
        body=problem_body(status, detail),
        headers=headers,
    )


def problem_body(status: HTTPStatus, detail: str) -> bytes:
    """The JSON of a problem."""
    return msgspec.json.encode(
        {
            # RFC 9457: with this type the title is the status's own phrase.
            "type": "about:blank",
            "title": status.phrase,
            "status": int(status),
            "detail": detail,
            # What the Open Inference Protocol asks for, and all that its clients show.
            "error": detail,
        }
    )


@web.middleware
async def refusals_as_problems(
    request: web.Request, handler: HttpHandler
) -> web.StreamResponse:
    """What aiohttp refuses by itself (no such path, a body that is too large) is answered with a problem, too."""
    try:
        return await handler(request)
    except web.RequestPayloadError:
        encoding = request.headers.get("Content-Encoding", "none")
        answer = problem(
            HTTPStatus.BAD_REQUEST,
            f"the body cannot be read: it does not match its Content-Encoding ({encoding[:40]})",
        )
        # What follows on the connection cannot be told from the rest of the body.
        answer.force_close()
        return answer
    except web.HTTPException as error:
        # Redirections are exceptions of aiohttp, too, and no problems.
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        reason = (error.text or error.reason).removeprefix(f"{error.status}: ")
        answer = problem(
            HTTPStatus(error.status), f"{request.method} {request.path}: {reason}"
        )
        # A 405 must say which methods there are, a 415 which encodings (RFC 9110).
        for name in ("Allow", "Accept-Encoding"):
            if name in error.headers:
                answer.headers[name] = error.headers[name]
        return answer


DEADLINE = "Plimsoll-Deadline-Ms"
"""Milliseconds that are left for the answer, counted from when the request comes; passed on with what is left then."""
_NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{0,6})?")


def parse_deadline_ms(text: str) -> float:
    """Milliseconds left; may be 0 or below. Raises ValueError on what is no plain number."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(
            f"{DEADLINE} is {text[:40]!r}; it must be the milliseconds left, like 250"
        )
    return float(text)
