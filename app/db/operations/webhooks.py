"""Webhooks, and the events that wait to be sent to them (a trigger on `event` puts them there)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import NotFound
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, event
from app.db.operations import events
from app.db.operations.events import EventRow
from app.store.store import AuditEvent

WAITING_LIMIT = 10_000
"""Events that wait for one webhook; the trigger drops the oldest beyond it (6_events_notify.sql has the number)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRow:
    """One webhook, without its secret."""

    name: str
    url: str
    kinds: tuple[str, ...]
    """Empty: all."""
    is_enabled: bool
    created_at: datetime
    waiting: int
    last_delivered_at: datetime | None
    last_error: str | None
    failed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event on its way to one webhook."""

    id: int
    webhook: str
    url: str
    secret: str
    tries: int
    """This one included."""
    event: EventRow


async def list_rows(
    connection: AsyncConnection, *, after: str = "", limit: int | None = None
) -> tuple[WebhookRow, ...]:
    """Webhooks by name."""
    statement = text(f"{_ROWS} WHERE w.name > :after ORDER BY w.name LIMIT :limit")
    return tuple(
        _row(row)
        for row in await connection.execute(statement, {"after": after, "limit": limit})
    )


async def get(connection: AsyncConnection, name: str) -> WebhookRow:
    """One webhook. Raises NotFound."""
    row = await one_row(
        connection,
        text(f"{_ROWS} WHERE w.name = :name"),
        {"name": name},
        missing=f"no webhook is called {name!r}",
    )
    return _row(row)


async def save(
    connection: AsyncConnection,
    name: str,
    values: Mapping[str, object],
    *,
    secret: str,
    at: datetime,
) -> None:
    """Add or replace a webhook; `secret` is a new one's. What waits for one that is disabled is dropped."""
    await connection.execute(
        text(_SAVE), {"name": name, "secret": secret, "at": at, **values}
    )
    # Otherwise a webhook that is enabled again would send events that are weeks old.
    if not values["is_enabled"]:
        await connection.execute(
            text("DELETE FROM webhook_delivery WHERE webhook = :name"), {"name": name}
        )


async def remove(connection: AsyncConnection, name: str) -> None:
    """Delete a webhook and what waits for it. Raises NotFound."""
    if (
        await connection.execute(
            text("DELETE FROM webhook WHERE name = :name"), {"name": name}
        )
    ).rowcount == 0:
        raise NotFound(f"no webhook is called {name!r}")


async def take_due(
    connection: AsyncConnection,
    at: datetime,
    *,
    each: int,
    tries_limit: int,
    next_at: Callable[[int, int], datetime],
) -> tuple[Delivery, ...]:
    """The oldest due deliveries, at most `each` per webhook, their next try already put off.

    Who is killed while sending leaves them to be tried again, under the same id. `next_at` gets id and tries.
    """
    found = (
        await connection.execute(
            text(_DUE), {"at": at, "each": each, "limit": tries_limit}
        )
    ).all()
    taken = tuple(_delivery(row) for row in found)
    # Put off before sending: a process killed meanwhile loses nothing, and a slow receiver is not tried twice at once.
    for delivery in taken:
        await connection.execute(
            text(
                "UPDATE webhook_delivery SET tries = :tries, next_at = :next_at WHERE id = :id"
            ),
            {
                "id": delivery.id,
                "tries": delivery.tries,
                "next_at": next_at(delivery.id, delivery.tries),
            },
        )
    return taken


async def note_delivered(
    connection: AsyncConnection, delivery: Delivery, at: datetime
) -> None:
    """It arrived: the webhook works."""
    await connection.execute(
        text(
            "UPDATE webhook SET last_delivered_at = :at, last_error = NULL, failed_at = NULL WHERE name = :name"
        ),
        {"at": at, "name": delivery.webhook},
    )
    await connection.execute(
        text("DELETE FROM webhook_delivery WHERE id = :id"), {"id": delivery.id}
    )


async def note_failed(
    connection: AsyncConnection, delivery: Delivery, error: str
) -> None:
    """It did not arrive this time."""
    await connection.execute(
        text("UPDATE webhook SET last_error = :error WHERE name = :name"),
        {"error": error, "name": delivery.webhook},
    )


async def give_up(
    connection: AsyncConnection, at: datetime, *, tries_limit: int
) -> None:
    """Drop what was tried often enough, and say so once for each webhook until it works again."""
    gone = await connection.execute(text(_GIVE_UP), {"at": at, "limit": tries_limit})
    for row in gone.all():
        marked = text(
            "UPDATE webhook SET failed_at = :at WHERE name = :name AND failed_at IS NULL RETURNING last_error"
        )
        first = (
            await connection.execute(marked, {"at": at, "name": row.webhook})
        ).one_or_none()
        # `failed_at` is the mark: it stays until a delivery succeeds, and so only the first failure is reported.
        if first is not None:
            reason = f"an event was dropped after {tries_limit} tries: {first.last_error or 'no answer'}"
            await events.add(
                connection, _trouble("WebhookFailed", row.webhook, reason, at)
            )


async def record_full(connection: AsyncConnection, at: datetime) -> None:
    """Say once when the queue is so full that the oldest are dropped; again only after half of them were gone."""
    for row in await list_rows(connection):
        # Half the limit, not the limit: a number that moves around it would be reported all the time.
        if row.waiting < WAITING_LIMIT // 2:
            ended = text(
                "UPDATE webhook SET full_at = NULL WHERE name = :name AND full_at IS NOT NULL"
            )
            await connection.execute(ended, {"name": row.name})
        if row.waiting < WAITING_LIMIT:
            continue
        marked = text(
            "UPDATE webhook SET full_at = :at WHERE name = :name AND full_at IS NULL"
        )
        if (await connection.execute(marked, {"at": at, "name": row.name})).rowcount:
            reason = f"{row.waiting} events wait for it; the oldest are dropped"
            await events.add(connection, _trouble("WebhookFull", row.name, reason, at))


def _trouble(kind: str, name: str, reason: str, at: datetime) -> AuditEvent:
    return AuditEvent(
        at=at, actor="controller", kind=kind, subject=f"webhook/{name}", reason=reason
    )


# A new secret would break every receiver's check: an existing webhook keeps its own.
_SAVE = """
INSERT INTO webhook (name, url, kinds, secret, is_enabled, created_at)
VALUES (:name, :url, :kinds, :secret, :is_enabled, :at)
ON CONFLICT (name) DO UPDATE SET url = excluded.url, kinds = excluded.kinds, is_enabled = excluded.is_enabled
"""

_ROWS = """
SELECT w.name, w.url, w.kinds, w.is_enabled, w.created_at, w.last_delivered_at, w.last_error, w.failed_at,
       (SELECT count(*) FROM webhook_delivery d WHERE d.webhook = w.name) AS waiting
FROM webhook w
"""

# SKIP LOCKED: the trigger may be dropping the oldest. LATERAL with its own limit: one receiver that is
# down for long must not fill the batch and keep the others waiting.
_DUE = f"""
SELECT d.id AS delivery_id, d.tries, w.name, w.url, w.secret, {", ".join(f"e.{column.name}" for column in event.c)}
FROM webhook w
CROSS JOIN LATERAL (
    SELECT * FROM webhook_delivery q WHERE q.webhook = w.name AND q.next_at <= :at AND q.tries < :limit
    ORDER BY q.next_at, q.id LIMIT :each FOR UPDATE SKIP LOCKED
) AS d
JOIN event e ON e.id = d.event_id
WHERE w.is_enabled
ORDER BY d.id
"""

# Only once the last try's time is over: until then its delivery may still be on its way.
_GIVE_UP = """
WITH gone AS (DELETE FROM webhook_delivery WHERE tries >= :limit AND next_at <= :at RETURNING webhook)
SELECT DISTINCT webhook FROM gone ORDER BY webhook
"""


def _row(row: AnyRow) -> WebhookRow:
    values = dict(row._mapping)
    return WebhookRow(**{**values, "kinds": tuple(values["kinds"])})


def _delivery(row: AnyRow) -> Delivery:
    return Delivery(
        id=row.delivery_id,
        webhook=row.name,
        url=row.url,
        secret=row.secret,
        tries=row.tries + 1,
        event=events.row_of(row),
    )
