"""What the columns of the tables are made of."""

from collections.abc import Iterator
from typing import Any, TypeVar

from sqlalchemy import ARRAY, Column, Integer, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.types import TypeEngine

TIME = TIMESTAMP(timezone=True)
# JSON null and SQL null are one and the same here.
JSON = JSONB(none_as_null=True)
# Lists of names are arrays: they are read and written as one, and PostgreSQL can still search in them.
TEXTS = ARRAY(Text)

Value = TypeVar("Value")


def key(name: str, kind: type[Text] | type[Integer] = Text) -> Column[Any]:
    """A column of the primary key."""
    return Column(name, kind, primary_key=True)


def must(name: str, kind: TypeEngine[Value] | type[TypeEngine[Value]]) -> Column[Value]:
    """A column that is never null."""
    return Column(name, kind, nullable=False)


def must_all(
    kind: TypeEngine[Value] | type[TypeEngine[Value]], *names: str
) -> Iterator[Column[Value]]:
    """Columns of one type that are never null."""
    return (must(name, kind) for name in names)


def may_all(
    kind: TypeEngine[Value] | type[TypeEngine[Value]], *names: str
) -> Iterator[Column[Value]]:
    """Columns of one type that may be null."""
    return (Column(name, kind) for name in names)
