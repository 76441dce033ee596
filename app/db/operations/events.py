"""The audit: append only."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow, event
from app.store.event_limits import LimitedEvents
from app.store.store import AuditEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line with its number."""

    id: int
    event: AuditEvent


async def add(connection: AsyncConnection, noun: AuditEvent) -> int:
    """Append one line; returns its number."""
    values = {name: getattr(noun, name) for name in _FIELDS}
    inserted = await connection.execute(
        insert(event).values(values).returning(event.c.id)
    )
    return int(inserted.scalar_one())


async def add_limited(
    connection: AsyncConnection, lines: Iterable[AuditEvent], limited: LimitedEvents
) -> None:
    """Append those of a node's lines that it may still cause in this hour."""
    for line in limited.passing(lines):
        await add(connection, line)


# The table's columns have the names of the event's fields.
_FIELDS = tuple(field.name for field in fields(AuditEvent))


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
    # Pages follow the number, not the time: lines of one transaction have the same time.
    order = event.c.id.desc() if after is None else event.c.id
    statement = select(event).where(*_conditions(wanted)).order_by(order).limit(limit)
    if before is not None:
        statement = statement.where(event.c.id < before)
    if after is not None:
        statement = statement.where(event.c.id > after)
    return tuple(row_of(row) for row in await connection.execute(statement))


async def was_noted(connection: AsyncConnection, kind: str, subject: str) -> bool:
    """Whether the audit has such a line."""
    wanted = EventFilter(kind=kind, subject=subject)
    return bool(await list_rows(connection, wanted, limit=1))


async def newest_actors(
    connection: AsyncConnection, subjects: Sequence[str], kinds: Sequence[str]
) -> dict[str, str]:
    """Who has last done one of these things to each subject; without those to which it was never done."""
    rows = await all_rows(
        connection, _NEWEST_ACTORS, subjects=list(subjects), kinds=list(kinds)
    )
    return {row.subject: row.actor for row in rows}


_NEWEST_ACTORS = """
SELECT DISTINCT ON (subject) subject, actor FROM event
WHERE subject = ANY(CAST(:subjects AS text[])) AND kind = ANY(CAST(:kinds AS text[]))
ORDER BY subject, id DESC
"""


def _conditions(wanted: EventFilter) -> Iterator[ColumnElement[bool]]:
    for column in ("kind", "subject", "actor", "plan_id"):
        if (value := getattr(wanted, column)) is not None:
            yield event.c[column] == value
    if wanted.since is not None:
        yield event.c.at >= wanted.since
    if wanted.until is not None:
        yield event.c.at < wanted.until


def row_of(row: AnyRow) -> EventRow:
    """A line from its columns."""
    # Picked by name: a delivery's row has more columns than the event's.
    values = {name: row._mapping[name] for name in _FIELDS}
    return EventRow(id=row.id, event=AuditEvent(**values))
