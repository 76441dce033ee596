"""Bodies of requests: JSON as strict as the contract's, and text that PostgreSQL can keep; who takes gzip in return."""

import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from app.api.http.errors import MalformedBody, UnsupportedBody
from solvers.types.errors import InvalidInput
from solvers.types.strict_json import parse_json


class StrictRequest(Request):
    """A request whose JSON has no NaN, no infinity, no repeated key, and no text that cannot be stored."""

    async def json(self) -> Any:
        """The parsed body. Raises MalformedBody."""
        # Kept under the name that Starlette uses, so that its own code finds the strictly parsed body.
        if not hasattr(self, "_json"):
            self._json = read_json(await self.body())
        return self._json


class StrictRoute(APIRoute):
    """A route that reads JSON strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with our kind of request."""
        handler = super().get_route_handler()
        takes_json = self.body_field is not None

        async def strict(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            # An empty body needs no type: many clients send none with a POST that takes nothing.
            if takes_json and await request.body():
                require_json(request.headers.get("Content-Type"))
            return await handler(request)

        return strict


def resource_router(tag: str, *, prefix: str = "") -> APIRouter:
    """A router whose routes read JSON strictly."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=StrictRoute)


def require_json(content_type: str | None) -> None:
    """Raise UnsupportedBody unless a Content-Type is `application/json` or another `+json`."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    # A form that another site posts has none of these types: a second defence against forged requests.
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise UnsupportedBody(content_type)


def read_json(body: bytes) -> object:
    """The parsed JSON. Raises MalformedBody, which names the place where it can."""
    try:
        document = parse_json(body)
    except InvalidInput as error:
        # The parser says only that the text is no JSON; the place of a NaN is what the caller has to know.
        pointer = pointer_to_constant(body)
        if pointer is not None:
            raise MalformedBody(
                f"{pointer}: NaN and infinities are not JSON numbers", pointer
            ) from error
        raise MalformedBody(str(error)) from error
    refuse_unstorable(body, document)
    return document


def refuse_unstorable(body: bytes, document: object) -> None:
    """Raise MalformedBody for numbers beyond floating point, and for text with NUL or half a surrogate pair."""
    # Only escapes can make such text, and only exponents such numbers: most bodies are not walked at all.
    for pointer, value in (
        _leaves(document, "") if b"\\u" in body or b"e" in body or b"E" in body else ()
    ):
        if isinstance(value, float) and abs(value) == float("inf"):
            raise MalformedBody(f"{pointer}: the number is too large", pointer)
        if isinstance(value, str) and ("\x00" in value or not _is_encodable(value)):
            raise MalformedBody(
                f"{pointer}: the text has a NUL or half a surrogate pair", pointer
            )


def pointer_to_constant(body: bytes) -> str | None:
    """The place of the first NaN or infinity of a JSON text that is otherwise well-formed."""
    marker = object()
    try:
        # Python's own parser takes NaN, so that it can be found where the strict one refused.
        document = json.loads(body, parse_constant=lambda _name: marker)
    except (ValueError, RecursionError):
        return None
    return next(
        (pointer for pointer, value in _leaves(document, "") if value is marker), None
    )


def _leaves(value: object, pointer: str) -> Iterator[tuple[str, object]]:
    """Every scalar and every key of a document with its JSON pointer."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield pointer or "/", key
            yield from _leaves(entry, f"{pointer}/{key}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{pointer}/{index}")
    else:
        yield pointer, value


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def accepts_gzip(request: Request) -> bool:
    """Whether the client takes compressed answers."""
    return "gzip" in request.headers.get("accept-encoding", "")
