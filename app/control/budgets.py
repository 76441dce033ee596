"""Budgets: when somebody is told, what is refused, and who gets less (`app.control.degrade`).

Nothing that runs is ever stopped for a budget.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

from app.control.degrade import Degradation, Spending, told
from app.control.store import Event

Period: TypeAlias = Literal["hour", "day", "month"]
Action: TypeAlias = Literal["warn", "block_new", "degrade"]
"""warn: the audit says so at 80 and at 100 %; block_new: and new services and tasks are refused from 100 % on; degrade:
and the least important services are planned for less."""

LEVELS: tuple[Literal[80, 100], ...] = (100, 80)
LOOK_PERIOD_S = 60.0
_CONSEQUENCES = {"block_new": "; nothing new is taken", "degrade": "; the least important services get less"}


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
    protected_priority: float = math.inf
    """Services of this priority and above are not degraded."""
    degrade_step: int = 0
    degrade_at: datetime | None = None
    """When it went its last step."""
    is_in_force: bool = True
    """The plan in force was made, or kept, since then."""

    @property
    def words(self) -> str:
        """Whose it is and how it stands."""
        whose = "the whole cluster" if self.project is None else f"project {self.project}"
        return f"{self.spent_usd:.2f} of {self.limit_usd:.2f} USD of this {self.period} are spent by {whose}"

    @property
    def degradation(self) -> Degradation:
        """How far down it went; nowhere with another action."""
        return Degradation(
            budget=self.name,
            project=self.project,
            step=self.degrade_step if self.action == "degrade" else 0,
            protected_priority=self.protected_priority,
        )


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
        reason=state.words + (_CONSEQUENCES.get(state.action, "") if is_spent else ""),
        after={
            "project": state.project,
            "spent_usd": float(state.spent_usd),
            "limit_usd": float(state.limit_usd),
            "projected_usd": float(state.projected_usd),
        },
    )


def spending_of(state: BudgetState, at: datetime) -> Spending:
    """What its next step depends on."""
    hours = (state.until - state.since).total_seconds() / 3600.0
    return Spending(
        step=state.degradation.step,
        settled_s=math.inf if state.degrade_at is None else (at - state.degrade_at).total_seconds(),
        is_in_force=state.is_in_force,
        is_spent=level_of(state) == 100,
        is_hourly=state.period == "hour",
        usd_per_hour=float(state.usd_per_hour),
        pace_usd_per_hour=float(state.limit_usd) / hours,
    )


def step_event(state: BudgetState, step: int, shares: Mapping[str, float], at: datetime) -> Event:
    """What the audit says when it takes or gives back a step. shares: of demand by service, from now on."""
    rate = f"the plan in force costs {state.usd_per_hour:.2f} USD per hour"
    return Event(
        at=at,
        actor="controller",
        kind="BudgetDegrades" if step > state.degrade_step else "BudgetRestores",
        subject=f"budget/{state.name}",
        reason=f"{state.words}; {rate}; {told(shares)}",
        before={"step": state.degrade_step},
        after={"project": state.project, "step": step, "services": len(shares)},
    )
