"""Plans that might be made, what each is worth, which of them may replace what runs, and what is reported of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from solvers.check import violations
from solvers.greedy.arrange import running_carriers
from solvers.greedy.routing import route
from solvers.joint.replan.change import Changed
from solvers.joint.reserved import merged
from solvers.joint.shortage import is_worth_moving
from solvers.joint.solution import OPTIMAL_GAP, TECHNIQUE, JointSolution
from solvers.joint.trim_to_power import fits, trimmed
from solvers.laws.cost import cost_usd_per_hour, launched, served_weight, started
from solvers.types.outcome import PlanReport, PlanStatus, SolveReport, Stability
from solvers.types.plan import Plan
from solvers.types.problem import Problem

_SERVED_DIGITS = 6
"""Shares of all weight that agree in this number of decimals are equal: the rest is rounding of sums."""

_COST_DIGITS = 6
"""Costs in USD per hour that agree in this number of decimals are equal."""

_NOTICED = 0.01
"""Where this share of all demand's weight more is unserved for lack of watts, a search follows at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft:
    """One plan that might be made, and what it is worth."""

    plan: Plan
    status: PlanStatus
    source: str
    cost_usd_per_hour: float
    served_weight: float
    starts: int
    """Replicas of kinds of which fewer run: what the contract charges for."""
    launches: int
    """Those that move to another GPU among them."""
    merit: tuple[float, int, float]
    """Smaller is better: the served share of all weight, negated; missing replicas; cost with migration."""

    def weighed(self, launch_usd_per_hour: float) -> tuple[float, int, float, int]:
        """The merit, where each launch has this price too; of equals the one of fewer launches is better."""
        served, missing, cost = self.merit
        weighed = round(cost + launch_usd_per_hour * self.launches, _COST_DIGITS)
        return served, missing, weighed, self.launches

    def launch_usd_per_hour(self, stability: Stability) -> float:
        """What a launch counts for in place of this plan."""
        replicas = sum(gpu.count * len(gpu.replicas) for gpu in self.plan.gpus)
        return stability.start_price * self.cost_usd_per_hour / max(1, replicas)


class FoundPlan(NamedTuple):
    """A draft, and what is proven of plans for the problem."""

    draft: PlanDraft
    solution: JointSolution
    step: SolveReport


def make_draft(
    problem: Problem,
    plan: Plan,
    status: PlanStatus,
    source: str,
) -> PlanDraft:
    """The plan with what it costs, serves and starts; `source` says where it comes from."""
    cost = cost_usd_per_hour(problem, plan)
    starts = started(problem, plan)
    cost_with_migration = cost + problem.migration_cost_usd_per_hour * starts

    weight = served_weight(problem, plan)
    everything = sum(
        service.priority * service.arrival_rate_rps for service in problem.services
    )
    # Where nothing is wanted, all plans serve alike and the cost decides.
    served_share = weight / everything if everything > 0.0 else 1.0
    missing = sum(entry.replicas_missing for entry in plan.unserved)

    return PlanDraft(
        plan=plan,
        status=status,
        source=source,
        cost_usd_per_hour=cost,
        served_weight=weight,
        starts=starts,
        launches=_launches(problem, plan),
        # Rounded, since each entry decides only between plans that are equal in those before it.
        merit=(
            -round(served_share, _SERVED_DIGITS),
            missing,
            round(cost_with_migration, _COST_DIGITS),
        ),
    )


def _launches(problem: Problem, plan: Plan) -> int:
    """Launches of the plan, whichever half of a type its GPUs are counted in."""
    if problem.current is None:
        return 0
    return launched(replace(problem, current=merged(problem.current)), merged(plan))


def needed_drafts(problem: Problem, changed: Changed) -> Iterator[PlanDraft]:
    """The running arrangement, kept and changed; of equals the first is preferred."""
    # Where some running GPUs are no candidates of the search, routing alone still knows them all.
    carriers = running_carriers(problem) if not changed.is_complete else []
    routed = route(problem, TECHNIQUE, carriers, {}) if carriers else None
    for plan in (routed, changed.kept):
        fitting = _fitting(problem, plan)
        if fitting is not None:
            source = "running arrangement, with new rates"
            yield make_draft(problem, fitting, "kept", source)

    fitting = _fitting(problem, changed.changed)
    if fitting is not None:
        yield make_draft(problem, fitting, "feasible", "running arrangement, changed")


def steadiest(
    problem: Problem,
    drafts: Sequence[PlanDraft],
    stability: Stability,
) -> PlanDraft | None:
    """The best of what can become of the running arrangement; what starts nothing, where that is about as good."""
    best = min(drafts, key=lambda draft: draft.merit, default=None)
    if best is None:
        return None
    price = best.launch_usd_per_hour(stability)
    best = min(drafts, key=lambda draft: draft.weighed(price))
    for draft in drafts:
        # Starts disturb users: they must serve enough more to be worth it.
        serves_less = draft.launches == 0 and draft.merit[0] > best.merit[0]
        if serves_less and not _is_worth_moving(problem, draft, best, stability):
            return draft
    return best


def stillest(drafts: Sequence[PlanDraft]) -> PlanDraft | None:
    """What launches the fewest replicas of all that serve the most, whatever it costs: for demand that soon is over."""
    return min(
        drafts,
        key=lambda draft: (*draft.merit[:2], draft.launches, draft.merit[2]),
        default=None,
    )


def _is_worth_moving(
    problem: Problem,
    kept: PlanDraft,
    other: PlanDraft,
    stability: Stability,
) -> bool:
    return is_worth_moving(
        problem,
        kept.plan,
        other.plan,
        start_price=stability.start_price,
    )


def is_valid(problem: Problem, plan: Plan) -> bool:
    """Whether the checker accepts a plan, and it is within the power budget but for rounding."""
    return not violations(problem, plan) and fits(problem, plan)


def _fitting(problem: Problem, plan: Plan | None) -> Plan | None:
    """The plan within the power budget; None where nothing of it is of use."""
    if plan is None:
        return None
    # Plans that change what runs are made without regard to watts.
    within = trimmed(problem, plan)
    return within if within.gpus and is_valid(problem, within) else None


def lacks_watts(problem: Problem, needed: PlanDraft) -> bool:
    """Whether watts keep what runs from serving about as much as before, which another arrangement might."""
    # Compared with the plan in force: a lack that lasts must not set off a search at every tick.
    now = _short_of_watts(problem, needed.plan)
    before = _short_of_watts(problem, problem.current)
    everything = sum(one.priority * one.arrival_rate_rps for one in problem.services)
    return now > before + _NOTICED * everything


def _short_of_watts(problem: Problem, plan: Plan | None) -> float:
    """Σ priority · rps that a plan leaves unserved for lack of watts."""
    # The plan in force may know services that the problem does not have any more: these weigh nothing.
    priority = {service.name: service.priority for service in problem.services}
    entries = plan.unserved if plan is not None else ()
    return sum(
        priority.get(entry.service, 0.0) * entry.rate_rps
        for entry in entries
        if entry.reason == "power"
    )


def is_allowed(
    draft: PlanDraft,
    needed: PlanDraft,
    problem: Problem,
    stability: Stability,
) -> bool:
    """Whether a draft may replace what is needed: it serves more, or saves more than its launches count for."""
    serves_alike = draft.merit[:2] == needed.merit[:2]
    if not serves_alike:
        return draft.merit < needed.merit and _is_worth_moving(
            problem,
            needed,
            draft,
            stability,
        )

    price = needed.launch_usd_per_hour(stability)
    return draft.weighed(price) < needed.weighed(price)


def make_report(problem: Problem, found: FoundPlan) -> PlanReport:
    """The report; a plan that is proven best, migration counted, is optimal wherever it came from."""
    draft, solution, step = found
    cost = draft.cost_usd_per_hour
    weight = draft.served_weight
    is_goodput = problem.objective == "max_goodput"

    bound = _cost_bound(solution, cost)
    weight_bound = max(weight, solution.served_weight_bound)
    weight_gap = (weight_bound - weight) / weight_bound if weight_bound > 0.0 else 0.0

    is_optimal = weight_gap <= OPTIMAL_GAP and (
        is_goodput or _is_cheapest(problem, draft, bound)
    )
    gap = weight_gap if is_goodput else _cost_gap(cost, bound)
    return PlanReport(
        status="optimal" if is_optimal else draft.status,
        cost_usd_per_hour=cost,
        lower_bound_usd_per_hour=bound,
        gap_percent=None if gap is None else 100.0 * gap,
        method=f"{step.technique} {step.method}",
        messages=(draft.source, *step.messages, *_bound_messages(problem, draft.plan)),
        served_weight=weight if is_goodput else None,
        served_weight_upper_bound=weight_bound if is_goodput else None,
        steps=(step,),
        prices=solution.prices,
    )


def _is_cheapest(problem: Problem, draft: PlanDraft, bound: float | None) -> bool:
    # The bound knows no migration: a plan that starts replicas is proven only if even its cost with them is near it.
    migration_cost = problem.migration_cost_usd_per_hour * draft.starts
    gap = _cost_gap(draft.cost_usd_per_hour + migration_cost, bound)
    return gap is not None and gap <= OPTIMAL_GAP


def _cost_bound(solution: JointSolution, cost: float) -> float | None:
    """What is proven of a plan of that cost, in USD per hour."""
    bound = solution.cost_bound
    # Of a plan that costs something, a bound of 0 proves nothing; it would have no relative gap either.
    if bound is None or (bound <= 0.0 and cost > 0.0):
        return None
    return min(bound, cost)


def _bound_messages(problem: Problem, plan: Plan) -> Iterator[str]:
    """To which plans the bound on cost applies, where that matters (see `solvers.joint.proofs`)."""
    # A service with demand has a replica in every plan that serves everything, whatever its min_replicas.
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
