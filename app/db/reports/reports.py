"""Rows of the reporting views, for the API and the CLI; SQL users read the same views themselves."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import InvalidRequest, NotFound

Cell: TypeAlias = str | int | float | bool | Decimal | datetime | list[str] | None

# View → its column of time, and the order of its rows.
REPORTS: Mapping[str, tuple[str | None, str]] = {
    "allocation_hour": ("hour", "hour, gpu, service"),
    "bill_hour": ("hour", "hour, gpu"),
    "cost_by_service_hour": ("hour", "hour, service, project"),
    "cost_by_project_hour": ("hour", "hour, project"),
    "cost_by_gpu_type_hour": ("hour", "hour, gpu_type"),
    "cost_without_sharing_hour": ("hour", "hour, service, project"),
    "cost_by_task_hour": ("hour", "hour, task, project"),
    "tasks_by_project_hour": ("hour", "hour, project"),
    "task_progress": ("submitted_at", "submitted_at, task, run"),
    "slo_attainment_hour": ("hour", "hour, service"),
    "tokens_by_service_hour": ("hour", "hour, service"),
    "slo_budget": (None, "service, period_s"),
    "energy_by_service_hour": ("hour", "hour, service"),
    "gpu_utilisation_hour": ("hour", "hour, gpu"),
    "use_hour": ("hour", "hour, gpu, kind, name"),
    "budget_status": (None, "budget"),
    "plan_history": ("at", "plan_id"),
    "node_health": (None, "node"),
    "fit_quality": (None, "network, gpu_type, quantity"),
    "fit_health": (None, "network, gpu_type"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table: names of columns and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """Which rows of which view; see `load`."""

    name: str
    since: datetime | None = None
    until: datetime | None = None
    among: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def load(
    connection: AsyncConnection,
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    among: Mapping[str, Sequence[str]] | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> ReportTable:
    """Rows of one reporting view with times in [since, until), in the view's order; some views have no times.

    `among`: only rows whose column has one of these values. Raises NotFound; InvalidRequest for a missing column.
    """
    wanted = ReportQuery(name=name, since=since, until=until, among=among or {})
    # A limit and an offset, no cursor: the rows of a view have no number of their own.
    statement, values = await _query(connection, wanted)
    found = await connection.execute(
        text(f"{statement} LIMIT :limit OFFSET :offset"),
        {**values, "limit": limit, "offset": offset},
    )
    return ReportTable(
        columns=tuple(found.keys()), rows=tuple(tuple(row) for row in found)
    )


async def stream(
    connection: AsyncConnection, wanted: ReportQuery
) -> AsyncGenerator[tuple[Cell, ...]]:
    """The names of the columns, then every row, without ever holding all of them. Raises what `load` raises."""
    statement, values = await _query(connection, wanted)
    found = await connection.stream(text(statement), values)
    yield tuple(found.keys())
    async for row in found:
        yield tuple(row)


async def _query(
    connection: AsyncConnection, wanted: ReportQuery
) -> tuple[str, dict[str, object]]:
    # First, since it raises NotFound: a name that is no report must not come into a statement.
    there = await list_columns(connection, wanted.name)
    time_column, order = REPORTS[wanted.name]
    conditions = ["true"]
    values: dict[str, object] = {}
    for comparison, bound in ((">= :since", wanted.since), ("< :until", wanted.until)):
        if bound is not None and time_column is not None:
            conditions.append(f"{time_column} {comparison}")
            values[comparison.split(":")[1]] = bound
    for column, chosen in wanted.among.items():
        name = _known(wanted.name, column, there)
        # As text: columns of views are of types of the schema's own, which an array of strings does not match.
        conditions.append(f"{name} = ANY(CAST(:among_{column} AS text[]))")
        values[f"among_{column}"] = list(chosen)
    return (
        f"SELECT * FROM report.{wanted.name} WHERE {' AND '.join(conditions)} ORDER BY {order}",
        values,
    )


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
        raise InvalidRequest(
            f"report {name} cannot be filtered by {column}; its columns are {', '.join(there)}"
        )
    return column


async def ask(connection: AsyncConnection, query: str) -> ReportTable:
    """The answer to a question in SQL, as `plimsoll_reader` would get it."""
    # One statement: the driver refuses a second one after a semicolon, and one at the end is a habit of people.
    found = await connection.execute(text(query.rstrip().rstrip(";")))
    return ReportTable(
        columns=tuple(found.keys()), rows=tuple(tuple(row) for row in found)
    )
