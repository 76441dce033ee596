"""Idempotency-Key: a POST that is repeated with the same key gets the first answer and is not done again.

The claim, the write and the answer are one transaction: a fault gives the key back, and a second request with the key
waits for the first one's end.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Header, Request
from pydantic import BaseModel
from starlette.responses import Response

from app.api.http.parts import Context
from app.base.errors import Conflict, InvalidRequest
from app.db.base.transaction import Connection
from app.db.operations import idempotency

Answer = TypeVar("Answer", bound=BaseModel)

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="Any unique text; the answer is kept for 24 hours and given again to the same request",
    ),
]


async def once(
    context: Context,
    request: Request,
    key: str | None,
    work: Callable[[Connection], Awaitable[Answer]],
    *,
    status: int = 200,
    kept: Callable[[Answer], Answer] = lambda answer: answer,
) -> Response:
    """Do the work, or give the answer that was `kept` when it was done under this key.

    Raises InvalidRequest when the key came with another body, and whatever the work raises.
    """
    async with context.transaction() as connection:
        claim = None if key is None else await _claim(context, request, key)
        # The row's unique key makes a second request with the same key wait here until the first one ends.
        if claim is not None:
            earlier = await idempotency.claim(connection, claim, at=context.now())
            if earlier is not None:
                return _replayed(earlier, claim)
        answer = await work(connection)
        if claim is not None:
            await idempotency.answer(
                connection,
                claim,
                status=status,
                # What is kept may differ from what is sent: a secret is shown once and stored nowhere.
                body=kept(answer).model_dump_json().encode(),
            )
    return Response(
        answer.model_dump_json(), status_code=status, media_type="application/json"
    )


async def is_repeated(
    context: Context, request: Request, key: str | None, connection: Connection
) -> bool:
    """Whether the request was done under this key before, for checks ahead of the work."""
    if key is None:
        return False
    claim = await _claim(context, request, key)
    return await idempotency.is_answered(connection, claim)


async def _claim(context: Context, request: Request, key: str) -> idempotency.Claim:
    return idempotency.Claim(
        key=key,
        # Of all tokens of a family: a request is repeated with the one that replaced the first one's.
        actor=context.caller.root,
        # A key holds per caller and path: two clients may number their requests alike.
        endpoint=f"{request.method} {request.url.path}",
        # The hash is enough to know whether the body is the same, and keeps nothing of it.
        request_sha256=hashlib.sha256(await request.body()).digest(),
    )


def _replayed(earlier: idempotency.Earlier, claim: idempotency.Claim) -> Response:
    # The stored answer belongs to another body: the caller would take it for the answer to this one.
    if bytes(earlier.request_sha256) != claim.request_sha256:
        raise InvalidRequest(
            "this Idempotency-Key was already used with another body; use a new key"
        )
    if earlier.status is None or earlier.body is None:
        raise Conflict(
            "the first request with this Idempotency-Key is still running; repeat it later"
        )
    return Response(
        bytes(earlier.body),
        status_code=earlier.status,
        media_type="application/json",
        headers={"Idempotency-Replayed": "true"},
    )
