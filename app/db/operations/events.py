"""The audit: append only."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import AnyRow, event
from app.store.store import AuditEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line with its number."""

    id: int
    event: AuditEvent


async def add(connection: AsyncConnection, noun: AuditEvent) -> int:
    """Append one line; returns its number."""
    inserted = await connection.execute(
        insert(event)
        .values(
            at=noun.at,
            actor=noun.actor,
            kind=noun.kind,
            subject=noun.subject,
            reason=noun.reason,
            plan_id=noun.plan_id,
            request_id=noun.request_id,
            before=noun.before,
            after=noun.after,
        )
        .returning(event.c.id)
    )
    return int(inserted.scalar_one())


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which lines are wanted; None = all."""

    kind: str | None = None
    subject: str | None = None
    actor: str | None = None
    plan_id: int | None = None
    since: datetime | None = None
    until: datetime | None = None


async def list_rows(
    connection: AsyncConnection,
    wanted: EventFilter,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> tuple[EventRow, ...]:
    """Lines newest first, with numbers below `before`; or, given `after`, oldest first from there on (to follow)."""
    statement = (
        select(event)
        .order_by(event.c.id.desc() if after is None else event.c.id)
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(event.c.id < before)
    if after is not None:
        statement = statement.where(event.c.id > after)
    for column in ("kind", "subject", "actor", "plan_id"):
        if (value := getattr(wanted, column)) is not None:
            statement = statement.where(event.c[column] == value)
    if wanted.since is not None:
        statement = statement.where(event.c.at >= wanted.since)
    if wanted.until is not None:
        statement = statement.where(event.c.at < wanted.until)
    return tuple(row_of(row) for row in await connection.execute(statement))


def row_of(row: AnyRow) -> EventRow:
    """A line from its columns."""
    return EventRow(
        id=row.id,
        event=AuditEvent(
            at=row.at,
            actor=row.actor,
            kind=row.kind,
            subject=row.subject,
            reason=row.reason,
            plan_id=row.plan_id,
            request_id=row.request_id,
            before=row.before,
            after=row.after,
        ),
    )
