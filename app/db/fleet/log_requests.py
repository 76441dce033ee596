"""Logs that somebody waits for: asked by one process of the API, handed to the node by whichever it syncs with, and
answered through whichever it reaches."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import text

from agents.base.protocol import LogAnswer, LogRequest
from app.db.base.rows import all_rows
from app.db.base.transaction import Connection

LOG_CHANNEL = "plimsoll_log"
"""Notified when a log is asked for, or answered, or no longer waited for."""
MAX_ASKED = 8
"""Handed to one node at once, the oldest first."""


class AskedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A request that its node has not answered."""

    node: str
    request: LogRequest


async def ask(connection: Connection, node: str, request: LogRequest) -> None:
    """Ask a node for a log."""
    # What a process left that ended while it waited.
    await connection.execute(text(_FORGET_OLD))
    body = msgspec.json.encode(request)
    await connection.execute(text(_ASK), {"id": request.id, "node": node, "body": body})
    await _announce(connection)


async def list_asked(connection: Connection) -> Sequence[AskedLog]:
    """All requests that are not answered, the oldest first."""
    rows = await all_rows(connection, _ASKED)
    return [
        AskedLog(node=row.node, request=msgspec.json.decode(row.body, type=LogRequest))
        for row in rows
    ]


async def answer(
    connection: Connection, node: str, request_id: str, answered: LogAnswer
) -> None:
    """Keep a node's answer; nothing where no caller waits any more, or it was answered before."""
    # The node is compared, so that no agent answers for another one's replicas.
    await connection.execute(
        text(_ANSWER),
        {
            "id": request_id,
            "node": node,
            "answer": msgspec.json.encode(answered),
        },
    )
    await _announce(connection)


async def read(connection: Connection, request_id: str) -> LogAnswer | None:
    """The answer; None: there is none yet."""
    found = await connection.execute(text(_READ), {"id": request_id})
    row = found.one_or_none()
    return None if row is None else msgspec.json.decode(row.answer, type=LogAnswer)


async def forget(connection: Connection, request_id: str) -> None:
    """Forget a log that no caller waits for any more."""
    await connection.execute(text(_FORGET), {"id": request_id})
    await _announce(connection)


async def _announce(connection: Connection) -> None:
    await connection.execute(
        text("SELECT pg_notify(:channel, '')"), {"channel": LOG_CHANNEL}
    )


_FORGET_OLD = "DELETE FROM log_request WHERE created_at < now() - interval '1 minute'"

_ASK = "INSERT INTO log_request (id, node, body) VALUES (:id, :node, :body)"

_ASKED = (
    "SELECT node, body FROM log_request WHERE answer IS NULL ORDER BY created_at, id"
)

_ANSWER = "UPDATE log_request SET answer = :answer WHERE id = :id AND node = :node AND answer IS NULL"

_READ = "SELECT answer FROM log_request WHERE id = :id AND answer IS NOT NULL"

_FORGET = "DELETE FROM log_request WHERE id = :id"
