"""Preview: what the loop would decide if things were different. Runs on a live snapshot and writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.control.forecast import make_demands
from app.control.observe import observe, silent_nodes, without_silent_nodes
from app.control.plan import Decision, decide
from app.control.predict import PlannedPoints, make_problem
from app.control.scenario import Scenario, words
from app.control.scenario import changed as changed_problem
from app.control.store import Snapshot
from app.control.what_if import FREE_TO_MOVE, Answer, ask
from app.control.worker import PlanRequest, Solver
from solvers.cost import cost_usd_per_hour
from solvers.errors import InvalidInput
from solvers.outcome import Budget, PlanReport
from solvers.plan import Change, Plan, anonymous, diff
from solvers.problem import Problem
from solvers.state import ClusterState, Demand, Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What shall be different from what is."""

    services: tuple[Service, ...] = ()
    """Added, or in place of those of the same name."""
    without: tuple[str, ...] = ()
    """Services that shall be gone."""
    demand_factor: Mapping[str, float] = field(default_factory=dict)
    """Multiplies the forecast rate of a service."""
    demand_rps: Mapping[str, float] = field(default_factory=dict)
    """The rate of a service, instead of the forecast; for a new one there is none."""
    policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would be decided, beside what is in force."""

    decision: Decision
    demands: tuple[Demand, ...]
    changes: tuple[Change, ...]
    cost_before_usd_per_hour: float | None
    """Of the plan in force at today's figures; None when there is none, or when it names what no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One scenario of a what-if on the live state; its services are as their teams submit them."""

    scenario: Scenario
    services: tuple[Service, ...] = ()
    """Added, or in place of those of the same name; `scenario.services` is empty."""


async def preview(solver: Solver, snapshot: Snapshot, changes: Changes) -> Preview:
    """What the loop would come to with these changes, whatever its mode.

    The policy starts from nothing: what the next tick keeps for a while (a consolidation that waits, replicas that
    are on their way out) is not what a question of this kind is after.
    """
    changed = _changed(snapshot, changes)
    state, demands, problem = _problem(changed, changes)
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
    before = Plan(policy="none") if snapshot.target is None else anonymous(snapshot.target)
    return Preview(
        decision=decision,
        demands=demands,
        changes=diff(before, decision.plan),
        cost_before_usd_per_hour=_cost_now(snapshot, state),
    )


async def what_if(
    solver: Solver,
    snapshot: Snapshot,
    changes: Changes,
    questions: Sequence[Question],
    *,
    suggest: bool,
    seconds: float,
) -> tuple[Answer, ...]:
    """What each question comes to on top of the changes: today's answer first, then the others, ranked.

    Raises InvalidInput for a question that names what is not there, with `scenarios[2].gpus` or the like as the field;
    SolverUnavailable.
    """
    snapshot = _changed(snapshot, changes)
    settings, observed = snapshot.settings, observe(snapshot)
    _, _, problem = _problem(snapshot, changes)
    asked = [
        (_named(question), _asked(snapshot, changes, problem, question, f"scenarios[{index}]."))
        for index, question in enumerate(questions)
    ]

    async def make_plan(of: Problem, share_s: float) -> tuple[Plan, PlanReport]:
        budget = Budget(seconds=share_s, work=settings.solve_work, seed=settings.seed)
        request = PlanRequest(policy=settings.policy, problem=of, observed=observed, memory=None, budget=budget)
        answer = await solver.make_plan(request)
        return answer.plan, answer.report

    is_free = settings.policy in FREE_TO_MOVE
    return await ask(make_plan, problem, asked, suggest=suggest, seconds=seconds, is_free_to_move=is_free)


def _named(question: Question) -> Scenario:
    """The scenario, with the services in its name."""
    scenario = question.scenario
    if scenario.name or not question.services:
        return scenario
    others = [] if scenario == Scenario() else [words(scenario)]
    return replace(scenario, name=", ".join([*others, *(f"with {service.name}" for service in question.services)]))


def _asked(snapshot: Snapshot, changes: Changes, problem: Problem, question: Question, where: str) -> Problem:
    if question.services:
        with_services = replace(changes, services=question.services, without=())
        _, _, problem = _problem(_changed(snapshot, with_services), changes)
    return changed_problem(problem, question.scenario, where=where)


def _problem(snapshot: Snapshot, changes: Changes) -> tuple[ClusterState, tuple[Demand, ...], Problem]:
    """State, demands and problem of a snapshot that is changed already."""
    state = without_silent_nodes(snapshot.state, silent_nodes(snapshot))
    demands = _demands(snapshot, changes)
    return state, demands, make_problem(state, PlannedPoints().of(snapshot), demands, snapshot.settings, target=None)


def _changed(snapshot: Snapshot, changes: Changes) -> Snapshot:
    services = {service.name: service for service in snapshot.state.services if service.name not in changes.without}
    services |= {service.name: service for service in changes.services}
    settings = snapshot.settings if changes.policy is None else replace(snapshot.settings, policy=changes.policy)
    return replace(
        snapshot,
        state=replace(snapshot.state, services=tuple(services[name] for name in sorted(services))),
        settings=settings,
    )


def _demands(snapshot: Snapshot, changes: Changes) -> tuple[Demand, ...]:
    return tuple(
        replace(
            demand,
            arrival_rate_rps=changes.demand_rps.get(demand.service, demand.arrival_rate_rps)
            * changes.demand_factor.get(demand.service, 1.0),
        )
        for demand in make_demands(snapshot)
    )


def _cost_now(snapshot: Snapshot, state: ClusterState) -> float | None:
    """The price of the target, also of services that the question leaves out."""
    if snapshot.target is None:
        return None
    everyone = replace(state, services=snapshot.state.services)
    points = PlannedPoints().of(snapshot)
    problem = make_problem(everyone, points, make_demands(snapshot), snapshot.settings, target=None)
    try:
        return cost_usd_per_hour(problem, anonymous(snapshot.target))
    except InvalidInput:
        return None
