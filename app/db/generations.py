"""Which plan a generation of the target was."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import target


async def plan_of(connection: AsyncConnection, generation: int) -> int | None:
    """The id of the plan that was, or is, in force under that generation; None: there was none."""
    found = await connection.execute(select(target.c.plan_id).where(target.c.generation == generation))
    plan_id: int | None = found.scalar_one_or_none()
    return plan_id
