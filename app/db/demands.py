"""Demand: the arrival rates that plans were made for."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import AnyRow, demand


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRow:
    """One forecast, or one stated rate."""

    service: str
    at: datetime
    arrival_rate_rps: float
    method: str
    plan_id: int | None


async def load_latest(connection: AsyncConnection, names: Sequence[str]) -> tuple[DemandRow, ...]:
    """The newest rate of each of these services that has one, by service."""
    numbered = (
        select(demand, func.row_number().over(partition_by=demand.c.service, order_by=demand.c.at.desc()).label("age"))
        .where(demand.c.service.in_(names))
        .subquery()
    )
    statement = select(numbered).where(numbered.c.age == 1).order_by(numbered.c.service)
    return tuple(_row(row) for row in await connection.execute(statement))


async def list_rows(
    connection: AsyncConnection,
    service: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> tuple[DemandRow, ...]:
    """Rates of one service in [since, until), newest first."""
    statement = select(demand).where(demand.c.service == service).order_by(demand.c.at.desc()).limit(limit)
    if since is not None:
        statement = statement.where(demand.c.at >= since)
    if until is not None:
        statement = statement.where(demand.c.at < until)
    return tuple(_row(row) for row in await connection.execute(statement))


def _row(row: AnyRow) -> DemandRow:
    return DemandRow(
        service=row.service,
        at=row.at,
        arrival_rate_rps=row.arrival_rate_rps,
        method=row.method,
        plan_id=row.plan_id,
    )
