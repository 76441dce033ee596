"""What-if: the same fleet under several scenarios, each planned, and ranked. The caller brings the solver.

Plans are found within a budget, so one scenario's may happen to be worse than another's that would do here, too. Every
scenario therefore takes the cheapest of all plans made that keeps its rules and serves its demand: one GPU more never
comes out dearer than none.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace

from app.answers.scenario import (
    MAX_ALTERNATIVES,
    WhatIfScenario,
    alternatives,
    changed,
    describe_scenario,
    max_suggested,
    suggested,
)
from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.errors import InvalidInput
from solvers.types.outcome import PlanReport, Solution
from solvers.types.plan import (
    ALL_SMS,
    GpuPlan,
    Plan,
    Unserved,
    replicas_of,
    used_gpus,
)
from solvers.types.problem import Problem

FREE_TO_MOVE = frozenset({"joint"})
"""Policies that take what runs for a beginning only, where moves cost nothing."""
TODAY = WhatIfScenario(name="as it is")
MIN_PLAN_S = 0.1
"""So long may each plan take, however many share the time."""
_RATE_TOLERANCE = 1e-9
_PERCENT_DIGITS = 4
_COST_DIGITS = 6
"""Decimals that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One scenario with its problem and the plan that was made for it."""

    scenario: WhatIfScenario
    problem: Problem
    plan: Plan
    report: PlanReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMix:
    """What a plan gives one service on one GPU type."""

    service: str
    gpu_type: str
    replicas: int
    sm_percent: float
    """All of them have so much together; 100 = one entire GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A service that cannot be planned on a GPU type, since no operating point of it is known there."""

    service: str
    network: str
    gpu_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioAnswer:
    """What one scenario comes to."""

    question: str
    cost_usd_per_hour: float
    difference_usd_per_hour: float
    """Against today."""
    gpus: Mapping[str, int]
    """GPUs in use by type."""
    mix: tuple[ServiceMix, ...]
    """Where replicas run, by service and GPU type."""
    unserved_percent: float
    """Percent of Σ priority · arrival rate that no replica serves."""
    unserved: tuple[Unserved, ...]
    lower_bound_usd_per_hour: float | None
    gap_percent: float | None
    solution: Solution | None
    planned_for: str
    """The scenario that the plan was made for: its own, or another one whose plan is better here, too."""
    plan: Plan
    added_usd_per_hour: float | None = None
    """The price of the GPUs that the scenario adds, used or not; None: it adds none."""
    saving_per_usd: float | None = None
    """What the plan saves against today for each USD of that price; None: none are added."""
    unmeasured: tuple[Unmeasured, ...] = ()
    """Services that might use the added GPUs, and that were neither measured nor predicted on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """What is asked once today's plan is there, and follows from it."""

    suggest: bool = False
    """The usual questions."""
    alternatives_of: tuple[str, ...] = ()
    """What the costliest of these services would cost with less of a promise, or on another GPU type."""

    def max_questions(self, problem: Problem) -> int:
        """The maximum number of questions."""
        return (max_suggested(problem) if self.suggest else 0) + (
            MAX_ALTERNATIVES if self.alternatives_of else 0
        )

    def scenarios(self, today: Planned) -> tuple[WhatIfScenario, ...]:
        """The questions."""
        asked: tuple[WhatIfScenario, ...] = ()
        if self.suggest:
            asked += suggested(today.problem, today.plan, today.report.prices)
        return asked + alternatives(today.problem, today.plan, self.alternatives_of)


MakePlan = Callable[[Problem, float], Awaitable[tuple[Plan, PlanReport]]]
"""Makes the plan of a problem within this number of seconds."""


async def ask(
    make_plan: MakePlan,
    problem: Problem,
    asked: Sequence[tuple[WhatIfScenario, Problem]],
    *,
    follow_up: FollowUp,
    seconds: float,
    is_free_to_move: bool = False,
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[Planned, ...]:
    """Today's plan first, then those of the scenarios, then those of what is asked of that.

    The plans share the seconds evenly; what one leaves over goes to the next ones. `is_free_to_move`: the policy takes
    what runs for a beginning only, where moves cost nothing; then scenarios begin with today's plan.
    """
    ends_s = now_s() + seconds

    async def plan(scenario: WhatIfScenario, of: Problem, left: int) -> Planned:
        made, report = await make_plan(of, max(MIN_PLAN_S, (ends_s - now_s()) / left))
        return Planned(scenario=scenario, problem=of, plan=made, report=report)

    # What is suggested follows from today's plan: until that is there, only its largest number is known.
    max_more = follow_up.max_questions(problem)
    today = await plan(TODAY, problem, 1 + len(asked) + max_more)
    questions = list(asked)
    questions += [(one, changed(problem, one)) for one in follow_up.scenarios(today)]
    planned = []
    for index, (one, of) in enumerate(questions):
        begun = _beginning_with(today, of) if is_free_to_move else of
        planned.append(await plan(one, begun, len(questions) - index))
    return today, *planned


def _beginning_with(today: Planned, problem: Problem) -> Problem:
    """The problem with today's plan as the running one, where nothing else runs."""
    # Where moves cost something, today's plan as the running one would charge for them.
    if problem.current is not None or problem.migration_cost_usd_per_hour > 0.0:
        return problem
    return replace(problem, current=today.plan)


def answers(today: Planned, asked: Sequence[Planned]) -> tuple[ScenarioAnswer, ...]:
    """Today's first, then one per scenario, ranked: what leaves least unserved first; of those the GPUs that save
    most per USD of their price; then what costs least."""
    everyone = (today, *asked)
    best = [_best(one, everyone) for one in everyone]
    cost = best[0].cost_usd_per_hour
    made = [_against(cost, one) for one in best]
    ranked = sorted(
        made[1:],
        key=lambda one: (
            one.unserved_percent,
            # GPUs that save nothing are no better than any other answer.
            -max(0.0, one.saving_per_usd or 0.0),
            one.cost_usd_per_hour,
            one.question,
        ),
    )
    return made[0], *ranked


def _against(cost_today: float, one: ScenarioAnswer) -> ScenarioAnswer:
    """The answer with what sets it apart from today's."""
    difference = one.cost_usd_per_hour - cost_today
    added = one.added_usd_per_hour
    saving = None if added is None else round(-difference / added, _COST_DIGITS)
    return replace(one, difference_usd_per_hour=difference, saving_per_usd=saving)


def _best(one: Planned, everyone: Iterable[Planned]) -> ScenarioAnswer:
    """The answer with the best plan of all that keep the rules of this one's problem."""
    best = _answer(one, one.plan, planned_for=describe_scenario(one.scenario))
    assert best is not None, "a policy plans with what the problem has"
    for other in everyone:
        plan = None if other is one else _fitted(one.problem, other.plan)
        if plan is None:
            continue
        found = _answer(one, plan, planned_for=describe_scenario(other.scenario))
        if found is None or _merit(found) >= _merit(best):
            continue
        # Last, as the check costs most: a plan for more GPUs may use what this scenario lacks.
        if not violations(one.problem, found.plan):
            best = found
    return best


def _merit(answer: ScenarioAnswer) -> tuple[float, float]:
    """Less is better."""
    return answer.unserved_percent, round(answer.cost_usd_per_hour, _COST_DIGITS)


def _fitted(problem: Problem, plan: Plan) -> Plan | None:
    """A plan that serves everything of another problem, with this one's services and rates; None where it falls short.

    Rates are only ever lowered. Replicas of services that this problem lacks go, and GPUs on which nothing else runs.
    """
    # What it leaves out here may be another service than there.
    if plan.unserved:
        return None
    share: dict[str, float] = {}
    for service in problem.all_services:
        planned = _planned_rps(plan, service.name)
        if planned < service.arrival_rate_rps * (1.0 - _RATE_TOLERANCE):
            return None
        share[service.name] = (
            min(1.0, service.arrival_rate_rps / planned) if planned > 0.0 else 1.0
        )
    gpus = (_fitted_gpu(gpu, share) for gpu in plan.gpus)
    models = (
        replace(each, arrival_rate_rps=share[each.service] * each.arrival_rate_rps)
        for each in plan.llm_replicas
        if each.service in share
    )
    return replace(
        plan,
        gpus=tuple(gpu for gpu in gpus if gpu.replicas),
        llm_replicas=tuple(models),
    )


def _planned_rps(
    plan: Plan,
    service: str,
) -> float:
    shared = replicas_of(plan, service)
    models = (each for each in plan.llm_replicas if each.service == service)
    return math.fsum(
        (
            *(gpu.count * replica.arrival_rate_rps for gpu, replica in shared),
            *(each.count * each.arrival_rate_rps for each in models),
        )
    )


def _fitted_gpu(gpu: GpuPlan, share: Mapping[str, float]) -> GpuPlan:
    replicas = (
        replace(
            replica, arrival_rate_rps=share[replica.service] * replica.arrival_rate_rps
        )
        for replica in gpu.replicas
        if replica.service in share
    )
    return replace(gpu, replicas=tuple(replicas))


def _answer(one: Planned, plan: Plan, *, planned_for: str) -> ScenarioAnswer | None:
    """What a plan means for a scenario; None where the scenario's problem cannot price it."""
    problem = one.problem
    try:
        cost = cost_usd_per_hour(problem, plan)
    except InvalidInput:
        return None
    used = used_gpus(plan)
    return ScenarioAnswer(
        question=describe_scenario(one.scenario),
        cost_usd_per_hour=cost,
        difference_usd_per_hour=0.0,
        # With the types of which none is used, so that answers can be laid side by side.
        gpus={gpu_type.name: used[gpu_type.name] for gpu_type in problem.gpu_types},
        mix=_mix(plan),
        # Rounded, as answers are ranked by it: noise in the last digits must not outweigh the cost.
        unserved_percent=round(unserved_percent(problem, plan), _PERCENT_DIGITS),
        unserved=plan.unserved,
        lower_bound_usd_per_hour=one.report.lower_bound_usd_per_hour,
        gap_percent=_gap_percent(one, plan, cost),
        solution=one.report.solution,
        planned_for=planned_for,
        plan=plan,
        added_usd_per_hour=_price_added(one),
        unmeasured=_unmeasured(one),
    )


def _price_added(one: Planned) -> float | None:
    added = [
        number * one.problem.gpu_type(name).price_usd_per_hour
        for name, number in one.scenario.gpus.items()
        if number > 0
    ]
    return math.fsum(added) if added else None


def _unmeasured(one: Planned) -> tuple[Unmeasured, ...]:
    problem = one.problem
    known = {(points.network, points.gpu_type) for points in problem.points}
    return tuple(
        Unmeasured(service=service.name, network=service.network, gpu_type=name)
        for name, number in sorted(one.scenario.gpus.items())
        for service in problem.services
        if number > 0
        and (service.allowed_gpu_types is None or name in service.allowed_gpu_types)
        and (service.network, name) not in known
    )


def unserved_percent(problem: Problem, plan: Plan) -> float:
    """Percent of Σ priority · arrival rate that no replica serves; floats may leave it a hair below 0."""
    wanted = math.fsum(
        service.priority * service.arrival_rate_rps for service in problem.all_services
    )
    return (
        100.0 * (1.0 - served_weight(problem, plan) / wanted) if wanted > 0.0 else 0.0
    )


_Key = tuple[str, str]
"""Service and GPU type."""


def _entries(plan: Plan) -> Iterator[tuple[_Key, int, float]]:
    """(key, replicas, their SM percents together) of each entry of a plan."""
    for gpu in plan.gpus:
        for each in gpu.replicas:
            key = each.service, gpu.gpu_type
            yield key, gpu.count, gpu.count * each.sm_percent
    for model in plan.llm_replicas:
        key = model.service, model.gpu_type
        yield key, model.count, model.gpus * ALL_SMS


def _mix(plan: Plan) -> tuple[ServiceMix, ...]:
    """Sorted by service and GPU type."""
    replicas = Counter[tuple[str, str]]()
    shares = defaultdict[tuple[str, str], list[float]](list)
    for key, count, sm_percent in _entries(plan):
        replicas[key] += count
        shares[key].append(sm_percent)
    return tuple(
        ServiceMix(
            service=service,
            gpu_type=gpu_type,
            replicas=number,
            # fsum: the order of a plan's GPUs must not show in the last digit.
            sm_percent=math.fsum(shares[service, gpu_type]),
        )
        for (service, gpu_type), number in sorted(replicas.items())
    )


def _gap_percent(one: Planned, plan: Plan, cost: float) -> float | None:
    """By how much the plan's cost exceeds the bound that is proven for the scenario."""
    bound = one.report.lower_bound_usd_per_hour
    # The policy's own gap holds for its own plan, also where it is proven otherwise than by a bound on the cost.
    if plan is one.plan:
        return one.report.gap_percent
    # There the bound is on what is served, and a cost has no gap to it.
    if bound is None or one.problem.objective == "max_goodput":
        return None
    return 100.0 * max(0.0, cost - bound) / bound if bound > 0.0 else None
