"""Trained actors of policies that need one, by the fleet that they were trained for; the newest of a fleet counts."""

from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import actor


async def save(
    connection: AsyncConnection,
    fleet_fingerprint: str,
    weights: bytes,
    *,
    at: datetime,
    notes: str,
) -> int:
    """Keep an actor; returns its id."""
    statement = insert(actor).values(
        fleet_fingerprint=fleet_fingerprint, created_at=at, notes=notes, weights=weights
    )
    found: int = (
        await connection.execute(statement.returning(actor.c.id))
    ).scalar_one()
    return found


async def load_newest(
    connection: AsyncConnection, fleet_fingerprint: str
) -> bytes | None:
    """The newest actor of a fleet; None where none was trained."""
    statement = (
        select(actor.c.weights)
        .where(actor.c.fleet_fingerprint == fleet_fingerprint)
        # By id: two actors may be kept at the same moment.
        .order_by(actor.c.id.desc())
        .limit(1)
    )
    weights: bytes | None = (await connection.execute(statement)).scalar_one_or_none()
    return weights
