"""Answers that routes declare in addition to their own, so that the OpenAPI document leaves none out."""

from typing import Any

from pydantic import BaseModel

from app.api.http.errors import MEDIA_TYPE, TRANSIENT_STATUSES
from app.api.http.views import ProblemDetails

Responses = dict[int | str, dict[str, Any]]

MEANINGS = {
    400: "The body is not JSON",
    401: "No valid token",
    403: "The token does not allow it",
    404: "No such object",
    408: "The body arrived too slowly",
    409: "The state of the object does not allow this",
    412: "The object's ETag does not match If-Match",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    422: "A field or parameter is invalid",
    428: "If-Match is required",
    429: "Over a limit; Retry-After says when to try again",
    503: "The database or the solver is unavailable; Retry-After says when to try again",
}

RETRY_AFTER = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}


def problems(*statuses: int) -> Responses:
    """Documentation of these problems, and of those that every authenticated route may answer."""
    found = {401, 403, 422, 429, 503, *statuses}
    # Wherever a body may be too large it may be too slow.
    if 413 in found:
        found.add(408)
    return {status: _problem(status) for status in sorted(found)}


def _problem(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": MEANINGS[status],
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}
            }
        },
    }
    # Repeating any other refused request would be refused again.
    if status in TRANSIENT_STATUSES:
        answer["headers"] = RETRY_AFTER
    return answer


READ = problems(404)
PUBLIC: Responses = {422: _problem(422)}
"""For routes without a token."""
PUBLIC_LIMITED: Responses = {429: _problem(429)}
"""For those of them that count what an address asks (`app.api.http.limits`)."""

LIST = problems()
WRITE = problems(400, 404, 409, 412, 413, 415, 428)
DELETE = problems(404, 409, 412, 428)
ACT = problems(400, 404, 409, 413)


PROMETHEUS_TEXT: Responses = {
    200: {
        "description": "Prometheus text",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


def created(answer: type[BaseModel]) -> Responses:
    """The 201 in addition to the 200 of a replacement."""
    return {201: {"description": "Created", "model": answer}}
