"""Costs: sums over the reporting views, for pages and programs that want them by hour or day."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal, TypeAlias

from fastapi import Query
from pydantic import Field

from app.api.http.answers import LIST
from app.api.http.auth import Viewer
from app.api.http.body import resource_router
from app.api.http.parts import Context
from app.api.http.views import View
from app.db.reports import costs
from app.db.reports.costs import IDLE, By, CostPeriod, CostRow, Step

router = resource_router("costs", prefix="/costs")

Period: TypeAlias = Literal["24h", "7d", "30d", "month"]
HOURS: dict[Period, int] = {"24h": 24, "7d": 7 * 24, "30d": 30 * 24}
STEPS: dict[Period, Step] = {"24h": "hour", "7d": "hour", "30d": "day", "month": "day"}


class CostPoint(View):
    """One layer in one step of time."""

    at: datetime = Field(description="Start of the hour or day, UTC")
    name: str
    cost_usd: float


class CostTotal(View):
    """One layer over the whole period."""

    name: str = Field(
        description="Service, project or GPU type; `(idle)`: allocated to none; `(tasks)`: no service"
    )
    gpu_hours: float = Field(description="Hours of whole GPUs, by SM percent")
    cost_usd: float = Field(description="Price × time × SM percent")
    whole_gpu_cost_usd: float = Field(
        description="Its part of the bill when idle capacity is divided, too"
    )


class CostView(View):
    """Costs over time; the sums are those of the SQL views."""

    by: By
    step: Step
    since: datetime = Field(description="Start of the first hour")
    until: datetime = Field(
        description="Start of the first hour that is no longer counted"
    )
    points: list[CostPoint] = Field(
        description="By time, then by name; entries without cost in a step are left out"
    )
    totals: list[CostTotal] = Field(description="Most expensive first, idle last")
    cost_usd: float = Field(description="The bill: sum of all totals")
    idle_cost_usd: float
    without_sharing_usd: float = Field(
        description="What the same services would have cost, each alone on the fewest whole GPUs of the same types "
        "that hold the SM percents that it had (report.cost_without_sharing_hour)"
    )


@router.get("", responses=LIST)
async def get_costs(
    context: Viewer,
    by: Annotated[By, Query()] = "service",
    period: Annotated[
        Period,
        Query(description="Up to now; month: since the first day of this one, UTC"),
    ] = "24h",
    step: Annotated[
        Step | None, Query(description="Absent: hours for 24h and 7d, else days")
    ] = None,
) -> CostView:
    """What was spent, by service, project or GPU type, with what was idle, and what it would have cost unshared.

    A token that is bound to projects sees only their part; idle cost belongs to no project.
    """
    chosen = step or STEPS[period]
    span = _span(context, period)
    async with context.transaction() as connection:
        rows = await costs.load(connection, by, chosen, span)
        # In the same transaction as the sums: an hour that ends in between would be in one and not in the other.
        without_sharing = await costs.without_sharing(connection, span)
    totals = _totals(rows)
    return CostView(
        by=by,
        step=chosen,
        since=span.since,
        until=span.until,
        points=[
            CostPoint(at=row.at, name=row.name, cost_usd=float(row.cost_usd))
            for row in rows
            # A layer without cost draws nothing; most services cost nothing in most steps.
            if row.cost_usd
        ],
        totals=totals,
        cost_usd=_sum(row.cost_usd for row in rows),
        idle_cost_usd=_sum(row.cost_usd for row in rows if row.name == IDLE),
        without_sharing_usd=float(without_sharing),
    )


def _span(context: Context, period: Period) -> CostPeriod:
    """Whole hours, the one that runs among them."""
    this_hour = context.now().replace(minute=0, second=0, microsecond=0)
    since = (
        this_hour.replace(day=1, hour=0)
        if period == "month"
        else this_hour - timedelta(hours=HOURS[period] - 1)
    )
    return CostPeriod(
        since=since, until=_next_hour(this_hour), projects=context.caller.projects
    )


def _next_hour(hour: datetime) -> datetime:
    return hour + timedelta(hours=1)


def _totals(rows: Sequence[CostRow]) -> list[CostTotal]:
    """By name; money is added exactly, and becomes a float at the end only."""
    of: dict[str, list[CostRow]] = defaultdict(list)
    for row in rows:
        of[row.name].append(row)
    found = [
        CostTotal(
            name=name,
            gpu_hours=_sum(row.gpu_hours for row in those),
            cost_usd=_sum(row.cost_usd for row in those),
            whole_gpu_cost_usd=_sum(row.whole_gpu_cost_usd for row in those),
        )
        for name, those in of.items()
    ]
    return sorted(
        # Idle cost belongs to none, so that it stands below what somebody can lower.
        found,
        key=lambda total: (total.name == IDLE, -total.cost_usd, total.name),
    )


def _sum(amounts: Iterable[Decimal]) -> float:
    return float(sum(amounts, Decimal()))
