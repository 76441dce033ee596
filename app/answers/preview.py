"""Preview: what the loop would decide if things were different. Runs on a live snapshot and writes nothing."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.answers.scenario import WhatIfScenario
from app.answers.scenario import changed as changed_problem
from app.answers.what_if import (
    FREE_TO_MOVE,
    FollowUp,
    Planned,
    ScenarioAnswer,
    answers,
    ask,
)
from app.base.errors import no_such
from app.loop.forecast import make_demands
from app.loop.make_problem import PlannedPoints, make_problem
from app.loop.observe import observe, usable_state
from app.loop.plan import Decision, check_and_bind, decide
from app.loop.planning import groups
from app.loop.planning.llm_rows import SizedModels
from app.solver.process import PlanAnswer, Solver
from app.store.store import PolicyGroup, Snapshot
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan, PlanChange, anonymous, diff
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand, Service


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewChanges:
    """What shall be different from what is."""

    services: tuple[Service, ...] = ()
    """Added, or in place of those of the same name."""
    without: tuple[str, ...] = ()
    """Services to remove."""
    demand_factor: Mapping[str, float] = field(default_factory=dict)
    """Multiplies the forecast rate of a service."""
    demand_rps: Mapping[str, float] = field(default_factory=dict)
    """The rate of a service, instead of the forecast; for a new one there is none."""
    policy: str | None = None
    groups: tuple[PolicyGroup, ...] | None = None
    """In place of those of the settings."""
    from_running: bool = False
    """Plan from what is running, as the next tick does; otherwise from an empty fleet."""
    gpu_types: tuple[str, ...] = ()
    """Planned with although the fleet may have none of them: a question adds some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would be decided, next to what is in force."""

    decision: Decision
    demands: tuple[Demand, ...]
    changes: tuple[PlanChange, ...]
    cost_before_usd_per_hour: float | None
    """The plan in force costs this at today's figures; None: there is none, or it names what no longer exists."""
    answers: tuple[ScenarioAnswer, ...] = ()
    """Today's first, then those of the questions, ranked; none where nothing was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioQuestion:
    """One scenario of a what-if on the live state; its services are as their teams submit them."""

    scenario: WhatIfScenario
    services: tuple[Service, ...] = ()
    """Added, or in place of those of the same name; `scenario.services` is empty, and filled from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked beyond the changes."""

    scenarios: tuple[ScenarioQuestion, ...]
    suggest: bool
    """Whether to ask the usual questions, too."""
    seconds: float
    """For all plans together."""
    alternatives_of: tuple[str, ...] = ()
    """Services of which to ask what less of a promise, or another GPU type, would cost."""


async def preview(
    solver: Solver,
    snapshot: Snapshot,
    changes: PreviewChanges,
    questions: Questions | None = None,
) -> Preview:
    """What the loop would come to with these changes, whatever its mode; and what each question beyond them comes to.

    The policy starts from nothing: what the next tick keeps for a while (a consolidation that waits, replicas that
    are on their way out) is not what a question of this kind is after. It has a tick's time; where there are questions,
    its share of theirs. Raises InvalidInput for a question that names what is not there, with `scenarios[2].gpus` or
    the like as the field, before anything is planned; and, where there are questions, SolverUnavailable.
    """
    if questions is not None:
        named = _named_types(snapshot, questions.scenarios)
        changes = replace(changes, gpu_types=named)
    models = SizedModels()
    changed = await models.sized(solver, _changed(snapshot, changes))
    # In threads, here and below: problems of a large fleet take a while, for which the API's loop must not wait.
    state, demands, problem = await asyncio.to_thread(_problem, changed, changes)
    found: tuple[ScenarioAnswer, ...] = ()
    if questions is None:
        decision = await decide(
            solver,
            problem,
            state,
            observe(changed),
            settings=changed.settings,
            target=changed.target,
            memory=None,
            promises_may_break=False,
        )
    else:
        asked = [
            await models.sized(solver, _with_services(changed, changes, one))
            for one in questions.scenarios
        ]
        today, *planned = await _ask(
            solver, changed, changes, problem, (questions, asked)
        )
        # Every plan is tried in every scenario.
        found = await asyncio.to_thread(answers, today, planned)
        decision = await _check_and_bind(problem, state, changed, today)
    return Preview(
        decision=decision,
        demands=demands,
        changes=diff(_before(snapshot), decision.plan),
        cost_before_usd_per_hour=await asyncio.to_thread(
            _cost_now, await models.sized(solver, snapshot), state
        ),
        answers=found,
    )


def _named_types(
    snapshot: Snapshot, scenarios: Sequence[ScenarioQuestion]
) -> tuple[str, ...]:
    """The GPU types of which questions speak. Raises InvalidInput for one that the catalogue does not have."""
    known = [gpu_type.name for gpu_type in snapshot.state.gpu_types]
    named = [
        (f"scenarios[{index}].{part}", name)
        for index, question in enumerate(scenarios)
        for part in ("gpus", "price_usd_per_hour")
        for name in getattr(question.scenario, part)
    ]
    for where, name in named:
        if name not in known:
            raise InvalidInput(where, no_such("GPU type", name, known))
    return tuple(sorted({name for _, name in named}))


def _before(snapshot: Snapshot) -> Plan:
    if snapshot.target is None:
        return Plan(policy="none")
    # A policy's plan names no GPUs either, so that only kinds can be compared.
    return anonymous(snapshot.target)


async def _check_and_bind(
    problem: Problem, state: ClusterState, snapshot: Snapshot, today: Planned
) -> Decision:
    """What the loop would make of today's plan, which is made already."""
    return await check_and_bind(
        problem,
        state,
        PlanAnswer(plan=today.plan, report=today.report, memory=None),
        settings=snapshot.settings,
        target=snapshot.target,
        memory=None,
        promises_may_break=False,
    )


async def _ask(
    solver: Solver,
    snapshot: Snapshot,
    changes: PreviewChanges,
    problem: Problem,
    wanted: tuple[Questions, Sequence[Snapshot]],
) -> tuple[Planned, ...]:
    """Today's plan and one per question, for a snapshot that is changed already; `wanted`: with each one's snapshot."""
    settings, observed = snapshot.settings, observe(snapshot)
    questions, snapshots = wanted
    # All of them before the first plan: a name that is not there is found out at once.
    asked = await asyncio.to_thread(
        _all_asked, snapshots, changes, problem, questions.scenarios
    )

    async def make_plan(of: Problem, share_s: float) -> tuple[Plan, PlanReport]:
        budget = Budget(seconds=share_s, work=settings.solve_work, seed=settings.seed)
        question = groups.PlanningRequest(
            problem=of,
            observed=observed,
            settings=settings,
            services=snapshot.state.services,
        )
        answer = await groups.ask(solver, question, budget)
        return answer.plan, answer.report

    return await ask(
        make_plan,
        problem,
        asked,
        follow_up=FollowUp(
            suggest=questions.suggest, alternatives_of=questions.alternatives_of
        ),
        seconds=questions.seconds,
        is_free_to_move=not settings.groups and settings.policy in FREE_TO_MOVE,
    )


def _with_services(
    snapshot: Snapshot, changes: PreviewChanges, question: ScenarioQuestion
) -> Snapshot:
    """The snapshot, changed already, with the services of a question."""
    if not question.services:
        return snapshot
    with_services = replace(changes, services=question.services, without=())
    return _changed(snapshot, with_services)


def _all_asked(
    snapshots: Sequence[Snapshot],
    changes: PreviewChanges,
    problem: Problem,
    questions: Sequence[ScenarioQuestion],
) -> list[tuple[WhatIfScenario, Problem]]:
    return [
        _asked(snapshot, changes, problem, question, f"scenarios[{index}].")
        for index, (snapshot, question) in enumerate(
            zip(snapshots, questions, strict=True)
        )
    ]


def _asked(
    snapshot: Snapshot,
    changes: PreviewChanges,
    problem: Problem,
    question: ScenarioQuestion,
    where: str,
) -> tuple[WhatIfScenario, Problem]:
    """The scenario, with the demands of its services, and the problem with it. `snapshot`: with these services."""
    scenario = question.scenario
    if question.services:
        # Through the loop's own way from services to demands, with headroom and variants, as for any service.
        _, _, problem = _problem(snapshot, changes)
        names = {service.name for service in question.services}
        scenario = replace(
            scenario,
            services=tuple(one for one in problem.services if one.name in names),
            models=tuple(one for one in problem.llm_services if one.name in names),
            llm_points=tuple(one for one in problem.llm_points if one.service in names),
        )
    return scenario, changed_problem(problem, scenario, where=where)


def _problem(
    snapshot: Snapshot, changes: PreviewChanges
) -> tuple[ClusterState, tuple[Demand, ...], Problem]:
    """State, demands and problem of a snapshot that is changed already."""
    state = usable_state(snapshot)
    demands = _demands(snapshot, changes)
    # From nothing unless asked: what runs now would tie the answer to yesterday's decisions.
    target = snapshot.target if changes.from_running else None
    return (
        state,
        demands,
        make_problem(
            state,
            PlannedPoints().of(snapshot),
            demands,
            snapshot.settings,
            target=target,
            at=snapshot.at,
            also=changes.gpu_types,
            llm_points=snapshot.llm_points,
        ),
    )


def _changed(snapshot: Snapshot, changes: PreviewChanges) -> Snapshot:
    services = {
        service.name: service
        for service in snapshot.state.services
        if service.name not in changes.without
    }
    services |= {service.name: service for service in changes.services}
    settings = (
        snapshot.settings
        if changes.policy is None
        else replace(snapshot.settings, policy=changes.policy)
    )
    if changes.groups is not None:
        settings = replace(settings, groups=changes.groups)
    return replace(
        snapshot,
        state=replace(
            snapshot.state, services=tuple(services[name] for name in sorted(services))
        ),
        settings=settings,
    )


def _demands(snapshot: Snapshot, changes: PreviewChanges) -> tuple[Demand, ...]:
    return tuple(
        replace(
            demand,
            arrival_rate_rps=changes.demand_rps.get(
                demand.service, demand.arrival_rate_rps
            )
            * changes.demand_factor.get(demand.service, 1.0),
        )
        for demand in make_demands(snapshot)
    )


def _cost_now(snapshot: Snapshot, state: ClusterState) -> float | None:
    """The price of the target, also of services that the question leaves out."""
    if snapshot.target is None:
        return None
    # A question without a service still pays for it until the plan changes.
    everyone = replace(state, services=snapshot.state.services)
    points = PlannedPoints().of(snapshot)
    problem = make_problem(
        everyone,
        points,
        make_demands(snapshot),
        snapshot.settings,
        target=None,
        at=snapshot.at,
        llm_points=snapshot.llm_points,
    )
    try:
        return cost_usd_per_hour(problem, anonymous(snapshot.target))
    except InvalidInput:
        return None
