"""GPUs that an operator acquits of the critical errors that they told, until their agent reports them healthy."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import NotFound
from app.db.base.tables import gpu
from app.db.fleet import nodes


async def acquit(
    connection: AsyncConnection,
    name: str,
    indices: Collection[int] | None,
    *,
    at: datetime,
) -> tuple[int, ...]:
    """Have the node's agent forget the critical errors of these GPUs, or of all (None); those that are not healthy.

    Raises NotFound.
    """
    present = [each.index for each in (await nodes.get(connection, name, at)).gpus]
    wanted = present if indices is None else indices
    if unknown := sorted(set(wanted) - set(present)):
        raise NotFound(f"node {name!r} has no GPU {unknown[0]}; it has {present}")
    ill = await connection.execute(
        update(gpu)
        .where(gpu.c.node == name, gpu.c.index.in_(wanted), ~gpu.c.healthy)
        .values(acquitted_at=at)
        .returning(gpu.c.index)
    )
    return tuple(sorted(ill.scalars()))


async def load_acquitted(
    connection: AsyncConnection, name: str
) -> tuple[tuple[int, int], ...]:
    """The node's GPUs whose acquittal has not made them healthy yet: index, and the moment in microseconds."""
    found = await connection.execute(
        select(gpu.c.index, gpu.c.acquitted_at)
        .where(gpu.c.node == name, gpu.c.acquitted_at.is_not(None))
        .order_by(gpu.c.index)
    )
    return tuple((index, round(at.timestamp() * 1e6)) for index, at in found)
