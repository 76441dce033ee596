"""Rows by statement: the only one, or NotFound; all of a query; and the deletion of one by its name."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Executable, Table, delete, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict, NotFound
from app.db.base.tables import AnyRow


async def one_row(
    connection: AsyncConnection,
    statement: Executable,
    values: Mapping[str, object] | None = None,
    *,
    missing: str,
) -> AnyRow:
    """The only row that the statement finds. Raises NotFound with the message `missing`."""
    row = (await connection.execute(statement, values)).one_or_none()
    if row is None:
        raise NotFound(missing)
    return row


async def all_rows(
    connection: AsyncConnection, sql: str, **values: object
) -> Sequence[AnyRow]:
    """Every row that a query finds, in memory at once; `values` are its parameters."""
    return (await connection.execute(text(sql), values)).all()


async def delete_named(
    connection: AsyncConnection, table: Table, name: str, *, missing: str, in_use: str
) -> None:
    """Delete the row of that name. Raises NotFound with the message `missing`.

    Raises Conflict with the message `in_use` where other rows refer to it.
    """
    try:
        # A savepoint: the caller's transaction can go on after a deletion that was refused.
        async with connection.begin_nested():
            deleted = await connection.execute(
                delete(table).where(table.c.name == name)
            )
    except IntegrityError as error:
        raise Conflict(in_use) from error
    if deleted.rowcount == 0:
        raise NotFound(missing)
