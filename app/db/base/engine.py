"""Connections: the async engine, and how JSON goes in and out of PostgreSQL."""

import json
from collections.abc import Mapping
from typing import cast

from psycopg import AsyncConnection as DriverConnection
from psycopg.errors import ReadOnlySqlTransaction
from sqlalchemy import event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

# A statement that runs longer than this would hold a snapshot open for many ticks; reports and syncs stay far below.
STATEMENT_TIMEOUT_MS = 30_000
# Every transaction of ours is short: one that waits longer for a lock meets a stuck one, and an error says so.
LOCK_TIMEOUT_MS = 5_000
# A transaction that its client forgot would stop vacuum; every step of ours ends within seconds.
IDLE_IN_TRANSACTION_MS = 60_000

# SQLAlchemy's own 30 s are longer than agents wait for an answer; without a free connection they are to come again.
POOL_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5
"""A whole number, as libpq has it."""

# A host that lost its power or its network says no goodbye. Without these TCP would wait for hours: the client for an
# answer, and the server with the lead of a controller that is gone. Unix sockets ignore them. Where Linux has the last
# one, it goes by it alone, also for a connection that idles; the others say the same: 3 + 2 * 2 s. With 7 s another
# controller decides within the 10 s in which everything is to be back (docs/reliability.md).
KEEPALIVES: dict[str, int] = {
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 7_000,
}
SERVER_KEEPALIVES = {
    "tcp_keepalives_idle": 3,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 2,
    "tcp_user_timeout": 7_000,
}


def make_engine(
    url: str, *, pool_size: int = 10, application: str = "plimsoll"
) -> AsyncEngine:
    """An engine with time limits on statements and locks, in UTC. `url` is SQLAlchemy's or libpq's."""
    options: dict[str, int | str] = {
        "statement_timeout": STATEMENT_TIMEOUT_MS,
        "lock_timeout": LOCK_TIMEOUT_MS,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        "timezone": "UTC",
        **SERVER_KEEPALIVES,
    }
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        # The pool's size is a limit: the server's `max_connections` is shared by all processes.
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_S,
        # A connection that broke while it idled is replaced before it is handed out.
        pool_pre_ping=True,
        json_serializer=_to_json,
        connect_args={
            "options": as_options(options),
            "application_name": application,
            "connect_timeout": CONNECT_TIMEOUT_S,
            **KEEPALIVES,
        },
    )
    event.listen(engine.sync_engine, "handle_error", _leave_standby)
    return engine


def _leave_standby(context: ExceptionContext) -> None:
    """Give up the sessions of a database that only reads: kept since a failover, they would never write again."""
    if isinstance(context.original_exception, ReadOnlySqlTransaction):
        context.is_disconnect = True


def as_options(settings: Mapping[str, int | str]) -> str:
    """PostgreSQL's settings of a session, as libpq's `options` has them."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


async def driver_connection(
    connection: AsyncConnection,
) -> DriverConnection[tuple[object, ...]]:
    """The psycopg connection under a SQLAlchemy one, inside the same transaction; for COPY."""
    raw = await connection.get_raw_connection()
    return cast("DriverConnection[tuple[object, ...]]", raw.driver_connection)


def _to_json(value: object) -> str:
    """NaN and infinities are not JSON; PostgreSQL would refuse them with a less helpful message."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


async def recreate(server_url: str, name: str) -> None:
    """An empty database of that name; one that exists is dropped, also while others are connected to it."""
    engine = make_engine(server_url, pool_size=2, application="plimsoll-create")
    # Names of databases cannot be parameters of a statement.
    quoted = '"' + name.replace('"', '""') + '"'
    try:
        async with engine.connect() as raw:
            # CREATE and DROP DATABASE refuse to run inside a transaction.
            connection = await raw.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(
                text(f"DROP DATABASE IF EXISTS {quoted} WITH (FORCE)")
            )
            await connection.execute(text(f"CREATE DATABASE {quoted}"))
    finally:
        await engine.dispose()
