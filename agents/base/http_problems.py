"""RFC 9457 answers of the node's own HTTP servers."""

import re
from http import HTTPStatus

import msgspec
from aiohttp import web

RETRY_AFTER_S = 1


def problem(status: HTTPStatus, detail: str) -> web.Response:
    """An `application/problem+json` answer; with Retry-After where coming again makes sense."""
    headers = {"Content-Type": "application/problem+json"}
    # Both pass by themselves, when a replica becomes ready or another one takes over.
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    body = {
        # RFC 9457: with this type the title is the status's own phrase.
        "type": "about:blank",
        "title": status.phrase,
        "status": int(status),
        "detail": detail,
    }
    return web.Response(status=status, body=msgspec.json.encode(body), headers=headers)


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
