"""INSERT ... ON CONFLICT DO UPDATE that leaves an equal row alone."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Table, or_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection


async def upsert(
    connection: AsyncConnection,
    table: Table,
    keys: Mapping[str, object],
    values: Mapping[str, object],
    *,
    only_new: Mapping[str, object] | None = None,
) -> None:
    """Insert keys + values + only_new, or set `values` where the row exists.

    An equal row is not written again: its triggers would make every plan that is being made too old to push.
    """
    statement = insert(table).values(**keys, **values, **(only_new or {}))
    names: Sequence[str] = tuple(values)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(keys),
            set_={name: statement.excluded[name] for name in names},
            # `IS DISTINCT FROM`: a plain inequality is null, and so no change, where one of the two is null.
            where=or_(
                *(
                    table.c[name].is_distinct_from(statement.excluded[name])
                    for name in names
                )
            ),
        )
    )
