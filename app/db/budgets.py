"""Budgets: what may be spent, what was, and what the audit has said of it."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.control.budgets import BudgetState, level_of, spent_event
from app.db import events
from app.db.tables import budget
from app.db.upsert import upsert
from app.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One budget with how it stands."""

    state: BudgetState
    created_at: datetime


async def list_rows(connection: AsyncConnection, *, after: str = "", limit: int | None = None) -> tuple[BudgetRow, ...]:
    """Budgets by name."""
    found = await connection.execute(
        text(f"{_STATES} WHERE b.name > :after ORDER BY b.name LIMIT :limit"), {"after": after, "limit": limit}
    )
    return tuple(_row(dict(row._mapping)) for row in found)


async def get(connection: AsyncConnection, name: str) -> BudgetRow:
    """One budget. Raises NotFound."""
    row = (await connection.execute(text(f"{_STATES} WHERE b.name = :name"), {"name": name})).one_or_none()
    if row is None:
        raise NotFound(f"no budget is called {name!r}")
    return _row(dict(row._mapping))


async def save(
    connection: AsyncConnection,
    name: str,
    *,
    project: str | None,
    period: str,
    limit_usd: Decimal,
    action: str,
    at: datetime,
) -> None:
    """Add or replace a budget; what was told of it stays told."""
    values = {"project": project, "period": period, "limit_usd": limit_usd, "action": action}
    await upsert(connection, budget, {"name": name}, values, only_new={"created_at": at, "told_percent": 0})


async def remove(connection: AsyncConnection, name: str) -> None:
    """Delete a budget. Raises NotFound."""
    if (await connection.execute(delete(budget).where(budget.c.name == name))).rowcount == 0:
        raise NotFound(f"no budget is called {name!r}")


async def load_blocking(connection: AsyncConnection, project: str) -> BudgetState | None:
    """The first spent budget for whose sake the project gets nothing new."""
    condition = "b.action = 'block_new' AND (b.project IS NULL OR b.project = :project)"
    # The table is asked first: where no budget blocks, no cost is added up.
    names = (
        await connection.execute(text(f"SELECT name FROM budget b WHERE {condition}"), {"project": project})
    ).scalars()
    for name in sorted(names):
        state = (await get(connection, name)).state
        if level_of(state) == 100:
            return state
    return None


async def tell_spent(connection: AsyncConnection, at: datetime) -> int:
    """Write in the audit which budgets passed 80 or 100 % since it was last told; returns how many."""
    told = {row.name: row for row in await connection.execute(select(budget).with_for_update())}
    count = 0
    for row in await list_rows(connection):
        state, before = row.state, told.get(row.state.name)
        if before is None:
            continue
        known = before.told_percent if before.told_since == state.since else 0
        if (level := level_of(state)) <= known:
            continue
        await events.add(connection, spent_event(state, at))
        values = {"told_since": state.since, "told_percent": level}
        await connection.execute(update(budget).where(budget.c.name == state.name).values(values))
        count += 1
    return count


_STATES = """
SELECT b.name, b.project, b.period, b.action, b.limit_usd, b.created_at, s.since, s.until, s.spent_usd, s.spent_percent,
       s.usd_per_hour, s.projected_usd
FROM budget b JOIN report.budget_status s ON s.budget = b.name
"""


def _row(values: dict[str, object]) -> BudgetRow:
    created_at = values.pop("created_at")
    return BudgetRow(state=BudgetState(**values), created_at=created_at)  # type: ignore[arg-type]
