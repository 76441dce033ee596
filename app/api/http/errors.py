"""Errors as RFC 9457 problems. `PROBLEMS` is the only place where exceptions meet HTTP codes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from app.api.http.views import FieldProblem, ProblemDetails
from app.base.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unauthorised,
    Unavailable,
)
from app.manifests.parts import PATTERN_RULES
from app.solver.process import SolverUnavailable
from solvers.types.errors import InvalidInput, UnknownPolicy

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:plimsoll:problem:"
RETRY_AFTER_S = 1
MAX_FIELDS = 50
"""Wrong fields that an answer names: a body of 4 MiB may have 400,000, and people read only the first."""
QUEUE_RETRY_AFTER_S = 30
"""What waits in a queue takes minutes, not seconds."""


class MalformedBody(HTTPException):
    """The body is not JSON that the API accepts; raised while it is read, so it is an HTTPException.

    With a `pointer` the text is JSON but for one value, which is answered like any other wrong field.
    """

    def __init__(self, detail: str, pointer: str = "") -> None:
        # 422 where one value is wrong, as of any field; 400 where the text as a whole cannot be read.
        super().__init__(
            HTTPStatus.UNPROCESSABLE_ENTITY if pointer else HTTPStatus.BAD_REQUEST,
            detail,
        )
        self.pointer = pointer


class UnsupportedBody(HTTPException):
    """The body is not declared as JSON; raised before it is parsed."""

    def __init__(self, content_type: str | None) -> None:
        said = f"not {content_type!r}" if content_type else "which is missing"
        super().__init__(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"send the body with the header `Content-Type: application/json`, {said}",
        )


class UnsupportedEncoding(HTTPException):
    """The body is compressed; raised before it is parsed."""

    def __init__(self, encoding: str) -> None:
        super().__init__(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"send the body as it is, without the header `Content-Encoding: {encoding[:100]}`",
        )


class TooMany(Unavailable):
    """Over a limit; the message names the limit."""

    def __init__(
        self, detail: str, *, retry_after_s: float = QUEUE_RETRY_AFTER_S
    ) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class PreconditionRequired(PreconditionFailed):
    """The request would change an object without saying which state of it was seen."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """How one class of exceptions is answered."""

    status: int
    code: str
    title: str
    headers: Mapping[str, str] | None = None


TRANSIENT_STATUSES = frozenset({429, 503})
"""They pass by themselves, so that every such answer has Retry-After, whichever exception it stands for."""
RETRY = {"Retry-After": str(RETRY_AFTER_S)}
BEARER = {"WWW-Authenticate": "Bearer"}

# The first class that fits decides.
PROBLEMS: tuple[tuple[type[Exception], ProblemKind], ...] = (
    (InvalidRequest, ProblemKind(422, "invalid", "The request is invalid")),
    (InvalidInput, ProblemKind(422, "invalid", "The request is invalid")),
    (UnknownPolicy, ProblemKind(422, "invalid", "The request is invalid")),
    (RequestValidationError, ProblemKind(422, "invalid", "The request is invalid")),
    (NotFound, ProblemKind(404, "not-found", "There is no such object")),
    (
        Conflict,
        ProblemKind(409, "conflict", "The state of the object does not allow this"),
    ),
    (
        PreconditionRequired,
        ProblemKind(
            428, "precondition-required", "State which version of the object you saw"
        ),
    ),
    (
        PreconditionFailed,
        ProblemKind(
            412, "precondition-failed", "The object has changed since you read it"
        ),
    ),
    (Unauthorised, ProblemKind(401, "unauthorised", "A valid token is needed", BEARER)),
    (Forbidden, ProblemKind(403, "forbidden", "The token does not allow it")),
    (TooMany, ProblemKind(429, "too-many", "Over a limit")),
    (
        Unavailable,
        ProblemKind(503, "unavailable", "A required component is unavailable"),
    ),
    (
        SolverUnavailable,
        ProblemKind(503, "solver-unavailable", "The solver did not answer"),
    ),
    # The answer has no reader, but anybody can cut a connection, which must not look like a fault of ours.
    (
        ClientDisconnect,
        ProblemKind(
            400, "malformed", "The connection closed before the body was complete"
        ),
    ),
)

HTTP_CODES = {
    400: "malformed",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    413: "too-large",
    415: "unsupported-media-type",
    422: "invalid",
}

BARE_DETAILS = {
    404: "there is nothing at this path; see /docs or /openapi.json for the available ones",
    405: "this path does not support that method; see the header Allow",
}
"""For Starlette's own refusals, which say no more than their status."""


def install(app: FastAPI) -> None:
    """Answer every error of the app as a problem."""
    # Each class by itself: Starlette looks for handlers by the classes of the error, and knows no tuple.
    for error_class, _ in PROBLEMS:
        app.add_exception_handler(error_class, answer)
    app.add_exception_handler(HTTPException, answer)
    # Last resort: without it a fault of ours would be answered as plain text, without a request id.
    app.add_exception_handler(Exception, _answer_unexpected)


def problem_response(error: Exception, *, path: str, request_id: str) -> Response:
    """The problem that stands for an exception of the table, or for Starlette's own."""
    kind = _kind(error)
    problem = ProblemDetails(
        type=TYPE_PREFIX + kind.code,
        title=kind.title,
        status=kind.status,
        detail=_detail(error),
        instance=path,
        code=kind.code,
        request_id=request_id,
        errors=_fields(error),
    )
    return Response(
        # RFC 9457's members are optional: those that say nothing are left out.
        problem.model_dump_json(exclude_none=True),
        status_code=kind.status,
        media_type=MEDIA_TYPE,
        headers={**_headers(error, kind), "X-Request-ID": request_id},
    )


def refusal(error: Exception, scope: Scope, request_id: str) -> Response:
    """A problem; a person without a token who asked for a page is sent to the login page."""
    path: str = scope["path"]
    asks_for_page = any(
        name == b"accept" and b"text/html" in value for name, value in scope["headers"]
    )
    if (
        isinstance(error, Unauthorised)
        and asks_for_page
        and not path.startswith("/api/")
    ):
        return RedirectResponse(f"/login?{urlencode({'next': path})}", status_code=303)
    return problem_response(error, path=path, request_id=request_id)


def status_of(error: Exception) -> tuple[int, Mapping[str, str]]:
    """Status and headers for a page that says the same."""
    kind = _kind(error)
    return kind.status, _headers(error, kind)


async def answer(request: Request, error: Exception) -> Response:
    """The problem that stands for an exception which a route raised."""
    return problem_response(
        error, path=request.url.path, request_id=_request_id(request)
    )


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours: the log has the traceback, the caller the request id to ask for it."""
    log.error(
        "request failed",
        path=request.url.path,
        request_id=_request_id(request),
        exc_info=error,
    )
    return await answer(request, error)


def _headers(error: Exception, kind: ProblemKind) -> Mapping[str, str]:
    if isinstance(error, TooMany):
        # Rounded up: a request that came a moment too early would be refused again.
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    headers = kind.headers or {}
    return {**RETRY, **headers} if kind.status in TRANSIENT_STATUSES else headers


def _request_id(request: Request) -> str:
    return str(request.scope.get("plimsoll.request_id", ""))


def _kind(error: Exception) -> ProblemKind:
    for error_class, kind in PROBLEMS:
        if isinstance(error, error_class):
            return kind
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        return ProblemKind(
            status.value,
            HTTP_CODES.get(status.value, "http-error"),
            status.phrase,
            error.headers,
        )
    # Whatever is not in the table is our own fault, and never told to the caller in detail.
    return ProblemKind(500, "internal", "The control plane failed")


def _detail(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        entries = error.errors()
        said = [
            f"{_place(entry['loc'])}: {_message(entry)}"
            for entry in entries[:MAX_FIELDS]
        ]
        if len(entries) > MAX_FIELDS:
            said.append(f"and {len(entries) - MAX_FIELDS} more")
        return "; ".join(said)
    if isinstance(error, HTTPException):
        # Starlette fills in the phrase where no detail was given.
        is_bare = error.detail == HTTPStatus(error.status_code).phrase
        return (
            BARE_DETAILS.get(error.status_code, error.detail)
            if is_bare
            else error.detail
        )
    # The text of an unexpected error may hold secrets, such as a database's address.
    if _kind(error).status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return "an unexpected error; see the control plane's log under this request id"
    if isinstance(error, InvalidRequest) and error.may_force:
        return f"{error}; `?force=true` accepts it anyway"
    return str(error)


def _fields(error: Exception) -> list[FieldProblem]:
    if isinstance(error, RequestValidationError):
        return [
            _field(entry["loc"], _message(entry))
            for entry in error.errors()[:MAX_FIELDS]
        ]
    if isinstance(error, InvalidRequest) and error.field:
        # All wrong fields at once: a form marks each, and it need not be sent once per mistake.
        found = ((error.field, error.detail), *error.others)
        return [
            FieldProblem(
                pointer=pointer_of(field),
                detail=detail,
                may_force=error.may_force or None,
            )
            for field, detail in found
        ]
    if isinstance(error, InvalidInput) and error.field:
        return [FieldProblem(pointer=pointer_of(error.field), detail=error.problem)]
    if isinstance(error, MalformedBody) and error.pointer:
        return [FieldProblem(pointer=error.pointer, detail=str(error.detail))]
    return []


def _field(loc: Sequence[str | int], message: str) -> FieldProblem:
    where, *path = loc
    if where == "body":
        return FieldProblem(
            pointer="".join(f"/{_escape(str(part))}" for part in path), detail=message
        )
    # Query, path and header parameters have names, where a body has places.
    return FieldProblem(parameter=str(path[0]) if path else str(where), detail=message)


def _message(entry: Mapping[str, Any]) -> str:
    """What is wrong with a field, without regular expressions and names of Python's classes."""
    # People read "lower-case letters, digits and dashes", not the expression that says the same.
    rule = PATTERN_RULES.get(entry.get("ctx", {}).get("pattern", ""))
    return (
        f"must be {rule}" if rule else str(entry["msg"]).removeprefix("Value error, ")
    )


def _place(loc: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in loc[1:]) or str(loc[0])


def pointer_of(field: str) -> str:
    """A JSON pointer (RFC 6901) from a path like `gpus[0].power_w`."""
    # The group keeps indices among the parts; what lies between two marks is empty, and left out.
    parts = re.split(r"\.|\[(\d+)\]\.?", field)
    return "".join(f"/{_escape(part)}" for part in parts if part)


def _escape(part: str) -> str:
    # In this order: the other way round the tilde of "~1" would be escaped again.
    return part.replace("~", "~0").replace("/", "~1")
