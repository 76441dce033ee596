"""Transactions for callers outside `app.db`, who know neither SQLAlchemy nor its errors."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

from psycopg.errors import IdleInTransactionSessionTimeout, ReadOnlySqlTransaction
from sqlalchemy import text
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    TimeoutError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.base.errors import Conflict, InvalidRequest, Unavailable

Connection: TypeAlias = AsyncConnection
Engine: TypeAlias = AsyncEngine

TRANSIENT_ERRORS = (ReadOnlySqlTransaction, IdleInTransactionSessionTimeout)
"""A standby that is not promoted yet, and a server that ended a transaction of a process that was stopped meanwhile."""


@asynccontextmanager
async def transaction(engine: Engine) -> AsyncIterator[Connection]:
    """One transaction. Raises Unavailable, Conflict and InvalidRequest where the database refuses."""
    # Around the whole block: the commit itself, at its end, can be refused as well.
    with translated():
        async with engine.begin() as connection:
            yield connection


@contextmanager
def translated() -> Iterator[None]:
    """The database's errors as ours."""
    try:
        yield
    except IntegrityError as error:
        # Constraints of the schema decide between two writers at once; this is what the second one is told.
        raise Conflict(
            f"another change came first, or something still refers to it: {_primary(error)}"
        ) from error
    except DataError as error:
        raise InvalidRequest(
            f"the database cannot store this: {_primary(error)}"
        ) from error
    except (OperationalError, InterfaceError, TimeoutError) as error:
        raise Unavailable("the database does not answer; try again") from error
    except InternalError as error:
        # All others of this class are faults of ours.
        if not isinstance(error.orig, TRANSIENT_ERRORS):
            raise
        raise Unavailable(
            f"the database cannot do this now: {_primary(error)}; try again"
        ) from error


async def check_writable(connection: Connection) -> None:
    """Raises Unavailable where this session only reads, and gives the session up."""
    found = await connection.execute(text("SHOW transaction_read_only"))
    if found.scalar_one() == "on":
        # A standby answers every question, and only a write would tell: a probe must not take it for the primary.
        await connection.invalidate()
        raise Unavailable(
            "the database only reads; it is a standby that is not promoted"
        )


async def lock_object(connection: Connection, kind: str, name: str) -> None:
    """Let one writer at a time work on an object, which need not exist yet; until the transaction ends."""
    await connection.execute(
        # Two names may share a hash: they then wait for each other, which is slow at worst.
        text("SELECT pg_advisory_xact_lock(hashtextextended(:subject, 0))"),
        {"subject": f"{kind}/{name}"},
    )


async def check_deferred(connection: Connection) -> None:
    """Let the database refuse now what it would refuse at the commit, for a transaction that will have none."""
    await connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))


def _primary(error: IntegrityError | DataError | InternalError) -> str:
    """The database's own sentence, without the statement and its parameters."""
    return str(error.orig).splitlines()[0]
