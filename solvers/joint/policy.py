"""Policy `joint`: GPU types, counts, co-location, SM percents, batches and clocks in one optimisation with a bound.

    1. keep      the running GPUs with the new rates, less what is superfluous
    2. change    the running GPUs with few starts, where they fall short or may be rearranged
    3. optimise  column generation over patterns of whole GPUs, then whole counts (`solvers.joint`)
    4. greedy    HetSev's greedy plan, where the third step broke a rule, or left something over and there is time

Every plan counts only if the checker accepts it. What demand needs comes first: of the first two, what serves most,
then what misses the fewest replicas, then what is cheapest with migration; among equals the running GPUs stay.

To save cost, the running GPUs are rearranged only as `Stability` allows: not before `min_dwell_s` have passed since
the last look, by no more starts than `move_budget` beyond those that are needed, and only where that saves more than
`hysteresis` of the cost. The third step is left out where it could not save that much, which the relaxation of the
second one tells; so on most ticks a plan takes little of its budget.

Where GPUs are short, running replicas stop to serve more only where that is worth it (`steadiness`), and where some
service would be left out by too much, the loop's plan is arranged for medians (`best_effort`). Single plans and the
objective `max_goodput` serve most of all weight, whatever that means for one service.

Memory holds when the last look was, and the token of warm state (`solvers.joint.replan.warm_start`). A single plan,
whose budget says nothing of stability, and one without a limit of seconds, neither use nor leave warm state: then plans
follow from the arguments alone. Simulations say that their calls are a series (`Budget.is_series`): each uses the warm
state of the one before, so that plans follow from the first memory, which is none, and all arguments since.

Under a power budget (`Problem.power_budget_w`) the third step plans within it (`solvers.joint.power_budget`); the
others leave out what there are no watts for (`solvers.joint.trim_to_power`), and where that is more than before, the
third step follows at once.
"""

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeGuard

from solvers.check import violations
from solvers.greedy import policy as hetsev_greedy
from solvers.greedy.arrange import running_carriers
from solvers.greedy.routing import route
from solvers.joint.heuristics.fluid import is_too_fine
from solvers.joint.replan.change import Changed, change
from solvers.joint.replan.warm_start import WarmStart, load_warm_start, store_warm_start
from solvers.joint.shortage import (
    as_promised,
    at_medians,
    is_short,
    is_worth_moving,
    keeps_medians,
)
from solvers.joint.solution import OPTIMAL_GAP, JointSolution
from solvers.joint.solve import estimate, solve, threads, unproven
from solvers.joint.trim_to_power import fits, trimmed
from solvers.laws.cost import cost_usd_per_hour, served_weight, started
from solvers.types.outcome import (
    MIN_MOVES,
    Budget,
    PlanReport,
    PlanStatus,
    SolveReport,
    Stability,
)
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "joint"
MEMORY_VERSION = 1
_MEDIANS = "arranged so that every median is in time: for the SLOs' percentiles there are too few GPUs"
_SERVED_DIGITS = 6
"""Decimals of the served share of all weight that count."""
_COST_DIGITS = 6
_CAREFUL_SHARE = 0.35
"""Of the budget's seconds; then what runs is changed in haste."""
_CHANGE_SHARE = 0.8
"""Of the budget's seconds, until what runs is changed, where a search may follow."""
_USABLE = 0.9
"""Of the budget's seconds; the rest is for the check and the report."""
_NOTICED = 0.01
"""Of the weight of all demand: so much more unserved for lack of watts is worth a look at once."""
_LOOK_SHARE = 0.8
"""Of the budget's seconds, until the search for a fresh arrangement ends; what is left is for rearranging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """One plan that might be made, and what it is worth."""

    plan: Plan
    status: PlanStatus
    source: str
    cost_usd_per_hour: float
    served_weight: float
    starts: int
    merit: tuple[float, int, float]
    """Less is better: unserved share of all weight, missing replicas, cost with migration."""


class _Found(NamedTuple):
    """A draft, and what is proven of plans for the problem."""

    draft: _Draft
    solution: JointSolution
    step: SolveReport


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """What the policy remembers."""

    token: str | None = None
    looked_s: float | None = None
    """When a rearrangement was last looked for; None = never."""


Kept: TypeAlias = dict[str, Json]
"""What is remembered."""


def make_plan(
    problem: Problem, observed: Observed, memory: Json, budget: Budget
) -> tuple[Plan, PlanReport, Json]:
    """The plan, its report with proven bounds, and what to remember."""
    found, kept = _planned(problem, observed, memory, budget)
    if (
        _has_next(budget)
        and problem.objective == "min_cost"
        and is_short(found.draft.plan)
    ):
        found, kept = _by_medians(problem, observed, (found, kept), memory, budget)
    return found.draft.plan, _report(problem, found), kept


def _by_medians(
    problem: Problem,
    observed: Observed,
    strict: tuple[_Found, Kept],
    memory: Json,
    budget: Budget,
) -> tuple[_Found, Kept]:
    """What was found, or an arrangement in which every median is in time, where that of what was found are not."""
    found, kept = strict
    if keeps_medians(problem, found.draft.plan) or _after(budget, _USABLE)():
        return strict
    softened = at_medians(problem, found.draft.plan)
    past = memory.get("medians") if isinstance(memory, Mapping) else None
    other, kept_too = _planned(softened, observed, past, budget)
    plan = as_promised(problem, other.draft.plan)
    kept = {**kept, "medians": kept_too}
    if violations(problem, plan) or not fits(problem, plan):
        return found, kept
    return found._replace(draft=_draft(problem, plan, "feasible", _MEDIANS)), kept


def _planned(
    problem: Problem, observed: Observed, memory: Json, budget: Budget
) -> tuple[_Found, Kept]:
    """What serves most, then costs least, as `Stability` allows; and what to remember."""
    past, has_next = _past(memory), _has_next(budget)
    warm = load_warm_start(past.token, problem) if has_next else None
    warm = warm if warm is not None else WarmStart(problem, has_headroom=has_next)
    if problem.current is None or not problem.current.gpus:
        found, is_look = _fresh(problem, observed, budget, warm), True
    else:
        age_s = math.inf if past.looked_s is None else observed.at_s - past.looked_s
        may_look = not 0.0 <= age_s < budget.stability.min_dwell_s
        found, is_look = _replanned(problem, observed, budget, warm, may_look=may_look)
    looked_s = observed.at_s if is_look else past.looked_s
    token = store_warm_start(warm) if has_next else None
    return found, {"version": MEMORY_VERSION, "looked_s": looked_s, "warm": token}


def _has_next(budget: Budget) -> bool:
    """Whether warm state is used, and left for the next call."""
    return (
        budget.seconds < math.inf or budget.is_series
    ) and budget.stability != Stability()


def _replanned(
    problem: Problem,
    observed: Observed,
    budget: Budget,
    warm: WarmStart,
    *,
    may_look: bool,
) -> tuple[_Found, bool]:
    """The plan from what runs, and whether a rearrangement was looked for."""
    share = _CHANGE_SHARE if may_look else _USABLE
    with _no_pause():
        with threads(budget.threads) as executor:
            is_over, is_late = _after(budget, share), _after(budget, _CAREFUL_SHARE)
            changed = change(problem, warm, executor, is_over=is_over, is_late=is_late)
        needed = _steadiest(problem, list(_needed(problem, changed)), budget.stability)
    if needed is None:
        return _fresh(problem, observed, budget, warm), True
    can_look = (may_look or _lacks_watts(problem, needed)) and not _after(
        budget, _CHANGE_SHARE
    )()
    if can_look and not is_too_fine(warm.tables(problem)):
        found = _Found(needed, *estimate(problem, needed.plan, budget, warm))
    else:
        found = _Found(
            needed, *unproven(problem, needed.plan, needed.cost_usd_per_hour, warm)
        )
    if not can_look or not _is_worthwhile(found, budget.stability):
        return found, can_look
    search = replace(budget, seconds=_LOOK_SHARE * budget.seconds)
    fresh = _fresh(problem, observed, search, warm, other=needed)
    drafts = [fresh.draft, *_rearranged(problem, budget, warm)]
    allowed = (
        draft
        for draft in drafts
        if _is_allowed(draft, needed, problem, budget.stability)
    )
    best = min(allowed, key=lambda draft: draft.merit, default=needed)
    return fresh._replace(draft=best), True


@contextmanager
def _no_pause() -> Iterator[None]:
    """Garbage waits: to go through all columns of a warm state takes longer than to change a plan."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _after(budget: Budget, share: float) -> Callable[[], bool]:
    """Whether that share of the seconds is over."""
    return lambda: budget.elapsed() >= share * budget.seconds


def _rearranged(problem: Problem, budget: Budget, warm: WarmStart) -> Iterator[_Draft]:
    """Running arrangements with starts that save cost, at two prices of a start."""
    for start in (problem.migration_cost_usd_per_hour, None):
        if (
            problem.migration_cost_usd_per_hour == 0.0
            and budget.stability.move_budget >= 1.0
        ):
            return  # Starts cost nothing: the fresh arrangement is as good as any.
        with threads(budget.threads) as executor:
            changed = change(
                problem,
                warm,
                executor,
                may_rearrange=True,
                start_usd_per_hour=start,
                is_over=_after(budget, _USABLE),
            )
        plan = changed.changed if changed.is_whole else None
        if plan is not None and not violations(problem, plan) and fits(problem, plan):
            yield _draft(problem, plan, "feasible", "running arrangement, rearranged")


def _needed(problem: Problem, changed: Changed) -> Iterator[_Draft]:
    """The running arrangement, kept and changed; of equals the first is preferred."""
    carriers = running_carriers(problem) if not changed.is_whole else []
    kept = route(problem, NAME, carriers, {}) if carriers else None
    for plan in (kept, changed.kept):
        fitting = _fitting(plan, problem)
        if _is_usable(fitting, problem):
            yield _draft(
                problem, fitting, "kept", "running arrangement, with new rates"
            )
    fitting = _fitting(changed.changed, problem)
    if _is_usable(fitting, problem):
        yield _draft(problem, fitting, "feasible", "running arrangement, changed")


def _steadiest(
    problem: Problem, drafts: Sequence[_Draft], stability: Stability
) -> _Draft | None:
    """The best of what can become of the running arrangement; what starts nothing, where that is about as good."""
    best = min(drafts, key=lambda draft: draft.merit, default=None)
    for draft in drafts:
        serves_less = (
            best is not None and draft.starts == 0 and draft.merit[0] > best.merit[0]
        )
        if (
            best is not None
            and serves_less
            and not _is_worth_moving(problem, draft, best, stability)
        ):
            return draft
    return best


def _is_worth_moving(
    problem: Problem, kept: _Draft, other: _Draft, stability: Stability
) -> bool:
    return is_worth_moving(
        problem, kept.plan, other.plan, hysteresis=stability.hysteresis
    )


def _fitting(plan: Plan | None, problem: Problem) -> Plan | None:
    """The plan, within the power budget: what moves from what runs is made without regard to it."""
    return None if plan is None else trimmed(problem, plan)


def _is_usable(plan: Plan | None, problem: Problem) -> TypeGuard[Plan]:
    return (
        plan is not None
        and bool(plan.gpus)
        and not violations(problem, plan)
        and fits(problem, plan)
    )


def _lacks_watts(problem: Problem, needed: _Draft) -> bool:
    """Whether watts keep what runs from serving about as much as before, which another arrangement might."""
    now, before = (
        _short_of_watts(problem, plan) for plan in (needed.plan, problem.current)
    )
    return now > before + _NOTICED * sum(
        one.priority * one.arrival_rate_rps for one in problem.services
    )


def _short_of_watts(problem: Problem, plan: Plan | None) -> float:
    """Σ priority · rps that a plan leaves unserved for lack of watts."""
    priority = {service.name: service.priority for service in problem.services}
    entries = plan.unserved if plan is not None else ()
    return sum(
        priority.get(entry.service, 0.0) * entry.rate_rps
        for entry in entries
        if entry.reason == "power"
    )


def _is_worthwhile(found: _Found, stability: Stability) -> bool:
    """Whether a search may find what is worth its starts: something is short, or it costs more than it should."""
    relaxed = (
        found.solution.prices.relaxation_usd_per_hour
        if found.solution.prices is not None
        else None
    )
    if found.draft.plan.unserved or relaxed is None:
        return True
    return found.draft.cost_usd_per_hour * (1.0 - stability.hysteresis) >= relaxed


def _is_allowed(
    draft: _Draft, needed: _Draft, problem: Problem, stability: Stability
) -> bool:
    """Whether a draft may replace what is needed: it serves more, or saves enough by few enough starts."""
    if draft.merit[:2] != needed.merit[:2]:
        return draft.merit < needed.merit and _is_worth_moving(
            problem, needed, draft, stability
        )
    running = (
        sum(gpu.count * len(gpu.replicas) for gpu in problem.current.gpus)
        if problem.current
        else 0
    )
    most = needed.starts + max(MIN_MOVES, int(stability.move_budget * running))
    saves = (
        draft.merit[2]
        < needed.merit[2] - stability.hysteresis * needed.cost_usd_per_hour
    )
    return saves and (stability.move_budget >= 1.0 or draft.starts <= most)


def _fresh(
    problem: Problem,
    observed: Observed,
    budget: Budget,
    warm: WarmStart,
    *,
    other: _Draft | None = None,
) -> _Found:
    """The best plan from nothing, or the other one."""
    solution, step = solve(problem, budget, warm=warm)
    plan = replace(solution.plan, policy=NAME)
    drafts = [other] if other is not None else []
    if not violations(problem, plan) and fits(problem, plan):
        drafts.append(_draft(problem, plan, "feasible", "fresh arrangement"))
    is_cut = any(entry.reason == "budget" for entry in plan.unserved)
    if not drafts or (is_cut and not _after(budget, 1.0)()):
        greedy, _, _ = hetsev_greedy.make_plan(problem, observed, None, budget)
        words = "greedy arrangement: the optimisation found no better one"
        drafts.append(
            _draft(
                problem, trimmed(problem, replace(greedy, policy=NAME)), "greedy", words
            )
        )
    return _Found(min(drafts, key=lambda draft: draft.merit), solution, step)


def _draft(problem: Problem, plan: Plan, status: PlanStatus, source: str) -> _Draft:
    everything = sum(
        service.priority * service.arrival_rate_rps for service in problem.services
    )
    cost, weight, starts = (
        cost_usd_per_hour(problem, plan),
        served_weight(problem, plan),
        started(problem, plan),
    )
    served = weight / everything if everything > 0.0 else 1.0
    missing = sum(entry.replicas_missing for entry in plan.unserved)
    whole = cost + problem.migration_cost_usd_per_hour * starts
    return _Draft(
        plan=plan,
        status=status,
        source=source,
        cost_usd_per_hour=cost,
        served_weight=weight,
        starts=starts,
        merit=(-round(served, _SERVED_DIGITS), missing, round(whole, _COST_DIGITS)),
    )


def _past(memory: Json) -> _Past:
    if not isinstance(memory, Mapping) or memory.get("version") != MEMORY_VERSION:
        return _Past()
    token, looked_s = memory.get("warm"), memory.get("looked_s")
    return _Past(
        token=token if isinstance(token, str) else None,
        looked_s=float(looked_s) if isinstance(looked_s, int | float) else None,
    )


def _report(problem: Problem, found: _Found) -> PlanReport:
    """The report; a plan that is proven best, migration counted, is optimal wherever it came from."""
    draft, solution, step = found
    cost, weight = draft.cost_usd_per_hour, draft.served_weight
    is_goodput = problem.objective == "max_goodput"
    bound, weight_bound = solution.cost_bound, max(weight, solution.served_weight_bound)
    if bound is not None:
        bound = min(bound, cost) if bound > 0.0 or cost <= 0.0 else None
    weight_gap = (weight_bound - weight) / weight_bound if weight_bound > 0.0 else 0.0
    cost_gap = _cost_gap(
        cost + problem.migration_cost_usd_per_hour * draft.starts, bound
    )
    is_optimal = weight_gap <= OPTIMAL_GAP and (
        is_goodput or (cost_gap is not None and cost_gap <= OPTIMAL_GAP)
    )
    gap = weight_gap if is_goodput else _cost_gap(cost, bound)
    return PlanReport(
        status="optimal" if is_optimal else draft.status,
        cost_usd_per_hour=cost,
        lower_bound_usd_per_hour=bound,
        gap_percent=None if gap is None else 100.0 * gap,
        method=f"{step.technique} {step.method}",
        messages=(draft.source, *step.messages, *_words_on_bound(problem, draft.plan)),
        served_weight=weight if is_goodput else None,
        served_weight_upper_bound=weight_bound if is_goodput else None,
        steps=(step,),
        prices=solution.prices,
    )


def _words_on_bound(problem: Problem, plan: Plan) -> Iterator[str]:
    """Of which plans the bound on cost speaks, where it matters (see `solvers.joint.proofs`)."""
    forced = 0 if plan.unserved else 1
    has_more = any(
        one.min_replicas > forced * (one.arrival_rate_rps > 0.0)
        for one in problem.services
    )
    if problem.objective == "min_cost" and has_more:
        yield "the bound on cost counts plans that miss no more replicas of min_replicas"


def _cost_gap(cost: float, bound: float | None) -> float | None:
    """Relative; None without a bound."""
    if bound is None:
        return None
    return (cost - bound) / bound if bound > 0.0 else 0.0
