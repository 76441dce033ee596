"""Answers to requests with an Idempotency-Key, so that a repeated request is not done twice."""

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import idempotency


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who asks for what under which key."""

    key: str
    actor: str
    endpoint: str
    """Method and path."""
    request_sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What became of the request that had this key first."""

    request_sha256: bytes
    status: int | None
    """None: it is still running."""
    body: bytes | None


async def claim(
    connection: AsyncConnection, wanted: Claim, *, at: datetime
) -> Earlier | None:
    """Take the key; None: it is ours now. In one transaction with the write itself a rollback gives it back."""
    # The insert itself decides between two equal requests at once: the second waits for the first one's transaction.
    taken = await connection.execute(
        insert(idempotency)
        .values(**asdict(wanted), created_at=at)
        .on_conflict_do_nothing()
        .returning(idempotency.c.key)
    )
    if taken.one_or_none() is not None:
        return None
    row = (await connection.execute(select(idempotency).where(*_is(wanted)))).one()
    return Earlier(request_sha256=row.request_sha256, status=row.status, body=row.body)


async def is_answered(connection: AsyncConnection, wanted: Claim) -> bool:
    """Whether there is an answer under the key; of another body's too, which `claim` refuses."""
    found = await connection.execute(select(idempotency.c.key).where(*_is(wanted)))
    return found.one_or_none() is not None


async def answer(
    connection: AsyncConnection, wanted: Claim, *, status: int, body: bytes
) -> None:
    """Keep the answer for those who ask again."""
    await connection.execute(
        update(idempotency).where(*_is(wanted)).values(status=status, body=body)
    )


def _is(wanted: Claim) -> tuple[ColumnElement[bool], ...]:
    return (
        idempotency.c.key == wanted.key,
        idempotency.c.actor == wanted.actor,
        idempotency.c.endpoint == wanted.endpoint,
    )
