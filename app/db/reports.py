"""Rows of the reporting views, for the API and the CLI; SQL users read the same views themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import InvalidRequest, NotFound

Cell: TypeAlias = str | int | float | bool | Decimal | datetime | list[str] | None

# View → its column of time, and the order of its rows.
REPORTS: Mapping[str, tuple[str | None, str]] = {
    "allocation_hour": ("hour", "hour, gpu, service"),
    "bill_hour": ("hour", "hour, gpu"),
    "cost_by_service_hour": ("hour", "hour, service, project"),
    "cost_by_project_hour": ("hour", "hour, project"),
    "cost_by_gpu_type_hour": ("hour", "hour, gpu_type"),
    "cost_by_task_hour": ("hour", "hour, task, project"),
    "tasks_by_project_hour": ("hour", "hour, project"),
    "task_progress": ("submitted_at", "submitted_at, task, run"),
    "slo_attainment_hour": ("hour", "hour, service"),
    "slo_budget": (None, "service, period_s"),
    "energy_by_service_hour": ("hour", "hour, service"),
    "gpu_utilisation_hour": ("hour", "hour, gpu"),
    "use_hour": ("hour", "hour, gpu, kind, name"),
    "plan_history": ("at", "plan_id"),
    "node_health": (None, "node"),
    "fit_quality": (None, "network, gpu_type, quantity"),
    "fit_health": (None, "network, gpu_type"),
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
    among: Mapping[str, Sequence[str]] | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> Report:
    """Rows of one reporting view with times in [since, until), in the view's order; some views have no times.

    `among`: only rows whose column has one of these values. Raises NotFound; InvalidRequest for a missing column.
    """
    there = await list_columns(connection, name)
    time_column, order = REPORTS[name]
    conditions = ["true"]
    values: dict[str, object] = {"limit": limit, "offset": offset}
    if since is not None and time_column is not None:
        conditions.append(f"{time_column} >= :since")
        values["since"] = since
    if until is not None and time_column is not None:
        conditions.append(f"{time_column} < :until")
        values["until"] = until
    for column, wanted in (among or {}).items():
        conditions.append(f"{_known(name, column, there)} = ANY(CAST(:among_{column} AS text[]))")
        values[f"among_{column}"] = list(wanted)
    statement = text(
        f"SELECT * FROM report.{name} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT :limit OFFSET :offset"
    )
    found = await connection.execute(statement, values)
    return Report(columns=tuple(found.keys()), rows=tuple(tuple(row) for row in found))


async def list_columns(connection: AsyncConnection, name: str) -> tuple[str, ...]:
    """Columns of one reporting view. Raises NotFound."""
    if name not in REPORTS:
        raise NotFound(f"no report is called {name!r}; there are {', '.join(REPORTS)}")
    found = await connection.execute(
        text(
            "SELECT column_name::text FROM information_schema.columns "
            "WHERE table_schema = 'report' AND table_name = :name ORDER BY ordinal_position"
        ),
        {"name": name},
    )
    return tuple(found.scalars())


def _known(name: str, column: str, there: Sequence[str]) -> str:
    """The column itself: only names that the view has come into a statement."""
    if column not in there:
        raise InvalidRequest(f"report {name} cannot be cut by {column}; its columns are {', '.join(there)}")
    return column


async def ask(connection: AsyncConnection, query: str) -> Report:
    """The answer to a question in SQL, as `plimsoll_reader` would get it."""
    found = await connection.execute(text(query.rstrip().rstrip(";")))
    return Report(columns=tuple(found.keys()), rows=tuple(tuple(row) for row in found))
