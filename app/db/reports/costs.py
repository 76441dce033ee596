"""Sums of the cost views over hours or days: what the dashboard's page on cost shows, summed where money is exact."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

By: TypeAlias = Literal["service", "project", "gpu_type"]
Step: TypeAlias = Literal["hour", "day"]

IDLE = "(idle)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPeriod:
    """Hours that begin in [since, until), of some projects only where they are given."""

    since: datetime
    until: datetime
    projects: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One layer in one step of time."""

    at: datetime
    name: str
    gpu_hours: Decimal
    cost_usd: Decimal
    whole_gpu_cost_usd: Decimal


async def load(
    connection: AsyncConnection, by: By, step: Step, span: CostPeriod
) -> tuple[CostRow, ...]:
    """Costs by step and name. Idle is a name of its own; by GPU type it is taken out of every other."""
    # Only pieces of this module come into the statement; everything from outside is a parameter.
    statement = f"""
        SELECT date_trunc(:step, hour, 'UTC') AS at, name, sum(gpu_hours) AS gpu_hours, sum(cost_usd) AS cost_usd,
               sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd
        FROM ({_LAYERS[by]}) AS layer
        WHERE hour >= :since AND hour < :until {_of(span)}
        GROUP BY 1, 2 ORDER BY 1, 2
    """
    found = await connection.execute(text(statement), {**_values(span), "step": step})
    return tuple(CostRow(**row._mapping) for row in found)


async def without_sharing(connection: AsyncConnection, span: CostPeriod) -> Decimal:
    """What the same services would have cost on whole GPUs of their own."""
    statement = f"""
        SELECT coalesce(sum(cost_usd), 0) FROM report.cost_without_sharing_hour
        WHERE hour >= :since AND hour < :until {_of(span)}
    """
    return Decimal(
        (await connection.execute(text(statement), _values(span))).scalar_one()
    )


# By GPU type the view of allocations is summed, since the view of costs by type has idle time within each type.
_LAYERS = {
    "service": "SELECT hour, project, service AS name, gpu_hours, cost_usd, whole_gpu_cost_usd "
    "FROM report.cost_by_service_hour",
    "project": "SELECT hour, project, project AS name, gpu_hours, cost_usd, whole_gpu_cost_usd "
    "FROM report.cost_by_project_hour",
    "gpu_type": "SELECT hour, project, CASE WHEN service = '(idle)' THEN service ELSE gpu_type END AS name, "
    "hours * sm_percent / 100 AS gpu_hours, cost_usd, whole_gpu_cost_usd FROM report.allocation_hour",
}


def _of(span: CostPeriod) -> str:
    return (
        "" if span.projects is None else "AND project = ANY(CAST(:projects AS text[]))"
    )


def _values(span: CostPeriod) -> dict[str, object]:
    projects = {} if span.projects is None else {"projects": list(span.projects)}
    return {"since": span.since, "until": span.until, **projects}
