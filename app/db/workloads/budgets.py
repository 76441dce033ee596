"""Budgets: what may be spent, what was, and what the audit has said of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from sqlalchemy import delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import NotFound
from app.db.base.rows import one_row
from app.db.base.tables import budget
from app.db.base.upsert import upsert
from app.db.operations import events
from app.db.workloads import services
from app.loop.budgets import (
    BudgetState,
    level_of,
    max_steps,
    next_step,
    shares_of,
    spending_of,
    spent_event,
    step_event,
)
from app.store.degradation import Degradation


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One budget with how it stands."""

    state: BudgetState
    created_at: datetime
    shares: Mapping[str, float] = field(default_factory=dict)
    """Services that lose demand because of the budget are planned for this share of it, by name."""


async def load_degradations(connection: AsyncConnection) -> tuple[Degradation, ...]:
    """Those of budgets that take something, by name; no cost is added up for it."""
    found = await connection.execute(
        select(budget)
        .where(budget.c.action == "degrade", budget.c.degrade_step > 0)
        .order_by(budget.c.name)
    )
    return tuple(
        Degradation(
            budget=row.name,
            project=row.project,
            step=row.degrade_step,
            protected_priority=row.protected_priority,
        )
        for row in found
    )


async def list_rows(
    connection: AsyncConnection, *, after: str = "", limit: int | None = None
) -> tuple[BudgetRow, ...]:
    """Budgets by name."""
    found = await connection.execute(
        text(f"{_STATES} WHERE b.name > :after ORDER BY b.name LIMIT :limit"),
        {"after": after, "limit": limit},
    )
    return await _with_shares(connection, [_row(dict(row._mapping)) for row in found])


async def get(connection: AsyncConnection, name: str) -> BudgetRow:
    """One budget. Raises NotFound."""
    row = await one_row(
        connection,
        text(f"{_STATES} WHERE b.name = :name"),
        {"name": name},
        missing=f"no budget is called {name!r}",
    )
    (budget_row,) = await _with_shares(connection, [_row(dict(row._mapping))])
    return budget_row


async def save(
    connection: AsyncConnection,
    name: str,
    *,
    project: str | None,
    period: str,
    limit_usd: Decimal,
    action: str,
    protected_priority: float,
    at: datetime,
) -> None:
    """Add or replace a budget; what was told of it stays told, and what it took stays taken until it is looked at."""
    # What exists already keeps its reports and its step: these belong to `record_spent` and `step_degraded`.
    values = {
        "project": project,
        "period": period,
        "limit_usd": limit_usd,
        "action": action,
        "protected_priority": protected_priority,
    }
    new = {"created_at": at, "told_percent": 0, "degrade_step": 0}
    await upsert(connection, budget, {"name": name}, values, only_new=new)


async def remove(connection: AsyncConnection, name: str) -> None:
    """Delete a budget. Raises NotFound."""
    if (
        await connection.execute(delete(budget).where(budget.c.name == name))
    ).rowcount == 0:
        raise NotFound(f"no budget is called {name!r}")


async def load_blocking(
    connection: AsyncConnection, project: str
) -> BudgetState | None:
    """The first spent budget for whose sake the project gets nothing new."""
    condition = "b.action = 'block_new' AND (b.project IS NULL OR b.project = :project)"
    # The table is asked first: where no budget blocks, no cost is added up.
    names = (
        await connection.execute(
            text(f"SELECT name FROM budget b WHERE {condition}"), {"project": project}
        )
    ).scalars()
    # By name, so that the same budget is named whenever several block.
    for name in sorted(names):
        state = (await get(connection, name)).state
        if level_of(state) == 100:
            return state
    return None


async def record_spent(connection: AsyncConnection, at: datetime) -> int:
    """Write in the audit which budgets passed 80 or 100 % since the last report; returns how many."""
    # Locked: two leaders must not report the same budget twice.
    locked = await connection.execute(select(budget).with_for_update())
    reported = {row.name: row for row in locked}
    count = 0
    for state in [row.state for row in await list_rows(connection)]:
        # A budget that was added after the lock is reported next time.
        if (before := reported.get(state.name)) is None:
            continue
        # A new period begins without any report.
        known = before.told_percent if before.told_since == state.since else 0
        if (level := level_of(state)) <= known:
            continue
        await events.add(connection, spent_event(state, at))
        values = {"told_since": state.since, "told_percent": level}
        await _update(connection, state.name, values)
        count += 1
    return count


async def step_degraded(connection: AsyncConnection, at: datetime) -> int:
    """Take from services, or give back, what exceeded budgets ask for (`app.loop.budgets`); returns how many did."""
    # The spending of all budgets is added up only where one of them takes something, or still has to give back.
    found = (
        await connection.execute(
            select(budget).order_by(budget.c.name).with_for_update()
        )
    ).all()
    if not any(row.action == "degrade" or row.degrade_step for row in found):
        return 0
    known = await services.load_all(connection)
    count = 0
    for state in [row.state for row in await list_rows(connection)]:
        # A budget whose action was changed takes nothing any more: what it took is given back.
        limit = max_steps(known, state.degradation) if state.action == "degrade" else 0
        step = next_step(spending_of(state, at), limit)
        if step == state.degrade_step:
            continue
        shares = shares_of(known, [replace(state.degradation, step=step)])
        await events.add(connection, step_event(state, step, shares, at))
        values = {"degrade_step": step, "degrade_at": at}
        await _update(connection, state.name, values)
        count += 1
    return count


async def _update(
    connection: AsyncConnection, name: str, values: Mapping[str, object]
) -> None:
    await connection.execute(update(budget).where(budget.c.name == name).values(values))


# Ticks write down what they planned for, dispatched jobs do not; a plan that waits for a person leaves the old one in
# force, however often it is kept meanwhile.
_STATES = """
SELECT b.name, b.project, b.period, b.action, b.limit_usd, b.created_at, s.since, s.until, s.spent_usd, s.spent_percent,
       s.usd_per_hour, s.avoidable_usd_per_hour, s.projected_usd, b.protected_priority, b.degrade_step, b.degrade_at,
       b.degrade_at IS NULL
       OR EXISTS (SELECT FROM demand d JOIN plan p ON p.id = d.plan_id
                  WHERE d.at > b.degrade_at AND p.state IN ('target', 'superseded', 'kept'))
          AND NOT EXISTS (SELECT FROM plan p WHERE p.state IN ('proposed', 'approved') AND p.at > b.degrade_at)
       AS is_in_force
FROM budget b JOIN report.budget_status s ON s.budget = b.name
"""


async def _with_shares(
    connection: AsyncConnection, rows: Sequence[BudgetRow]
) -> tuple[BudgetRow, ...]:
    # Most clusters have no such budget: their services need not be loaded.
    if not any(row.state.degradation.step for row in rows):
        return tuple(rows)
    known = await services.load_all(connection)
    return tuple(
        replace(row, shares=shares_of(known, [row.state.degradation])) for row in rows
    )


def _row(values: dict[str, object]) -> BudgetRow:
    created_at = values.pop("created_at")
    return BudgetRow(state=BudgetState(**values), created_at=created_at)  # type: ignore[arg-type]
