"""Which refusals of the database are for what the rows say, so that the same rows are refused for ever."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from sqlalchemy.exc import StatementError

from app.base.errors import InvalidRequest

_OF_THE_DRIVER = (UnicodeEncodeError, OverflowError)
"""Raised before anything is sent: half a surrogate pair, and numbers that no type of PostgreSQL holds."""


@contextmanager
def refused_where_unkeepable() -> Iterator[None]:
    """Raise InvalidRequest where the block fails for the data's own sake; any other error as it is."""
    try:
        yield
    except (psycopg.Error, StatementError, *_OF_THE_DRIVER) as error:
        # SQLAlchemy wraps the errors of its own statements, but not those of COPY.
        cause = error.orig if isinstance(error, StatementError) else error
        if cause is None or not _is_of_the_data(cause):
            raise
        raise InvalidRequest(
            f"the database cannot store this: {str(cause).partition(chr(10))[0]}"
        ) from error


def _is_of_the_data(error: BaseException) -> bool:
    # The same error says that the partition of a day is missing, which no row is to blame for; it names no constraint.
    if isinstance(error, errors.CheckViolation):
        return error.diag.constraint_name is not None
    # Unique and foreign keys depend on what else is there, and may take the same rows later.
    of_the_data = (psycopg.DataError, errors.NotNullViolation, *_OF_THE_DRIVER)
    return isinstance(error, of_the_data)
