"""Which of two plans HetSev takes, and why: the running arrangement, changed, or a fresh one.

choose(problem, changed, fresh, since_s, now_s) -> Choice    describe(reason) -> its words in
                                                                        `PlanReport.messages`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from solvers.laws.cost import (
    cost_usd_per_hour,
    migration_cost_usd_per_hour,
    served_weight,
)
from solvers.papers.hetsev.parameters import HetsevParameters
from solvers.types.outcome import Reason, SolveReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem


class ChoiceKind(StrEnum):
    """Why a plan was taken."""

    FRESH = "Fresh"
    """Nothing runs that could be changed."""
    SERVES_MORE = "ServesMore"
    """The fresh plan serves more."""
    WOULD_SERVE_LESS = "WouldServeLess"
    """The fresh plan serves less."""
    CHANGED = "Changed"
    """The fresh plan saves too little."""
    CONSOLIDATED = "Consolidated"
    """The fresh plan was cheaper for long enough. Figures: cost and fresh_cost, in USD/h."""
    CONSOLIDATION_WAITS = "ConsolidationWaits"
    """It is cheaper, not yet for long enough. Figures: fresh_cost in USD/h, waited_s, hold_s."""
    NO_TIME = "NoTime"
    """The budget's time was up before there was a fresh plan."""


_MESSAGES: Mapping[ChoiceKind, str] = {
    ChoiceKind.FRESH: "fresh arrangement",
    ChoiceKind.SERVES_MORE: "fresh arrangement: it serves more than the running one can be changed to",
    ChoiceKind.WOULD_SERVE_LESS: "running arrangement, changed: a fresh one would serve less",
    ChoiceKind.CHANGED: "running arrangement, changed",
    ChoiceKind.CONSOLIDATED: "consolidation: {cost:.2f} USD/h falls to {fresh_cost:.2f} USD/h",
    ChoiceKind.CONSOLIDATION_WAITS: "running arrangement, changed; a consolidation to {fresh_cost:.2f} USD/h waits, "
    "{waited_s:.0f} of {hold_s:.0f} s",
    ChoiceKind.NO_TIME: "running arrangement, changed; no time was left to think of a fresh one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One candidate plan with how it came about."""

    plan: Plan
    steps: tuple[SolveReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan that is taken, and why."""

    draft: Draft
    reason: Reason
    since_s: float | None = None
    """Since when a consolidation has looked worthwhile; None: it does not."""


def choose(
    problem: Problem,
    changed: Draft,
    fresh: Draft,
    *,
    parameters: HetsevParameters,
    since_s: float | None,
    now_s: float,
) -> Choice:
    """What serves more; of equals the running arrangement, unless the fresh one has been much cheaper for a while."""
    served = served_weight(problem, changed.plan)
    fresh_served = served_weight(problem, fresh.plan)
    # The two sums are over different replicas: a millionth of them is rounding, and no reason to restart a fleet.
    if fresh_served - served > 1e-6 * max(1.0, fresh_served):
        return Choice(draft=fresh, reason=Reason(kind=ChoiceKind.SERVES_MORE))
    if served - fresh_served > 1e-6 * max(1.0, served):
        return Choice(draft=changed, reason=Reason(kind=ChoiceKind.WOULD_SERVE_LESS))

    return _choose_by_cost(
        problem, changed, fresh, parameters=parameters, since_s=since_s, now_s=now_s
    )


def _choose_by_cost(
    problem: Problem,
    changed: Draft,
    fresh: Draft,
    *,
    parameters: HetsevParameters,
    since_s: float | None,
    now_s: float,
) -> Choice:
    """The fresh one of two drafts that serve as much, once it has been much cheaper for `consolidation_hold_s`.

    HetSev never swaps a running instance for cheaper hardware (section 4.1), and so keeps for ever what a peak left
    behind. A saving must be clear, and must outlast the ups and downs of a minute.
    """
    cost = _cost_with_moves(problem, changed.plan)
    fresh_cost = _cost_with_moves(problem, fresh.plan)
    if fresh_cost > cost * (1.0 - parameters.consolidation_gain):
        return Choice(draft=changed, reason=Reason(kind=ChoiceKind.CHANGED))

    # A clock that was set back must not make the consolidation wait for longer than the hold.
    began_s = now_s if since_s is None else min(since_s, now_s)
    waited_s = now_s - began_s
    figures = {
        "cost": cost,
        "fresh_cost": fresh_cost,
        "waited_s": waited_s,
        "hold_s": parameters.consolidation_hold_s,
    }
    if waited_s >= parameters.consolidation_hold_s:
        reason = Reason(kind=ChoiceKind.CONSOLIDATED, figures=figures)
        return Choice(draft=fresh, reason=reason)
    reason = Reason(kind=ChoiceKind.CONSOLIDATION_WAITS, figures=figures)
    return Choice(draft=changed, reason=reason, since_s=began_s)


def _cost_with_moves(problem: Problem, plan: Plan) -> float:
    return cost_usd_per_hour(problem, plan) + migration_cost_usd_per_hour(problem, plan)


def describe(reason: Reason) -> str:
    """Why the plan was taken, as the first of the report's messages."""
    return _MESSAGES[ChoiceKind(reason.kind)].format_map(reason.figures)
