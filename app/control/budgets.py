"""Budgets: when somebody is told, and what is refused. Nothing that runs is ever stopped for a budget."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

from app.control.store import Event

Period: TypeAlias = Literal["hour", "day", "month"]
Action: TypeAlias = Literal["warn", "block_new"]
"""warn: the audit says so at 80 and at 100 %; block_new: and new services and tasks are refused from 100 % on."""

LEVELS: tuple[Literal[80, 100], ...] = (100, 80)
LOOK_PERIOD_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """One budget in its present period."""

    name: str
    project: str | None
    """None: the whole cluster."""
    period: Period
    action: Action
    limit_usd: Decimal
    since: datetime
    until: datetime
    spent_usd: Decimal
    spent_percent: Decimal
    usd_per_hour: Decimal
    """Of the plan in force."""
    projected_usd: Decimal
    """Spent when the period ends, if that plan stays."""

    @property
    def words(self) -> str:
        """Whose it is and how it stands."""
        whose = "the whole cluster" if self.project is None else f"project {self.project}"
        return f"{self.spent_usd:.2f} of {self.limit_usd:.2f} USD of this {self.period} are spent by {whose}"


def level_of(state: BudgetState) -> Literal[0, 80, 100]:
    """The highest level that it has passed."""
    return next((level for level in LEVELS if state.spent_percent >= level), 0)


def spent_event(state: BudgetState, at: datetime) -> Event:
    """What the audit says when it passes one."""
    is_spent = level_of(state) == 100
    return Event(
        at=at,
        actor="controller",
        kind="BudgetSpent" if is_spent else "BudgetNearlySpent",
        subject=f"budget/{state.name}",
        reason=state.words + ("; nothing new is taken" if is_spent and state.action == "block_new" else ""),
        after={
            "project": state.project,
            "spent_usd": float(state.spent_usd),
            "limit_usd": float(state.limit_usd),
            "projected_usd": float(state.projected_usd),
        },
    )
