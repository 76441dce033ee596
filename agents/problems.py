"""RFC 9457 answers of the node's own HTTP servers."""

from http import HTTPStatus

import msgspec
from aiohttp import web

RETRY_AFTER_S = 1


def problem(status: HTTPStatus, detail: str) -> web.Response:
    """An `application/problem+json` answer; with Retry-After where coming again makes sense."""
    headers = {"Content-Type": "application/problem+json"}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    body = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return web.Response(status=status, body=msgspec.json.encode(body), headers=headers)
