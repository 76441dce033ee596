"""Compare policies: the same problem, planned by each, and what each plan comes to. Nothing is written or pushed."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from app.answers.what_if import MIN_PLAN_S, unserved_percent
from app.loop.forecast import make_demands
from app.loop.make_problem import PlannedPoints, make_problem
from app.loop.observe import observe, usable_state
from app.solver.process import PlanAnswer, PlanRequest, Solver, SolverUnavailable
from app.store.store import Snapshot
from solvers.check import violations
from solvers.explain.neighbours import NeighbourReader
from solvers.laws.cost import cost_usd_per_hour, started
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget, Solution, Violation
from solvers.types.parameters import Setting
from solvers.types.plan import Plan, used_gpus
from solvers.types.problem import Problem
from solvers.types.state import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """What the plan of one policy comes to."""

    policy: str
    solution: Solution | None
    """How good the policy says that its plan is; None: it stayed with what runs, or has none."""
    reason: str = ""
    """Why there is no plan."""
    cost_usd_per_hour: float | None = None
    lower_bound_usd_per_hour: float | None = None
    """What any plan costs at least, where the policy proves it."""
    gpus: int = 0
    gpus_by_type: Mapping[str, int]
    replicas: int = 0
    starts: int = 0
    """Replicas that are not yet running; all of them where nothing runs."""
    unserved_percent: float = 0.0
    """Percent of Σ priority · arrival rate that no replica serves."""
    worst_slack_percent: float | None = None
    """Room of the fullest replica in percent of what it may carry within its SLO; below 0 it is asked for more, in
    percent of what it is asked for. -100: it cannot keep its SLO at any rate. None: nothing runs."""
    worst_service: str = ""
    """Whose replica that is."""
    violations: int = 0
    """Broken rules, physical ones and promises together."""
    first_violation: str = ""
    seconds: float = 0.0


async def compare_policies(
    solver: Solver,
    problem: Problem,
    observed: Observed,
    names: Sequence[str],
    budget: Budget,
    *,
    parameters: Mapping[str, Mapping[str, Setting]] = MappingProxyType({}),
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[PolicyPlan, ...]:
    """What each policy makes of the problem, in the order of the names; none remembers anything.

    The plans share the budget's seconds evenly; what one leaves over goes to the next ones. A policy that fails has a
    line that says why.
    """
    ends_s = now_s() + budget.seconds
    found = []
    for place, name in enumerate(names):
        # The time that is left, over the plans that are left.
        share_s = max(MIN_PLAN_S, (ends_s - now_s()) / (len(names) - place))
        mine = replace(budget, seconds=share_s)
        request = PlanRequest(
            policy=name,
            problem=problem,
            observed=observed,
            memory=None,
            budget=mine,
            parameters=parameters.get(name, {}),
        )
        try:
            found.append(judged(problem, name, await solver.make_plan(request)))
        except SolverUnavailable as error:
            # The others are compared all the same: one that fails says something as well.
            found.append(
                PolicyPlan(
                    policy=name, solution=None, reason=str(error), gpus_by_type={}
                )
            )
    return tuple(found)


def present_problem(snapshot: Snapshot) -> tuple[Problem, Observed]:
    """What the next tick would decide on: the present rates, from what runs."""
    # As the tick does: GPUs that are not heard of are not planned with.
    state = usable_state(snapshot)
    points = PlannedPoints().of(snapshot)
    problem = make_problem(
        state,
        points,
        make_demands(snapshot),
        snapshot.settings,
        target=snapshot.target,
        at=snapshot.at,
        llm_points=snapshot.llm_points,
    )
    return problem, observe(snapshot)


def judged(problem: Problem, policy: str, answer: PlanAnswer) -> PolicyPlan:
    """What one plan comes to. A plan that breaks rules keeps its figures, so that people see what was bought so."""
    plan = answer.plan
    report = answer.report
    broken = violations(problem, plan)
    by_type = used_gpus(plan)
    slack_percent, service = worst_slack(problem, plan)
    # Without a running plan the cost of moves is nothing, but every replica has to be started.
    current = problem.current or Plan(policy="none")
    return PolicyPlan(
        policy=policy,
        solution=report.solution,
        cost_usd_per_hour=_cost_usd_per_hour(problem, answer),
        lower_bound_usd_per_hour=report.lower_bound_usd_per_hour,
        gpus=by_type.total(),
        gpus_by_type=dict(sorted(by_type.items())),
        replicas=sum(gpu.count * len(gpu.replicas) for gpu in plan.gpus)
        + sum(each.count for each in plan.llm_replicas),
        starts=started(replace(problem, current=current), plan),
        unserved_percent=max(0.0, unserved_percent(problem, plan)),
        worst_slack_percent=slack_percent,
        worst_service=service,
        violations=len(broken),
        first_violation=next(map(_describe_violation, broken), ""),
        seconds=report.seconds,
    )


def _describe_violation(broken: Violation) -> str:
    return f"{broken.rule} at {broken.where}: {broken.detail}"


def _cost_usd_per_hour(problem: Problem, answer: PlanAnswer) -> float:
    """The plan's cost; where the plan names what the problem lacks, the cost that its policy states."""
    try:
        return cost_usd_per_hour(problem, answer.plan)
    except InvalidInput:
        return answer.report.cost_usd_per_hour


def worst_slack(problem: Problem, plan: Plan) -> tuple[float | None, str]:
    """The least room of all replicas in percent, and whose it is; see `PolicyPlan`. (None, "") where nothing runs."""
    reader = NeighbourReader(problem)
    rooms = [
        (
            _slack_percent(seat.replica.arrival_rate_rps, seat.capacity_rps),
            seat.replica.service,
        )
        for gpu in plan.gpus
        # None: the problem has no operating point for what the plan runs there.
        for seat in reader.seats(gpu) or ()
    ]
    return min(rooms) if rooms else (None, "")


def _slack_percent(rate_rps: float, capacity_rps: float) -> float:
    # By the larger of the two: a replica with twice its capacity is as far from it as one that is half full.
    larger_rps = max(rate_rps, capacity_rps)
    return (
        100.0 * (capacity_rps - rate_rps) / larger_rps if larger_rps > 0.0 else -100.0
    )
