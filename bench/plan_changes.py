"""Parts of `bench.plan`: plans after a change, from the running plan and what the planner remembers of it."""

import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.plan_runs import Rows, judged, known_problems, load, relax
from bench.synthetic_problems import synthetic_problem
from solvers.check import violations
from solvers.cost import cost_usd_per_hour, migration_cost_usd_per_hour
from solvers.outcome import Budget
from solvers.plan import Plan
from solvers.policies import policy
from solvers.problem import Problem
from solvers.state import Json, Observed

NAME = "synthetic_1000x100_s1"
_FIRST_LIMIT_S = 15.0
_LP_LIMIT_S = 8.0
_ALL_LIMIT_S, _ONE_LIMIT_S = 0.5, 0.05
_ALL_CHANGES, _ONE_CHANGES = 4, 20
_PER_START_USD_PER_HOUR = 0.05
"""Migration cost: what a start may save at least to be worth it. 50 replicas as much as the dearest GPU."""
_TICK_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One plan made from a running one."""

    seconds: float
    started_percent: float
    """Replicas started, of those that the new plan has."""
    cost: float
    is_sound: bool


def changes(threads: int, *, is_quick: bool) -> Rows:
    """1000 × 100: every rate up or down by at most 10 %, four times, then one service's rate; tick after tick."""
    is_shared = NAME in known_problems()
    problem = load(NAME) if is_shared else synthetic_problem(1000, 100, 1)
    name = NAME if is_shared else "generated_1000x100_s1"
    problem = replace(problem, migration_cost_usd_per_hour=_PER_START_USD_PER_HOUR)
    planner = _Planner(problem, 2.0 if is_quick else _FIRST_LIMIT_S, threads)
    draw = random.Random(1)
    changed, overs = [], []
    for _ in range(1 if is_quick else _ALL_CHANGES):
        factors = {service.name: draw.uniform(0.9, 1.1) for service in problem.services}
        wanted = _scaled(planner.problem, factors)
        change = planner.change(wanted, _ALL_LIMIT_S)
        changed.append(change)
        overs.append(100.0 * (change.cost / relax(wanted, _LP_LIMIT_S, threads).objective - 1.0))
    is_sound = all(change.is_sound for change in changed)
    for figure, values, goal in (
        ("±10 % on all: ms", [1000.0 * change.seconds for change in changed], (500.0, 100.0)),
        ("±10 % on all: % of replicas started", [change.started_percent for change in changed], (5.0, 3.0)),
        ("±10 % on all: % over new LP", overs, (5.0, 3.0)),
    ):
        yield {
            **judged(name, figure, max(values), goal, is_sound=is_sound),
            "median": statistics.median(values),
            "plans": len(values),
        }
    singles = []
    for service in draw.sample(problem.services, _ONE_CHANGES // (4 if is_quick else 1)):
        wanted = _scaled(planner.problem, {service.name: draw.choice((0.8, 0.9, 1.1, 1.25))})
        singles.append(planner.change(wanted, _ONE_LIMIT_S))
    milliseconds = [1000.0 * change.seconds for change in singles]
    yield {
        **judged(
            name,
            "one service: ms",
            max(milliseconds),
            (50.0, 15.0),
            is_sound=all(change.is_sound for change in singles),
        ),
        "median": statistics.median(milliseconds),
        "plans": len(singles),
    }
    yield {
        **judged(
            name, "one service: % of replicas started", max(each.started_percent for each in singles), (None, None)
        ),
        "median": statistics.median(each.started_percent for each in singles),
        "plans": len(singles),
    }


class _Planner:
    """The policy as the control loop uses it: the last plan runs, its memory comes back with the next tick."""

    def __init__(self, problem: Problem, limit_s: float, threads: int) -> None:
        self.problem = problem
        self._threads = threads
        self._at_s = 0.0
        self._memory: Json = None
        self._plan(problem, limit_s)

    def change(self, problem: Problem, limit_s: float) -> _Change:
        """The plan of the next tick, made and running."""
        plan, seconds = self._plan(problem, limit_s)
        starts = migration_cost_usd_per_hour(problem, plan) / problem.migration_cost_usd_per_hour
        replicas = sum(gpu.count * len(gpu.replicas) for gpu in plan.gpus)
        return _Change(
            seconds=seconds,
            started_percent=100.0 * starts / replicas,
            cost=cost_usd_per_hour(problem, plan),
            is_sound=not plan.unserved and not violations(problem, plan),
        )

    def _plan(self, problem: Problem, limit_s: float) -> tuple[Plan, float]:
        self._at_s += _TICK_S
        began_s = time.perf_counter()
        budget = Budget(seconds=limit_s, threads=self._threads, elapsed=lambda: time.perf_counter() - began_s)
        plan, _, self._memory = policy("joint").make_plan(problem, Observed(at_s=self._at_s), self._memory, budget)
        seconds = time.perf_counter() - began_s
        self.problem = replace(problem, current=plan)
        return plan, seconds


def _scaled(problem: Problem, factors: Mapping[str, float]) -> Problem:
    return replace(
        problem,
        services=tuple(
            replace(each, arrival_rate_rps=each.arrival_rate_rps * factors.get(each.name, 1.0))
            for each in problem.services
        ),
    )
