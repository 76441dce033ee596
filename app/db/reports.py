"""Rows of the reporting views, for the API and the CLI; SQL users read the same views themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import NotFound

Cell: TypeAlias = str | int | float | bool | Decimal | datetime | list[str] | None

# View → its column of time, and the order of its rows.
REPORTS: Mapping[str, tuple[str | None, str]] = {
    "allocation_hour": ("hour", "hour, gpu, service"),
    "bill_hour": ("hour", "hour, gpu"),
    "cost_by_service_hour": ("hour", "hour, service, project"),
    "cost_by_project_hour": ("hour", "hour, project"),
    "cost_by_gpu_type_hour": ("hour", "hour, gpu_type"),
    "slo_attainment_hour": ("hour", "hour, service"),
    "energy_by_service_hour": ("hour", "hour, service"),
    "gpu_utilisation_hour": ("hour", "hour, gpu"),
    "plan_history": ("at", "plan_id"),
    "node_health": (None, "node"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A table: names of columns and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


async def load(
    connection: AsyncConnection,
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> Report:
    """Rows of one reporting view with times in [since, until), in the view's order. Raises NotFound."""
    if name not in REPORTS:
        raise NotFound(f"no report is called {name!r}; there are {', '.join(REPORTS)}")
    column, order = REPORTS[name]
    conditions = ""
    if column is not None:
        conditions = (
            f"WHERE (CAST(:since AS timestamptz) IS NULL OR {column} >= :since) "
            f"AND (CAST(:until AS timestamptz) IS NULL OR {column} < :until) "
        )
    found = await connection.execute(
        text(f"SELECT * FROM report.{name} {conditions}ORDER BY {order} LIMIT :limit OFFSET :offset"),
        {"since": since, "until": until, "limit": limit, "offset": offset}
        if column is not None
        else {"limit": limit, "offset": offset},
    )
    return Report(columns=tuple(found.keys()), rows=tuple(tuple(row) for row in found))
