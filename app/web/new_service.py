"""What the page *New service* reads: YAML as people write it for `plimsoll apply`, with the line of every field."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api.http.parts import Context
from app.base.yaml_lines import FieldPath, line_of_alias, read_documents
from app.web.pages import SECURITY, require_person

MAX_TEXT = 65_536
MAX_DEEP = 32


async def read_yaml(request: Request) -> Response:
    """The text's documents as JSON, and what is no YAML in it; what is in them the API judges when they are applied."""
    context: Context = request.scope["plimsoll.context"]
    require_person(context)
    body = await request.body()
    if len(body) > MAX_TEXT:
        return _answer(
            [],
            [
                _complaint(
                    1, f"longer than {MAX_TEXT // 1024} KiB; use `plimsoll apply`"
                )
            ],
        )
    async with context.parts.yaml_turn.taken(context.caller.root):
        # In a thread: PyYAML takes up to a second, in which the API answers others.
        read = await asyncio.to_thread(parse, body.decode("utf-8", "replace"))
    return _answer(*read)


def parse(text: str) -> tuple[list[object], list[object]]:
    """Documents, each with the lines of its fields by JSON pointer; and complaints, each with its line."""
    # A few nested aliases unfold to gigabytes ("billion laughs").
    if (line := line_of_alias(text)) is not None:
        return [], [
            _complaint(
                line,
                "anchors and aliases are not supported here; write the values out, or use `plimsoll apply`",
            )
        ]
    complaints: list[object] = []

    def complain(line: int, field: str, problem: str) -> None:
        complaints.append(_complaint(line, f"{field}: {problem}" if field else problem))

    documents: list[object] = []
    for document in read_documents(text, complain):
        # The JSON encoder recurses.
        if max(map(len, document.lines)) > MAX_DEEP:
            complain(1, "", "nested too deeply")
        else:
            documents.append(
                {"value": document.value, "lines": _by_pointer(document.lines)}
            )
    return documents, complaints


def _by_pointer(lines: Mapping[FieldPath, int]) -> dict[str, int]:
    return {
        "".join(f"/{_escaped(part)}" for part in path): line
        for path, line in lines.items()
    }


def _escaped(part: str | int) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


def _complaint(line: int, problem: str) -> object:
    return {"line": line, "problem": problem}


def _answer(documents: list[object], complaints: list[object]) -> Response:
    try:
        body = msgspec.json.encode({"documents": documents, "complaints": complaints})
    except (TypeError, ValueError):  # A key that is a list, bytes by `!!binary`, …
        complaint = _complaint(1, "has values that JSON does not support")
        body = msgspec.json.encode({"documents": [], "complaints": [complaint]})
    return Response(
        body, status_code=HTTPStatus.OK, media_type="application/json", headers=SECURITY
    )
