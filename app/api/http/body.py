"""Bodies of requests: JSON as strict as the contract's, and text that PostgreSQL can keep; who takes gzip in return."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from http import HTTPStatus
from typing import Any, ClassVar, TypeAlias

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from app.api.http.auth import who_may
from app.api.http.errors import MalformedBody, UnsupportedBody, UnsupportedEncoding
from solvers.types.documents.strict_json import parse_json
from solvers.types.errors import InvalidInput

MAX_DEPTH = 32
"""Objects and lists within each other; the deepest document that a route takes has about ten."""

READ_ASIDE_BYTES = 65_536
"""Larger bodies are parsed in a thread, and the place of a NaN is not looked for in them."""

SMALL_BODY_BYTES = 65_536
"""The limit of routes that ask for no more. Each unknown field of a body is an error, which is made while everybody
else waits: 64 KiB have 6,000 of them, 4 MiB have 400,000."""
MANIFEST_BYTES = 524_288
"""A policy with 16 groups of 100 projects and 64 labels each has 424 kB, a task with 64 arguments of 4,000 letters has
256 kB."""

MAX_MISTAKES = 5_000
"""In a body; to describe this number takes 15 ms."""

_Place: TypeAlias = "tuple[_Place, str | int] | None"
"""Where a value stands: its parent's place and its key there, linked so that no path is written for most of them."""


class StrictRequest(Request):
    """A request whose JSON has no NaN, no infinity, no repeated key, and no text that cannot be stored."""

    def __init__(
        self,
        request: Request,
        body_limit: int | None,
        body_type: TypeAdapter[object],
    ) -> None:
        """`body_limit`: of this route; None: only the one of the whole API. `body_type`: what the route makes of it."""
        super().__init__(request.scope, request.receive)
        self._limit = body_limit
        self._type = body_type

    async def body(self) -> bytes:
        """The body. Raises HTTPException where it is longer than the route takes."""
        if self._limit is None:
            return await super().body()
        # Kept under the name that Starlette uses, as below.
        if not hasattr(self, "_body"):
            self._body = await read_body(self, self._limit)
        return self._body

    async def json(self) -> Any:
        """The parsed body; a long one is of the route's type already, which FastAPI takes as it is.

        Raises MalformedBody.
        """
        # Kept under the name that Starlette uses, so that its own code finds the strictly parsed body.
        if not hasattr(self, "_json"):
            body = await self.body()
            # Megabytes take a tenth of a second, in which no one else would be answered.
            self._json = (
                await asyncio.to_thread(_read_long, body, self._type)
                if len(body) > READ_ASIDE_BYTES
                else read_json(body)
            )
        return self._json


class StrictRoute(APIRoute):
    """A route that reads JSON strictly, and only that of callers who may call it."""

    body_limit: ClassVar[int | None] = SMALL_BODY_BYTES
    """None: only the limit of the whole API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with our kind of request."""
        handler = super().get_route_handler()
        body_field = self.body_field
        annotation = None if body_field is None else body_field.field_info.annotation
        body_type: TypeAdapter[object] = TypeAdapter(annotation or object)
        rules = who_may(self.dependant)

        async def strict(request: Request) -> Response:
            # FastAPI asks dependencies after it has read and parsed the body: a refused caller's must cost nothing.
            for rule in rules:
                rule.check(request)
            request = StrictRequest(request, self.body_limit, body_type)
            # An empty body needs no type: many clients send none with a POST that takes nothing.
            if body_field is not None and await request.body():
                require_plain(request.headers.get("Content-Encoding"))
                require_json(request.headers.get("Content-Type"))
            return await handler(request)

        return strict


class ManifestRoute(StrictRoute):
    """A route that takes a manifest."""

    body_limit = MANIFEST_BYTES


class LargeBodyRoute(StrictRoute):
    """A route that takes tables of thousands of rows, whole scenarios, or many manifests at once."""

    body_limit = None


def resource_router(
    tag: str, *, prefix: str = "", route_class: type[StrictRoute] = StrictRoute
) -> APIRouter:
    """A router whose routes read JSON strictly. `route_class` says how long their bodies may be."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=route_class)


def wire_body(kind: type) -> dict[str, Any]:
    """What OpenAPI says of a body that msgspec reads: one of `app.api.application`'s wire schemas."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(request: Request, limit: int) -> bytes:
    """The body. Raises HTTPException (413) as soon as it is longer than the limit."""
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > limit:
            raise HTTPException(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body is larger than {limit} bytes, the limit of this path",
            )
        parts.append(part)
    return b"".join(parts)


def _read_long(body: bytes, body_type: TypeAdapter[object]) -> object:
    """What the body stands for; its JSON where it has mistakes. Raises MalformedBody, also for very many of them."""
    document = read_json(body)
    try:
        return body_type.validate_python(document)
    except ValidationError as error:
        count = error.error_count()
        # FastAPI would describe each of them while everybody waits: a second for a body of the largest size.
        if count > MAX_MISTAKES:
            raise MalformedBody(
                f"{count} fields are invalid or unknown; check that the body belongs to this path"
            ) from None
        return document


def require_plain(encoding: str | None) -> None:
    """Raise UnsupportedEncoding for a compressed body, which would be called malformed."""
    if encoding and encoding.strip().lower() != "identity":
        raise UnsupportedEncoding(encoding)


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
    _refuse_depth(body)
    # Most bodies are not walked at all.
    if _DOUBTFUL.search(body):
        _refuse_unstorable(document)
    return document


def pointer_to_constant(body: bytes) -> str | None:
    """The place of the first NaN or infinity of a JSON text that is otherwise well-formed and not long."""
    # Python's parser and the walk take a second and hundreds of megabytes for 4 MiB of small numbers.
    if len(body) > READ_ASIDE_BYTES:
        return None
    marker = object()
    try:
        # Python's own parser takes NaN, so that it can be found where the strict one refused.
        document = json.loads(body, parse_constant=lambda _name: marker)
    except (ValueError, RecursionError):
        return None
    return next(
        (_pointer(place) for place, value in _leaves(document) if value is marker), None
    )


# NUL; half a surrogate pair, which whole pairs have, too; numbers that may be beyond 1.8e308.
_DOUBTFUL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])|[eE]\+?[0-9]{3}|[0-9]{200}")

_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _refuse_depth(body: bytes) -> None:
    """Raise MalformedBody for well-formed JSON of more than MAX_DEPTH levels."""
    brackets = _TEXT.sub(b"", body).translate(None, _NO_BRACKETS)
    # Each round takes the innermost level away, for a tenth of what a walk through the parsed document costs.
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise MalformedBody(f"objects and lists are nested more than {MAX_DEPTH} deep")


def _refuse_unstorable(document: object) -> None:
    """Raise MalformedBody for numbers beyond floating point, and for text with NUL or half a surrogate pair."""
    for place, value in _leaves(document):
        if isinstance(value, float) and abs(value) == float("inf"):
            pointer = _pointer(place)
            raise MalformedBody(f"{pointer}: the number is too large", pointer)
        if isinstance(value, str) and ("\x00" in value or not _is_encodable(value)):
            pointer = _pointer(place)
            raise MalformedBody(
                f"{pointer}: the text has a NUL or half a surrogate pair", pointer
            )


def _leaves(document: object) -> Iterator[tuple[_Place, object]]:
    """Every scalar and every key of a document, in its order, with its place."""
    # A stack of its own: a generator per level would hand each leaf up through all levels.
    waiting: list[tuple[_Place, object]] = [(None, document)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            yield from ((place, key) for key in value)
            waiting.extend(
                ((place, key), entry) for key, entry in reversed(value.items())
            )
        elif isinstance(value, list):
            waiting.extend(
                ((place, index), value[index]) for index in reversed(range(len(value)))
            )
        else:
            yield place, value


def _pointer(place: _Place) -> str:
    """The JSON pointer of a place; `/` for the document itself."""
    parts: list[str] = []
    while place is not None:
        place, key = place
        parts.append(f"/{key}")
    # A key may hold half a surrogate pair, and no answer could be written that quotes it.
    return "".join(reversed(parts)).encode(errors="backslashreplace").decode() or "/"


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def accepts_gzip(request: Request) -> bool:
    """Whether the client takes compressed answers."""
    return "gzip" in request.headers.get("accept-encoding", "")
