"""Demand: the arrival rates that plans were made for."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import demand


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRow:
    """One service's rate at one moment."""

    service: str
    at: datetime
    arrival_rate_rps: float
    method: str
    plan_id: int | None
    low_rps: float | None
    high_rps: float | None
    """The 5th and the 95th percentile of the forecast behind it; None where it is no forecast."""


async def list_newest(connection: AsyncConnection) -> tuple[DemandRow, ...]:
    """The newest rate of every service, by name."""
    # DISTINCT ON takes the first row of each service, so the order decides which one that is.
    newest_first = select(demand).order_by(demand.c.service, demand.c.at.desc())
    statement = newest_first.ext(distinct_on(demand.c.service))
    return tuple(
        DemandRow(**row._mapping) for row in await connection.execute(statement)
    )


async def list_rows(
    connection: AsyncConnection,
    service: str,
    *,
    since: datetime,
    until: datetime,
    limit: int | None = None,
) -> tuple[DemandRow, ...]:
    """The rates of one service in [since, until), oldest first."""
    statement = (
        select(demand)
        .where(demand.c.service == service, demand.c.at >= since, demand.c.at < until)
        .order_by(demand.c.at)
        .limit(limit)
    )
    return tuple(
        DemandRow(**row._mapping) for row in await connection.execute(statement)
    )
