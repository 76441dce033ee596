"""Notifications from PostgreSQL on a connection of their own, which comes back by itself."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import Engine, create_engine, func, make_url, pool, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.engine import (
    CONNECT_TIMEOUT_S,
    KEEPALIVES,
    SERVER_KEEPALIVES,
    as_options,
)
from app.db.base.transaction import TRANSIENT_ERRORS

RECONNECT = "reconnected"
"""Yielded after every (re)connection: what happened meanwhile was not heard, so look at everything again."""

STILL_HERE = "still here"
"""Yielded where a beat is asked for: what was committed until now was heard."""

RETRY_S = 1.0

WAKE_CHANNEL = "plimsoll_wake"
"""Notified with the reason when the loop should look."""


def conninfo(url: str) -> str:
    """libpq's form of a SQLAlchemy URL."""
    return (
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    )


_WHOSE_SESSION = text("SELECT pg_backend_pid()")
_POOLER = (
    "the database is behind a pooler that gives each transaction another session, but LISTEN and the leader's lock "
    "belong to a session: set `pool_mode = session` in PgBouncer, or name PostgreSQL itself in PLIMSOLL_DATABASE_URL"
)


_OPTIONS = (
    "the pooler before the database refuses the settings that sessions begin with: set `ignore_startup_parameters = "
    "options` in PgBouncer, or name PostgreSQL itself in PLIMSOLL_DATABASE_URL"
)


def check_sessions(url: str) -> str | None:
    """None where each connection has a session of its own, with settings of ours; else what is wrong and what to do."""
    try:
        if _are_shared(url):
            return _POOLER
        engine = _plain_engine(url, options=as_options(SERVER_KEEPALIVES))
        with engine.connect():
            return None
    except DBAPIError as error:
        if "unsupported startup parameter" in str(error.orig):
            return _OPTIONS
        # PgBouncer's mode that knows no transactions at all refuses the first BEGIN.
        if "statement pooling" in str(error.orig):
            return _POOLER
        raise


def _are_shared(url: str) -> bool:
    """Whether a pooler gives each transaction whichever session is free."""
    engine = _plain_engine(url)
    with engine.connect() as first, engine.connect() as second:
        first.execution_options(isolation_level="AUTOCOMMIT")
        own = first.execute(_WHOSE_SESSION).scalar_one()
        # A transaction stays open on the second connection, so that a pooler cannot use that session for the first.
        others = second.execute(_WHOSE_SESSION).scalar_one()
        # Asked of the first only where its session is free: a pooler of one session would let it wait for ever.
        is_shared = others == own or first.execute(_WHOSE_SESSION).scalar_one() != own
        return bool(is_shared)


def _plain_engine(url: str, **options: str) -> Engine:
    """Asked once: a pool would only keep connections open."""
    arguments = {"connect_timeout": CONNECT_TIMEOUT_S, **options}
    return create_engine(url, poolclass=pool.NullPool, connect_args=arguments)


async def wake(connection: AsyncConnection, reason: str) -> None:
    """Let the loop look as soon as the transaction is committed."""
    await connection.execute(select(func.pg_notify(WAKE_CHANNEL, reason)))


class Listener:
    """Hears one channel for ever."""

    def __init__(
        self,
        url: str,
        channel: str,
        *,
        retry_s: float = RETRY_S,
        beat_s: float | None = None,
    ) -> None:
        """`beat_s`: seconds after which the connection is tried where nothing else comes; None: never."""
        # Without the server's half the session of a machine that vanished lives for up to two hours, and once its
        # buffers are full PostgreSQL keeps every notification for it until it ends.
        options = as_options(SERVER_KEEPALIVES)
        self._conninfo = make_conninfo(conninfo(url), options=options, **KEEPALIVES)
        self._channel = channel
        self._retry_s = retry_s
        self._beat_s = beat_s

    async def listen(self) -> AsyncIterator[str]:
        """The payload of each notification, RECONNECT first and after every lost connection, STILL_HERE with each beat.

        Ends only when its task is cancelled. Not through a pooler in transaction mode (`check_sessions`): it drops
        LISTEN.
        """
        while True:
            # Closed with the caller, so that no connection outlives a caller that stopped listening.
            async with aclosing(self._until_lost()) as payloads:
                async for payload in payloads:
                    yield payload

    async def _until_lost(self) -> AsyncGenerator[str]:
        """RECONNECT, then the payloads that one connection brings; waits a little once it is lost."""
        try:
            # Not from the pool: a pooled connection goes to somebody else after a transaction.
            connection = await psycopg.AsyncConnection.connect(
                self._conninfo,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="plimsoll-listen",
            )
            async with connection:
                await connection.execute(
                    sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
                )
                # After LISTEN: a change between a look and LISTEN would be missed.
                yield RECONNECT
                async for payload in self._heard(connection):
                    yield payload
        # A standby takes connections before it is promoted, but no LISTEN.
        except (psycopg.OperationalError, *TRANSIENT_ERRORS):
            await asyncio.sleep(self._retry_s)

    async def _heard(self, connection: psycopg.AsyncConnection) -> AsyncGenerator[str]:
        """What one connection brings, until it is lost."""
        while True:
            async for notice in connection.notifies(timeout=self._beat_s):
                yield notice.payload
            # A connection that died without a word fails here, within TCP's patience.
            await connection.execute("SELECT 1")
            # What was committed before comes before the beat that says so.
            async for notice in connection.notifies(timeout=0.0):
                yield notice.payload
            yield STILL_HERE


@asynccontextmanager
async def noted_wakes(url: str) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Whether anybody has woken the loop since it was asked last: for a loop whose clock jumps.

    What was committed before the question is in its answer, so that one seed gives one result.
    """
    heard: list[psycopg.Notify] = []
    async with await psycopg.AsyncConnection.connect(
        conninfo(url), autocommit=True, application_name="plimsoll-listen"
    ) as connection:
        connection.add_notify_handler(heard.append)
        await connection.execute(
            sql.SQL("LISTEN {}").format(sql.Identifier(WAKE_CHANNEL))
        )

        async def are_there() -> bool:
            # PostgreSQL sends notifications before it is ready for the next statement: the second answer comes after
            # those of everything that was committed before the first one was asked for.
            await connection.execute("SELECT 1")
            await connection.execute("SELECT 1")
            is_woken = bool(heard)
            heard.clear()
            return is_woken

        yield are_there
