"""Degrade: where a budget with action `degrade` is exceeded, its least important services are planned for less.

What there is to turn: the demand that a plan must serve. A degraded service is planned for a share of its demand and
keeps nothing for bursts; its `min_replicas` and its SLO hold as before, so nothing that runs is stopped altogether. The
policy itself knows nothing of money, and the plan is checked, bound and pushed like any other.

Who: services of the budget's project (of all, for the cluster's) whose priority is below `protected_priority`, the
least priority first. Services of one priority are treated alike. Each priority goes down SHARES, rung by rung, before
the next one is touched: with priorities 1 and 10 the steps are

    step         0      1      2      3      4
    priority 1   100 %  50 %   25 %   25 %   25 %
    priority 10  100 %  100 %  100 %  50 %   25 %

A service that is degraded for several budgets gets the least share of them.

When (`next_step`, once a minute, by the leader): a budget is *exceeded* when it is spent, or, a budget of an hour, when
the plan in force costs more than the budget per hour. GPUs that are paid for anyway count at list price for what is
spent, and not at all for what a plan costs here: a service that gets less of them saves nothing. Then it goes one step
down, and another one each SETTLE_S, until the plan costs no more than the budget's own pace (its limit spread evenly
over its period): money that was spent is gone, so that is all there is to reach. It takes no further step before the
loop has decided with the last one and what it came to is in force: not while the loop is paused, not between two slow
ticks, not while a person has yet to approve.

How it comes back, without flapping: a budget of a day or a month that is no longer exceeded (its period is over, or an
admin raised it) gives everything back at once; while a period runs, spending never falls, so this happens once a
period. A budget of an hour gives back one step at a time, at most one each RESTORE_S, and only where the plan costs no
more than RESTORE_SHARE of the budget.

A demand that is kept from the present plan because the service is not reported stays as it is: that plan may have
been degraded already, and a share of a share of a share would come to nothing.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

from app.store.degradation import Degradation
from app.store.store import AuditEvent
from solvers.types.state import Demand, Mode, Service

SHARES = (1.0, 0.5, 0.25)
"""A service is planned for this share of its demand, by the number of steps that its priority went down."""
SETTLE_S = 300.0
RESTORE_S = 3600.0
RESTORE_SHARE = 0.8

KEPT = "kept"
"""Method of a demand where nothing was heard."""
DEGRADED = "degraded"
"""Method of a demand of which a part is left out."""
_MAX_NAMES = 10
"""In one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What decides about a budget's next step."""

    step: int
    settled_s: float
    """Since its last step; infinite where there was none."""
    is_in_force: bool
    """The plan in force was made, or kept, since its last step."""
    is_spent: bool
    is_hourly: bool
    """Its period is an hour."""
    usd_per_hour: float
    """The plan in force costs this, without GPUs that are paid for anyway."""
    pace_usd_per_hour: float
    """The limit, spread evenly over the period."""


def next_step(spending: Spending, max_step: int) -> int:
    """The step to be on from now: the same one, one further, one back, or 0; at most `max_step`."""
    step = min(spending.step, max_step)
    # A step that is not in force yet has shown nothing: the next one would be taken blindly.
    settled_s = spending.settled_s if spending.is_in_force else 0.0
    if spending.is_spent or (
        spending.is_hourly and spending.usd_per_hour > spending.pace_usd_per_hour
    ):
        is_enough = (
            spending.usd_per_hour <= spending.pace_usd_per_hour or settled_s < SETTLE_S
        )
        return step if is_enough else min(step + 1, max_step)
    # Spending never falls while a period runs, so the period is over, or the limit was raised.
    if not spending.is_hourly:
        return 0
    # Giving back costs money again; below RESTORE_SHARE there is room for it, so that steps do not flap.
    has_room = spending.usd_per_hour <= RESTORE_SHARE * spending.pace_usd_per_hour
    return max(0, step - 1) if has_room and settled_s >= RESTORE_S else step


def max_steps(services: Iterable[Service], degradation: Degradation) -> int:
    """The step from which nothing is left to take."""
    return (len(SHARES) - 1) * len(_ladder(services, degradation))


def shares_of(
    services: Collection[Service], degradations: Iterable[Degradation]
) -> Mapping[str, float]:
    """Share of its demand of every service that is degraded, by name, sorted."""
    shares: dict[str, float] = {}
    for degradation in degradations:
        ladder = _ladder(services, degradation)
        for service in services:
            if not _is_touched(service, degradation):
                continue
            # Steps that went to lower priorities do not count for this one.
            rungs = degradation.step - (len(SHARES) - 1) * ladder.index(
                service.priority
            )
            share = SHARES[min(max(0, rungs), len(SHARES) - 1)]
            shares[service.name] = min(share, shares.get(service.name, 1.0))
    return {name: share for name, share in sorted(shares.items()) if share < 1.0}


def degraded(
    demands: Iterable[Demand], shares: Mapping[str, float]
) -> tuple[Demand, ...]:
    """The demands with these shares of them, where they were heard; others as they are."""
    return tuple(_part(demand, shares.get(demand.service, 1.0)) for demand in demands)


def describe_degraded(
    services: Collection[Service], degradations: Sequence[Degradation]
) -> tuple[str, ...]:
    """What a plan's report says of it, one sentence per budget that takes something."""
    by_budget = ((each.budget, shares_of(services, [each])) for each in degradations)
    return tuple(
        f"budget {name} is exceeded: {describe_shares(shares)}"
        for name, shares in by_budget
        if shares
    )


def describe_shares(shares: Mapping[str, float]) -> str:
    """The shares in words: `planned of the demand: chat for 50 %, search for 25 %`."""
    if not shares:
        return "every service is planned for its whole demand"
    parts = [
        f"{name} for {100 * share:g} %"
        for name, share in list(shares.items())[:_MAX_NAMES]
    ]
    more = (
        f", and {len(shares) - _MAX_NAMES} more services for less"
        if len(shares) > _MAX_NAMES
        else ""
    )
    return f"planned of the demand: {', '.join(parts)}{more}"


def _part(demand: Demand, share: float) -> Demand:
    if share >= 1.0 or demand.method == KEPT:
        return demand
    return replace(
        demand,
        # The reserve is for bursts, which a degraded service may not pay for at all.
        arrival_rate_rps=share * (demand.arrival_rate_rps - demand.reserve_rps),
        reserve_rps=0.0,
        headroom_rps=share * demand.headroom_rps,
        method=DEGRADED,
    )


def _ladder(services: Iterable[Service], degradation: Degradation) -> Sequence[float]:
    """Priorities that may be touched, the least first."""
    return sorted(
        {service.priority for service in services if _is_touched(service, degradation)}
    )


def _is_touched(service: Service, degradation: Degradation) -> bool:
    is_of_budget = degradation.project is None or service.project == degradation.project
    # A service in mode off costs nothing, so that taking from it would be an empty step.
    is_planned = service.mode is not Mode.OFF
    return (
        is_of_budget
        and is_planned
        and service.priority < degradation.protected_priority
    )


Period: TypeAlias = Literal["hour", "day", "month"]
Action: TypeAlias = Literal["warn", "block_new", "degrade"]
"""warn: the audit says so at 80 and at 100 %; block_new: and new services and tasks are refused from 100 % on; degrade:
and the least important services are planned for less."""

LEVELS: tuple[Literal[80, 100], ...] = (100, 80)
LOOK_PERIOD_S = 60.0
_CONSEQUENCES = {
    "block_new": "; nothing new is accepted",
    "degrade": "; the lowest-priority services get less",
}


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
    """The plan in force costs this, at list price also on GPUs that are paid for anyway."""
    avoidable_usd_per_hour: Decimal
    """The part of it that is of other GPUs."""
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
    def message(self) -> str:
        """Whose it is and how it stands."""
        whose = (
            "the whole cluster" if self.project is None else f"project {self.project}"
        )
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


def spent_event(state: BudgetState, at: datetime) -> AuditEvent:
    """What the audit says when it passes one."""
    is_spent = level_of(state) == 100
    return AuditEvent(
        at=at,
        actor="controller",
        kind="BudgetSpent" if is_spent else "BudgetNearlySpent",
        subject=f"budget/{state.name}",
        reason=state.message
        + (_CONSEQUENCES.get(state.action, "") if is_spent else ""),
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
        settled_s=math.inf
        if state.degrade_at is None
        else (at - state.degrade_at).total_seconds(),
        is_in_force=state.is_in_force,
        is_spent=level_of(state) == 100,
        is_hourly=state.period == "hour",
        # A service that gets less of an owned GPU saves nothing.
        usd_per_hour=float(state.avoidable_usd_per_hour),
        pace_usd_per_hour=float(state.limit_usd) / hours,
    )


def step_event(
    state: BudgetState, step: int, shares: Mapping[str, float], at: datetime
) -> AuditEvent:
    """What the audit says when it takes or gives back a step. shares: of demand by service, from now on."""
    rate = f"the plan in force costs {state.usd_per_hour:.2f} USD per hour"
    if state.avoidable_usd_per_hour != state.usd_per_hour:
        rate += f", {state.avoidable_usd_per_hour:.2f} of them for GPUs that are not already paid for"
    return AuditEvent(
        at=at,
        actor="controller",
        kind="BudgetDegrades" if step > state.degrade_step else "BudgetRestores",
        subject=f"budget/{state.name}",
        reason=f"{state.message}; {rate}; {describe_shares(shares)}",
        before={"step": state.degrade_step},
        after={"project": state.project, "step": step, "services": len(shares)},
    )
