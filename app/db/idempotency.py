"""Answers to requests with an Idempotency-Key, so that a repeated request gets the same answer and does nothing."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import idempotency

KEPT = timedelta(hours=24)
ABANDONED = timedelta(minutes=2)
"""A request that runs longer than this was cut off; its key may be used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What tells one request from another."""

    key: str
    actor: str
    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The earlier request with the same key."""

    request_sha256: bytes
    status: int | None
    """None: it still runs."""
    body: bytes


async def claim(connection: AsyncConnection, key: Key, request_sha256: bytes, *, at: datetime) -> Kept | None:
    """None when the key is new and now taken by this request; else what was kept of the earlier one."""
    of_key = _of(key)
    is_over = (idempotency.c.created_at < at - KEPT) | (
        idempotency.c.status.is_(None) & (idempotency.c.created_at < at - ABANDONED)
    )
    await connection.execute(delete(idempotency).where(of_key, is_over))
    taken = await connection.execute(
        insert(idempotency)
        .values(key=key.key, actor=key.actor, endpoint=key.endpoint, request_sha256=request_sha256, created_at=at)
        .on_conflict_do_nothing()
    )
    if taken.rowcount:
        return None
    row = (await connection.execute(select(idempotency).where(of_key))).one()
    return Kept(request_sha256=bytes(row.request_sha256), status=row.status, body=bytes(row.body or b""))


async def keep(connection: AsyncConnection, key: Key, *, status: int, body: bytes) -> None:
    """Remember the answer of the request that claimed the key."""
    await connection.execute(update(idempotency).where(_of(key)).values(status=status, body=body))


async def release(connection: AsyncConnection, key: Key) -> None:
    """The request failed and did nothing: its key may be used again."""
    await connection.execute(delete(idempotency).where(_of(key)))


async def remove_old(connection: AsyncConnection, *, at: datetime) -> int:
    """Delete answers that are older than a day; returns how many."""
    return (await connection.execute(delete(idempotency).where(idempotency.c.created_at < at - KEPT))).rowcount


def _of(key: Key) -> ColumnElement[bool]:
    return (
        (idempotency.c.key == key.key) & (idempotency.c.actor == key.actor) & (idempotency.c.endpoint == key.endpoint)
    )
