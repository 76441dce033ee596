"""Answers of nodes that were asked for a log."""

from typing import Annotated

import msgspec
from fastapi import Path, Request

from agents.base.protocol import LogAnswer
from app.api.fleet.observations import decode
from app.api.http.answers import problems
from app.api.http.auth import Agent
from app.api.http.body import read_body, resource_router, wire_body
from app.db.fleet import log_requests
from app.manifests.parts import Name

router = resource_router("nodes", prefix="/nodes")

MAX_ANSWER_BYTES = 524_288
"""A log of control characters alone, of which JSON makes six bytes each, has 393 kB."""
_decoder = msgspec.json.Decoder(LogAnswer)


@router.post(
    "/{name}/logs/{request_id}",
    status_code=204,
    openapi_extra=wire_body(LogAnswer),
    responses=problems(400, 413),
)
async def answer_log(
    context: Agent,
    name: Name,
    request_id: Annotated[str, Path(max_length=64, pattern="^[0-9a-f]+$")],
    request: Request,
) -> None:
    """Send the log that a sync's reply asked for. Nothing is kept where no caller waits for it any more."""
    context.require_node(name)
    answered = decode(await read_body(request, MAX_ANSWER_BYTES), _decoder)
    async with context.transaction() as connection:
        await log_requests.answer(connection, name, request_id, answered)
