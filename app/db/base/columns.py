"""What the columns of the tables are made of."""

from typing import Any, TypeVar

from sqlalchemy import ARRAY, Column, Integer, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.types import TypeEngine

TIME = TIMESTAMP(timezone=True)
# JSON null and SQL null are one and the same here.
JSON = JSONB(none_as_null=True)
TEXTS = ARRAY(Text)

Value = TypeVar("Value")


def key(name: str, kind: type[Text] | type[Integer] = Text) -> Column[Any]:
    """A column of the primary key."""
    return Column(name, kind, primary_key=True)


def must(name: str, kind: TypeEngine[Value] | type[TypeEngine[Value]]) -> Column[Value]:
    """A column that is never null."""
    return Column(name, kind, nullable=False)
