"""Backups: what is written into the database before it is copied, and what must be so before and after a restore."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.base.errors import Conflict
from app.db.base.leader import LEADER_LOCK
from app.db.operations import events
from app.db.operations.incarnations import begin_anew
from app.store.store import AuditEvent
from solvers.types.state import Json

MANIFEST = ("alembic_version", "cluster")
"""Tables whose only row, in the copy itself, says what it is: revision of the schema, incarnation, time, program."""

EMPTY = """
SET LOCAL lock_timeout = '10s';
DROP SCHEMA IF EXISTS report CASCADE;
DROP SCHEMA public CASCADE;
CREATE SCHEMA public;
"""
"""SQL that removes everything; it runs in the transaction that restores, so that a failure leaves all as it was."""


async def note_backup(engine: AsyncEngine, version: str) -> None:
    """Write down that a backup begins, made by the program of that version: the copy will say so of itself."""
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE cluster SET backed_up_at = now(), backed_up_by = :version"),
            {"version": version},
        )


async def note_made(engine: AsyncEngine, file: str) -> None:
    """Tell the audit of a backup that is complete."""
    async with engine.begin() as connection:
        await _audit(connection, "BackupMade", f"all of it is in {file}")


@asynccontextmanager
async def nobody_connected(engine: AsyncEngine) -> AsyncIterator[None]:
    """Keeps every controller from leading meanwhile. Raises Conflict where any part of a control plane is connected."""
    async with engine.connect() as opened:
        # No transaction stays open for as long as a restore takes; the lock is the session's.
        connection = await opened.execution_options(isolation_level="AUTOCOMMIT")
        lock = {"key": LEADER_LOCK}
        got = await connection.execute(text("SELECT pg_try_advisory_lock(:key)"), lock)
        # The session of a controller that leads is among those who are connected.
        found = await connection.execute(text(_CONNECTED))
        names = ", ".join(found.scalars())
        if names or not got.scalar_one():
            raise Conflict(
                f"a control plane is using this database ({names or 'a controller leads'}); "
                "stop every `plimsoll serve`, `controller` and `up` first; agents may keep running"
            )
        try:
            yield
        finally:
            await connection.execute(text("SELECT pg_advisory_unlock(:key)"), lock)


async def load_generation(engine: AsyncEngine) -> int | None:
    """The newest generation that the database gave away; None: it has no table."""
    async with engine.connect() as connection:
        tables = await connection.execute(
            text(
                "SELECT count(*), count(*) FILTER (WHERE tablename = 'cluster') FROM pg_tables "
                "WHERE schemaname = 'public'"
            )
        )
        every, cluster = tables.one()
        if not cluster:
            return 0 if every else None
        found = await connection.execute(text("SELECT target_generation FROM cluster"))
        return int(found.scalar_one_or_none() or 0)


async def finish(engine: AsyncEngine, *, held: int, reason: str, after: Json) -> int:
    """Make a restored database a new incarnation; returns the generation above which its next plan is.

    `held`: the newest generation of the database that was replaced.
    """
    async with engine.begin() as connection:
        await connection.execute(text(_GRANT))
        generation = await begin_anew(connection, held=held)
        await _audit(connection, "ControlPlaneRestored", reason, after)
    return generation


async def _audit(
    connection: AsyncConnection, kind: str, reason: str, after: Json = None
) -> None:
    # The database's own time: the command may run on any machine.
    now = (await connection.execute(text("SELECT now()"))).scalar_one()
    await events.add(
        connection,
        AuditEvent(
            at=now,
            actor="local",
            kind=kind,
            subject="cluster",
            reason=reason,
            after=after,
        ),
    )


_CONNECTED = """
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'plimsoll%'
  AND application_name <> current_setting('application_name')
ORDER BY 1
"""

# As in the baseline: a dump's own grants would fail where the server has no such role.
_GRANT = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'plimsoll_reader') THEN
        GRANT USAGE ON SCHEMA report TO plimsoll_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA report TO plimsoll_reader;
        ALTER DEFAULT PRIVILEGES IN SCHEMA report GRANT SELECT ON TABLES TO plimsoll_reader;
    END IF;
END $$
"""
