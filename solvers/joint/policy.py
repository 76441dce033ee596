"""Policy `joint`: GPU types, counts, co-location, SM percents, batches and clocks in one optimisation with a bound.

    1. keep      the running GPUs with the new rates, less what is superfluous
    2. change    the running GPUs with few starts, where they fall short or may be rearranged
    3. optimise  column generation over patterns of entire GPUs, then integer counts (`solvers.joint`)
    4. greedy    HetSev's greedy plan, where the third step broke a rule, or left something over and there is time

Every plan counts only if the checker accepts it. What demand needs comes first: of the first two, what serves most,
then what misses the fewest replicas, then what is cheapest with migration; among equals the running GPUs stay. A
replica that moves to another GPU is launched there, though the contract charges nothing for it; so where plans serve
alike, each launch counts for `Stability.start_price` of what a replica costs, and the second step has a second try
where its plan moves replicas.

To save cost, the running GPUs are rearranged not before `Stability.min_dwell_s` have passed since the last look, unless
they became much costlier than needed meanwhile (`solvers.joint.past`). The third step is left out where the relaxation
of the second one tells that it could save next to nothing; so on most ticks a plan takes little of its budget.

Where GPUs are short, running replicas stop to serve more only where that is worth it (`shortage.is_worth_moving`), and
where some service would be left out by too much, the loop's plan is arranged for medians (`shortage.at_medians`).
Single plans and the objective `max_goodput` serve most of all weight, whatever that means for one service.

While a service is awake for a request or two (`Observed.waking`), what else runs stays: looks are rarer, and of the
first two steps' plans the one of the fewest launches is taken, for in a minute none of it may be needed.

In the end replicas that start get what is left on their GPUs, unless tasks want it (`solvers.joint.widen`).

Memory holds when the last look was, what the plan cost then, and the token of warm state
(`solvers.joint.replan.warm_start`). A single plan, whose budget says nothing of stability, and one without a limit of
seconds, neither use nor leave warm state: then plans follow from the arguments alone. Simulations say that their calls
are a series (`Budget.is_series`): each uses the warm state of the one before, so that plans follow from the first
memory, which is none, and all arguments since.

Where some GPUs may be cut into MIG slices, none of these steps is taken (`solvers.joint.slice_plans`).

Under a power budget (`Problem.power_budget_w`) the third step plans within it (`solvers.joint.power_budget`); the
others leave out what there are no watts for (`solvers.joint.trim_to_power`), and where that is more than before, the
third step follows at once.
"""

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from solvers.greedy import policy as hetsev_greedy
from solvers.highs import SolverFailed
from solvers.joint.drafts import (
    FoundPlan,
    PlanDraft,
    is_allowed,
    is_valid,
    lacks_watts,
    make_draft,
    make_report,
    needed_drafts,
    steadiest,
    stillest,
)
from solvers.joint.heuristics.fluid import is_too_fine
from solvers.joint.past import (
    MEDIANS,
    Kept,
    Past,
    dump_past,
    is_wasteful,
    load_past,
    with_money,
)
from solvers.joint.replan.change import MOVE_SHARES, change
from solvers.joint.replan.warm_start import WarmStart, load_warm_start, store_warm_start
from solvers.joint.reserved import merged, split
from solvers.joint.shortage import (
    as_promised,
    at_medians,
    is_short,
    keeps_medians,
)
from solvers.joint.solve import estimate, solve, threads, unproven
from solvers.joint.trim_to_power import trimmed
from solvers.joint.widen import narrowed, widened
from solvers.laws.cost import at_ordinary_prices, in_usd
from solvers.types.outcome import (
    Budget,
    PlanReport,
    Stability,
)
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "joint"
_MEDIANS = "arranged so that every median is in time: for the SLOs' percentiles there are too few GPUs"
_CAREFUL_SHARE = 0.35
"""After this share of the budget's seconds, what runs is changed in haste."""
_CHANGE_SHARE = 0.8
"""Where a search may follow, what runs is changed within this share of the budget's seconds."""
_USABLE = 0.9
"""Plans are looked for in this share of the budget's seconds; the rest is for the check and the report."""
_MIN_GAP = 0.03
"""A search takes most of a tick's budget: it is not made where no plan can save more than this share of the cost."""
_FREE = 0.01
"""Wider replicas may draw watts for this share of what the plan costs."""
_LOOK_SHARE = 0.8
"""The search for a fresh arrangement ends after this share of the budget's seconds; the rest is for rearranging."""


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan, its report with proven bounds, and what to remember."""
    scaled, unit = at_ordinary_prices(problem)
    past = with_money(memory, 1.0 / unit)
    plan, report, kept = _make_plan(scaled, observed, past, budget)
    # Prices may be in another unit at the next call, so that what it is given is in USD.
    return plan, in_usd(problem, report, unit), with_money(kept, unit)


def _make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    if any(gpu_type.slices for gpu_type in problem.gpu_types):
        # SciPy's optimisers, which nothing else here needs, take half a second to import.
        from solvers.joint.slice_plans import make_slice_plan

        return *make_slice_plan(problem, budget), memory
    problem = split(problem)
    found, kept = _planned(problem, observed, memory, budget)
    # Only the loop may soften promises: a single plan answers for the problem as it was asked.
    may_soften = _has_next(budget) and problem.objective == "min_cost"
    if may_soften and is_short(found.draft.plan):
        found, kept = _by_medians(problem, observed, (found, kept), memory, budget)
    return merged(found.draft.plan), make_report(problem, found), kept


def _by_medians(
    problem: Problem,
    observed: Observed,
    strict: tuple[FoundPlan, Kept],
    memory: Json,
    budget: Budget,
) -> tuple[FoundPlan, Kept]:
    """What was found, or an arrangement in which every median is in time, where that of what was found are not."""
    found, kept = strict
    if keeps_medians(problem, found.draft.plan) or _after(budget, _USABLE)():
        return strict

    # The softened problem is planned tick after tick as well, so it has a memory of its own.
    softened = at_medians(problem, found.draft.plan)
    past = memory.get(MEDIANS) if isinstance(memory, Mapping) else None
    other, kept_too = _planned(softened, observed, past, budget)
    kept = {**kept, MEDIANS: kept_too}
    plan = as_promised(problem, other.draft.plan)
    if not is_valid(problem, plan):
        return found, kept
    # The bounds stay those of the problem as it was asked: the softened one allows plans that it does not.
    return found._replace(draft=make_draft(problem, plan, "feasible", _MEDIANS)), kept


def _planned(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[FoundPlan, Kept]:
    """What serves most, then costs least, as `Stability` allows; and what to remember."""
    past = load_past(memory)
    if budget.left_sms == "tasks" and past.may_narrow(observed.at_s, budget.stability):
        asked, problem = problem, narrowed(problem)
        if problem is not asked:
            past = replace(past, narrowed_s=observed.at_s)
    has_next = _has_next(budget)
    warm = load_warm_start(past.token, problem) if has_next else None
    if warm is None:
        # Tables with headroom take longer to make, which pays only if a later call uses them.
        warm = WarmStart(problem, has_headroom=has_next)
    call = _Call(problem, observed, budget, warm)
    try:
        if problem.current is None or not problem.current.gpus:
            found, has_looked = _fresh(call), True
        else:
            found, past, has_looked = _replanned(call, past)
    except SolverFailed as error:
        found, has_looked = _unsolved(call, error), False
        # The program that failed may be part of the warm state.
        has_next = False
    found = _widened(call, found)
    if has_looked:
        cost = found.draft.cost_usd_per_hour
        past = replace(past, looked_s=observed.at_s, settled_usd_per_hour=cost)

    token = store_warm_start(warm) if has_next else None
    return found, dump_past(replace(past, token=token))


class _Call(NamedTuple):
    """What all steps of one call share."""

    problem: Problem
    observed: Observed
    budget: Budget
    warm: WarmStart


def _has_next(budget: Budget) -> bool:
    """Whether warm state is used, and left for the next call."""
    is_one_of_many = budget.seconds < math.inf or budget.is_series
    return is_one_of_many and budget.stability != Stability()


def _replanned(call: _Call, past: Past) -> tuple[FoundPlan, Past, bool]:
    """The plan from what runs, what is remembered of it, and whether a fresh arrangement was looked for."""
    problem, observed, budget, warm = call
    current = problem.current
    assert current is not None
    may_look = past.may_look(observed, budget.stability)
    needed = _changed(call, may_look=may_look)
    if needed is None:
        return _fresh(call), past, True

    may_look = may_look or lacks_watts(problem, needed)
    has_time = not _after(budget, _CHANGE_SHARE)()
    # On steps too fine, the relaxation is too slow to be worth waiting for.
    can_relax = has_time and not is_too_fine(warm.tables(problem))
    can_look = has_time and may_look
    if can_relax and (may_look or past.is_outgrown(current, needed, observed)):
        proven = estimate(problem, needed.plan, budget, warm)
        prices = proven[0].prices
        relaxed = prices.relaxation_usd_per_hour if prices is not None else None
        # Without a relaxation, as where time was short, nothing is known: the next call asks again.
        if relaxed is not None:
            can_look = can_look or is_wasteful(needed, relaxed)
            # What the relaxation is near to is good, and need not be asked about again.
            past = replace(past, settled_usd_per_hour=needed.cost_usd_per_hour)
    else:
        proven = unproven(problem, needed.plan, needed.cost_usd_per_hour, warm)

    found = FoundPlan(needed, *proven)
    if can_look and _is_worthwhile(found, budget):
        found = _best_allowed(call, needed)
    return found, past, can_look


def _widened(call: _Call, found: FoundPlan) -> FoundPlan:
    """The plan with what its GPUs have left given to replicas that start, where no task may want it."""
    problem, _, budget, _ = call
    is_paid_for = problem.objective == "min_cost" and problem.power_budget_w is None
    # Under a power budget there are no watts left for what SMs are left.
    if budget.left_sms != "services" or not is_paid_for:
        return found
    draft = found.draft
    plan = widened(problem, draft.plan, is_over=_after(budget, _USABLE))
    if plan is draft.plan or not is_valid(problem, plan):
        return found
    wider = make_draft(problem, plan, draft.status, draft.source)
    # Where energy is most of what is paid, what is left on a GPU is not free.
    is_free = wider.cost_usd_per_hour <= (1.0 + _FREE) * draft.cost_usd_per_hour
    return found._replace(draft=wider) if is_free else found


def _best_allowed(call: _Call, needed: PlanDraft) -> FoundPlan:
    """The best of a fresh arrangement, the running one rearranged, and what is needed, as `Stability` allows."""
    problem, _, budget, _ = call
    search = replace(budget, seconds=_LOOK_SHARE * budget.seconds)
    fresh = _fresh(call._replace(budget=search), other=needed)
    drafts = [fresh.draft, *_rearranged(call, needed)]
    price = needed.launch_usd_per_hour(budget.stability)
    allowed = (
        draft
        for draft in drafts
        if is_allowed(draft, needed, problem, budget.stability)
    )
    best = min(allowed, key=lambda draft: draft.weighed(price), default=needed)
    # What the search proved holds for every plan of the problem, whichever of them is taken.
    return fresh._replace(draft=best)


def _changed(call: _Call, *, may_look: bool) -> PlanDraft | None:
    """The steadiest good plan from what runs; None where nothing that runs is of use."""
    problem, observed, budget, warm = call
    is_over = _after(budget, _CHANGE_SHARE if may_look else _USABLE)
    is_late = _after(budget, _CAREFUL_SHARE)
    drafts: list[PlanDraft] = []
    with _no_pause(), threads(budget.threads) as executor:
        for move_share in MOVE_SHARES[-1:] if observed.waking else MOVE_SHARES:
            changed = change(
                problem,
                warm,
                executor,
                move_share=move_share,
                is_over=is_over,
                is_late=is_late,
            )
            drafts += needed_drafts(problem, changed)
            # A large fleet has no time for a second try, in which something nearly always moves.
            if is_late() or all(each.launches <= each.starts for each in drafts):
                break
        if observed.waking:
            return stillest(drafts)
        return steadiest(problem, drafts, budget.stability)


@contextmanager
def _no_pause() -> Iterator[None]:
    """Garbage waits: to go through all columns of a warm state takes longer than to change a plan."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # A caller who runs without the collector must not find it on.
        if was_enabled:
            gc.enable()


def _after(budget: Budget, share: float) -> Callable[[], bool]:
    """Whether that share of the seconds is over."""
    return lambda: budget.elapsed() >= share * budget.seconds


def _rearranged(call: _Call, needed: PlanDraft) -> Iterator[PlanDraft]:
    """Running arrangements with starts that save cost, at two prices of a start."""
    problem, _, budget, warm = call
    start_usd_per_hour = problem.migration_cost_usd_per_hour
    start_usd_per_hour += needed.launch_usd_per_hour(budget.stability)
    if start_usd_per_hour == 0.0:
        return  # Starts cost nothing: the fresh arrangement is as good as any.

    # At its true price a start pays where it saves more; at the higher one of `change` there are few, found sooner.
    for start_cost in (start_usd_per_hour, None):
        if _after(budget, _USABLE)():
            return
        with threads(budget.threads) as executor:
            changed = change(
                problem,
                warm,
                executor,
                may_rearrange=True,
                start_usd_per_hour=start_cost,
                is_over=_after(budget, _USABLE),
            )
        # A plan without the running GPUs that are no candidates would stop them without looking at their use.
        plan = changed.changed if changed.is_complete else None
        if plan is not None and is_valid(problem, plan):
            source = "running arrangement, rearranged"
            yield make_draft(problem, plan, "feasible", source)


def _is_worthwhile(found: FoundPlan, budget: Budget) -> bool:
    """Whether a search may find what is worth its time: something is short, or it costs more than it should."""
    prices = found.solution.prices
    relaxed = prices.relaxation_usd_per_hour if prices is not None else None
    if found.draft.plan.unserved or relaxed is None:
        return True
    # No plan costs less than the relaxation. Where starts count for nothing any saving is wanted.
    min_gap = _MIN_GAP if budget.stability.start_price else 0.0
    return found.draft.cost_usd_per_hour * (1.0 - min_gap) >= relaxed


def _fresh(call: _Call, *, other: PlanDraft | None = None) -> FoundPlan:
    """The best plan from nothing, or the other one."""
    problem, _, budget, warm = call
    solution, step = solve(problem, budget, warm=warm)
    plan = replace(solution.plan, policy=NAME)
    drafts = [other] if other is not None else []
    if is_valid(problem, plan):
        drafts.append(make_draft(problem, plan, "feasible", "fresh arrangement"))

    # What only time kept from being served, a plan that is made in no time may serve.
    is_cut = any(entry.reason == "budget" for entry in plan.unserved)
    if not drafts or (is_cut and not _after(budget, 1.0)()):
        drafts.append(_greedy(call))
    best = min(drafts, key=lambda draft: draft.merit)
    return FoundPlan(best, solution, step)


def _unsolved(call: _Call, error: SolverFailed) -> FoundPlan:
    """The greedy plan, of which nothing is proven, where the optimisation broke off."""
    problem, _, _, warm = call
    draft = replace(_greedy(call), source=f"greedy arrangement: {error}")
    solution, step = unproven(problem, draft.plan, draft.cost_usd_per_hour, warm)
    return FoundPlan(draft, solution, step)


def _greedy(call: _Call) -> PlanDraft:
    """HetSev's greedy plan, which always exists, less what there are no watts for."""
    problem, observed, budget, _ = call
    plan, _, _ = hetsev_greedy.make_plan(problem, observed, None, budget)
    within_watts = trimmed(problem, replace(plan, policy=NAME))
    source = "greedy arrangement: the optimisation found no better one"
    return make_draft(problem, within_watts, "greedy", source)
