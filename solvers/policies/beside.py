"""Language models next to any policy: they get whole GPUs, and the policy has the others.

Sets: GPU types g. Parameters: c_g, their prices; N_g, how many there are. Variables: x, the policy's plan of services
that share GPUs, and z, the replicas of language models, each with constraints of its own. Objective: the cost of both.
Constraint: n_g(x) + n_g(z) ≤ N_g.

Both parts are planned on all GPUs first: where these are enough, that is the plan, and both bounds together bound it.
Where they are not, each in turn gets what it wants and the other one the rest; then the policy is told what the models
would pay for one more GPU of each type that is short: on what it left to them, then half-way to that on all of them.

    bound of the models at c + μ  +  bound of the policy at c + μ  −  Σ_g N_g·μ_g

bounds the whole at any μ ≥ 0 (Lagrangian relaxation; Geoffrion 1974). The best division found is taken.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from solvers.laws.cost import (
    at_ordinary_prices,
    cost_usd_per_hour,
    in_units,
    in_usd,
    llm_power_w,
    migration_cost_usd_per_hour,
    served_weight,
)
from solvers.llm.planner.fleet import LlmFleet, bound_llms, plan_llms
from solvers.policies.rearrange import plan_models, remembered
from solvers.types.llm import LlmPoints, LlmReplicaPlan
from solvers.types.outcome import (
    Budget,
    PlanReport,
    SolveReport,
    SolveStatus,
)
from solvers.types.plan import Plan, Unserved, gpu_counts, used_gpus
from solvers.types.problem import Problem
from solvers.types.state import GpuType, Json, Observed

PolicyCall: TypeAlias = Callable[
    [Problem, Observed, Json, Budget], tuple[Plan, PlanReport, Json]
]
TECHNIQUE = "llm"
_MODELS_SHARE = 0.3
"""The share of what is left of the budget's seconds, for one plan of the language models."""
_POLICY_SHARE = 0.5
"""The same for the policy's first plan; what follows where GPUs are short has this share of the rest each time."""
_OPTIMAL = 0.01
"""Per cent of gap from which a plan counts as optimal, as in `solvers.joint`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What the policy planned of the services that share GPUs."""

    plan: Plan
    report: PlanReport
    memory: Json


def plan_beside(
    make_plan: PolicyCall,
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The policy's plan with the replicas of language models next to it; the policy's own where there are none."""
    past = remembered(memory)
    if not problem.llm_services:
        return make_plan(problem, observed, past.policy, budget)
    problem, unit = at_ordinary_prices(problem)
    part = _part(budget, _MODELS_SHARE)
    models, past = plan_models(_models_of(problem), observed.at_s, past, part)

    def planned(asked: Problem) -> _Shared:
        part = _part(budget, _POLICY_SHARE)
        # In USD: what a policy remembers of costs would else be in another unit whenever prices change it.
        priced = in_units(asked, 1.0 / unit)
        plan, report, kept = make_plan(priced, observed, past.policy, part)
        report = in_usd(asked, report, 1.0 / unit)
        return _Shared(plan=plan, report=report, memory=kept)

    plan, report, kept = _beside(problem, planned, models, budget)
    report = in_usd(problem, report, unit)
    return plan, report, replace(past, policy=kept).document()


def _beside(
    problem: Problem,
    planned: Callable[[Problem], _Shared],
    models: LlmFleet,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    others = _others_of(problem)
    if problem.power_budget_w is not None:
        models, left_w = _within_watts(problem, models, problem.power_budget_w)
        rest = _without(replace(others, power_budget_w=left_w), _llm_gpus(models))
        # What fewer watts would have cost elsewhere is not known: there is no bound.
        return _merged(problem, planned(rest), models, None)
    # On all GPUs: where they are enough, this bound and the models' own bound the whole.
    shared = planned(others)
    bound = _sum_of_bounds(models, shared)
    if _has_room(problem, models, shared):
        return _merged(problem, shared, models, bound)
    return _divided(problem, planned, (models, shared), budget, bound)


def _divided(
    problem: Problem,
    planned: Callable[[Problem], _Shared],
    wanted: tuple[LlmFleet, _Shared],
    budget: Budget,
    bound: float | None,
) -> tuple[Plan, PlanReport, Json]:
    """The best of several divisions of too few GPUs. `wanted`: what each part takes where it has all of them."""
    models, shared = wanted
    others = _others_of(problem)
    with_rest = _models_beside(problem, shared, budget)
    found = [
        (shared, with_rest),
        (planned(_without(others, _llm_gpus(models))), models),
    ]
    # What the models pay for a GPU where they have the fewest, then half-way to where they have all of them.
    highest = with_rest.gpu_prices
    for prices in (highest, _between(models.gpu_prices, highest)):
        if not any(prices.values()) or budget.remaining_s() <= 0.0:
            break
        priced = planned(_at_prices(others, prices))
        bound = _better_bound(problem, prices, priced, bound, budget)
        found.append((priced, _models_beside(problem, priced, budget)))
    best = min(found, key=lambda pair: _merit(problem, *pair))
    return _merged(problem, *best, bound)


def _within_watts(
    problem: Problem, models: LlmFleet, budget_w: float
) -> tuple[LlmFleet, float]:
    """The models without replicas that exceed a power budget, those of the lowest priority first; and what is left."""
    priorities = {each.name: each.priority for each in problem.llm_services}
    replicas: list[LlmReplicaPlan] = []
    unserved = list(models.unserved)
    left_w = budget_w
    for each in sorted(models.replicas, key=lambda each: -priorities[each.service]):
        watts = each.tp * llm_power_w(problem, each)
        fitting = min(each.count, int(left_w // watts)) if watts else each.count
        left_w -= fitting * watts
        if fitting:
            replicas.append(replace(each, count=fitting))
        if fitting < each.count:
            missing = each.count - fitting
            unserved.append(
                Unserved(
                    service=each.service,
                    rate_rps=missing * each.arrival_rate_rps,
                    reason="power",
                )
            )
    # Each service is named once.
    merged = _once(unserved)
    return replace(models, replicas=tuple(replicas), unserved=merged), left_w


def _once(unserved: Iterable[Unserved]) -> tuple[Unserved, ...]:
    found: dict[str, Unserved] = {}
    for each in unserved:
        known = found.get(each.service)
        if known is not None:
            each = replace(
                each,
                rate_rps=known.rate_rps + each.rate_rps,
                replicas_missing=known.replicas_missing,
            )
        found[each.service] = each
    return tuple(found.values())


def _between(
    prices: Mapping[str, float], others: Mapping[str, float]
) -> dict[str, float]:
    return {name: 0.5 * (usd + others.get(name, 0.0)) for name, usd in prices.items()}


def _models_beside(problem: Problem, shared: _Shared, budget: Budget) -> LlmFleet:
    """The models on what the policy's plan leaves over."""
    used = gpu_counts(shared.plan.gpus)
    left = _without(_models_of(problem), used)
    return plan_llms(left, _part(budget, _MODELS_SHARE))


def _better_bound(
    problem: Problem,
    prices: Mapping[str, float],
    priced: _Shared,
    bound: float | None,
    budget: Budget,
) -> float | None:
    """The larger one of a bound and of that at these prices of GPUs, which `priced` was planned at."""
    own = priced.report.lower_bound_usd_per_hour
    # GPUs that are paid for anyway would not cost the price, on which the bound rests.
    has_paid = any(each.paid_count for each in problem.gpu_types)
    if bound is None or own is None or priced.plan.unserved or has_paid:
        return bound
    part = _part(budget, _MODELS_SHARE)
    found = own + bound_llms(_at_prices(_models_of(problem), prices), part)
    counts = {each.name: each.count or 0 for each in problem.gpu_types}
    found -= sum(usd * counts[name] for name, usd in prices.items())
    return max(found, bound)


def _sum_of_bounds(models: LlmFleet, shared: _Shared) -> float | None:
    """None where the policy proves nothing, or where what is left over makes bounds those of different plans."""
    own = shared.report.lower_bound_usd_per_hour
    if own is None or shared.plan.unserved or models.unserved:
        return None
    return own + models.cost_bound


def _merit(
    problem: Problem, shared: _Shared, models: LlmFleet
) -> tuple[float, int, float]:
    """What serves most, then misses the fewest replicas, then costs least with its starts, is least."""
    plan = _together(shared, models)
    missing = sum(entry.replicas_missing for entry in plan.unserved)
    cost = cost_usd_per_hour(problem, plan)
    cost += migration_cost_usd_per_hour(problem, plan)
    # Sums of the same rates in another order differ in their last digits.
    served = float(f"{served_weight(problem, plan):.9g}")
    return -served, missing, cost


def _together(shared: _Shared, models: LlmFleet) -> Plan:
    return replace(
        shared.plan,
        llm_replicas=models.replicas,
        unserved=(*shared.plan.unserved, *models.unserved),
    )


def _merged(
    problem: Problem, shared: _Shared, models: LlmFleet, bound: float | None
) -> tuple[Plan, PlanReport, Json]:
    """Both parts as one plan, with a report of the whole."""
    plan = _together(shared, models)
    cost = cost_usd_per_hour(problem, plan)
    report = replace(shared.report, cost_usd_per_hour=cost)
    if problem.objective == "max_goodput":
        report = replace(
            report,
            served_weight=served_weight(problem, plan),
            served_weight_upper_bound=_weight_bound(problem, report),
            lower_bound_usd_per_hour=None,
            gap_percent=None,
        )
    else:
        report = _with_bound(report, cost, bound)
    # A policy that is not exact stays what it is, whatever the models' part is.
    is_proven = report.gap_percent is not None and report.gap_percent <= _OPTIMAL
    if report.status == "optimal" and not is_proven:
        report = replace(report, status="feasible")
    step = _with_step(report, models, others=bool(problem.services))
    return plan, step, shared.memory


def _with_bound(report: PlanReport, cost: float, bound: float | None) -> PlanReport:
    """The report with what is proven of the whole; of a plan that costs something, a bound of 0 proves nothing."""
    if bound is None or (bound <= 0.0 < cost):
        return replace(report, lower_bound_usd_per_hour=None, gap_percent=None)
    # Rounding may leave a bound on the wrong side of a plan that reaches it.
    bound = min(bound, cost)
    gap = 100.0 * (cost - bound) / bound if bound > 0.0 else 0.0
    return replace(report, lower_bound_usd_per_hour=bound, gap_percent=gap)


def _with_step(report: PlanReport, models: LlmFleet, *, others: bool) -> PlanReport:
    """The report with what was done for the language models."""
    step = SolveReport(
        technique=TECHNIQUE,
        method="column generation over covers",
        status=SolveStatus.FEASIBLE,
        bound=models.cost_bound,
    )
    # Without any other service the policy had nothing to do, and its method is none of this plan's.
    own = report.method if others else ""
    method = ", ".join(filter(None, (own, step.method)))
    return replace(report, method=method, steps=(*report.steps, step))


def _weight_bound(problem: Problem, report: PlanReport) -> float:
    """What all models want, and what is proven of the other services."""
    wanted = sum(each.priority * each.arrival_rate_rps for each in problem.llm_services)
    own = report.served_weight_upper_bound
    if own is None:
        own = sum(each.priority * each.arrival_rate_rps for each in problem.services)
    return wanted + own


def _has_room(problem: Problem, models: LlmFleet, shared: _Shared) -> bool:
    """Whether both parts fit on the GPUs together."""
    used = used_gpus(_together(shared, models))
    return all(
        each.count is None or used[each.name] <= each.count
        for each in problem.gpu_types
    )


def _llm_gpus(models: LlmFleet) -> Counter[str]:
    counts = Counter[str]()
    for replica in models.replicas:
        counts[replica.gpu_type] += replica.gpus
    return counts


def _models_of(problem: Problem) -> Problem:
    """The problem without the services that share GPUs, with as much of each replica's capacity as may count."""
    limits = {each.name: each.max_replica_rps for each in problem.llm_services}
    points = (_limited(each, limits.get(each.service)) for each in problem.llm_points)
    return replace(
        problem,
        services=(),
        points=(),
        slice_points=(),
        llm_points=tuple(points),
    )


def _limited(points: LlmPoints, limit_rps: float | None) -> LlmPoints:
    """The ways to run a service, none of which carries more than that."""
    if limit_rps is None:
        return points
    rows = (
        row._replace(capacity_rps=min(row.capacity_rps, limit_rps))
        for row in points.rows
    )
    return replace(points, rows=tuple(rows))


def _others_of(problem: Problem) -> Problem:
    """The problem as a policy knows it that has never heard of language models."""
    # A policy that is a paper's would take its replicas for GPUs that it may use.
    current = problem.current
    if current is not None:
        current = replace(current, llm_replicas=())
    return replace(problem, llm_services=(), llm_points=(), current=current)


def others_beside(problem: Problem, plan: Plan) -> Problem:
    """The problem of the services that share GPUs, on what a plan's language models leave over."""
    if not problem.llm_services:
        return problem
    return _without(_others_of(problem), used_gpus(replace(plan, gpus=())))


def _without(problem: Problem, used: Counter[str]) -> Problem:
    """The problem on the GPUs that are left."""
    types = tuple(_fewer(each, used[each.name]) for each in problem.gpu_types)
    return replace(problem, gpu_types=types)


def _fewer(gpu_type: GpuType, used: int) -> GpuType:
    paid = max(0, gpu_type.paid_count - used)
    if gpu_type.count is None:
        return replace(gpu_type, paid_count=paid)
    count = max(0, gpu_type.count - used)
    # Who shares GPUs can take them from nodes that are in parts already, so that whole nodes stay whole.
    slots = tuple(
        (size, min(sets, count // size)) for size, sets in gpu_type.free_slots
    )
    return replace(gpu_type, count=count, free_slots=slots, paid_count=paid)


def _at_prices(problem: Problem, prices: Mapping[str, float]) -> Problem:
    """The problem where GPUs of these types cost so much more."""
    types = tuple(
        replace(each, price_usd_per_hour=each.price_usd_per_hour + prices[each.name])
        if each.name in prices
        else each
        for each in problem.gpu_types
    )
    return replace(problem, gpu_types=types)


def _part(budget: Budget, share: float) -> Budget:
    """That share of what is left of a budget's seconds, on a clock that begins now: parts have shares of their own."""
    began_s = budget.elapsed()
    return replace(
        budget,
        seconds=share * budget.remaining_s(),
        elapsed=lambda: budget.elapsed() - began_s,
    )
