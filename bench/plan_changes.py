"""Parts of `bench.plan`: plans after a change, from the running plan and what the planner remembers of it."""

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.store.store import PolicySettings
from bench.plan_runs import Rows, judged, known_problems, load, relax
from bench.synthetic_problems import synthetic_problem
from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour, migration_cost_usd_per_hour
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "synthetic_1000x100_s1"
_FIRST_LIMIT_S = 15.0
_LP_LIMIT_S = 8.0
_ALL_LIMIT_S, _ONE_LIMIT_S = 0.5, 0.05
_ALL_CHANGES, _ONE_CHANGES = 3, 20
_PER_START_USD_PER_HOUR = 0.05
"""Migration cost: what a start may save at least to be worth it. 50 replicas as much as the dearest GPU."""
SETTINGS = PolicySettings()
"""What a new project begins with: how often it plans, and how willing it is to rearrange what runs."""


_Goal = tuple[float | None, float | None]
_ALL_GOALS: Mapping[str, _Goal] = {
    "milliseconds": (250.0, 100.0),
    "started_percent": (4.0, 3.0),
    "over_lp_percent": (3.5, 3.0),
}
_ONE_GOALS: Mapping[str, _Goal] = {
    "milliseconds": (50.0, 15.0),
    "started_percent": (None, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One plan made from a running one."""

    milliseconds: float
    started_percent: float
    """Replicas started, of those that the new plan has."""
    cost: float
    is_sound: bool
    over_lp_percent: float = math.nan
    """Of the cost over the relaxation for the new rates."""


def changes(threads: int, *, is_quick: bool) -> Rows:
    """1000 × 100: every rate up or down by at most 10 %, then one service's rate; tick after tick, as settings say.

    Most ticks serve what is new at once; when the dwell is over, a tick may rearrange what runs to save cost too.
    """
    is_shared = NAME in known_problems()
    problem = load(NAME) if is_shared else synthetic_problem(1000, 100, 1)
    name = NAME if is_shared else "generated_1000x100_s1"
    problem = replace(problem, migration_cost_usd_per_hour=_PER_START_USD_PER_HOUR)
    planner = _Planner(problem, 5.0 if is_quick else _FIRST_LIMIT_S, threads)
    draw = random.Random(1)
    for kind, pause_s in (
        ("at once", SETTINGS.period_s),
        ("may rearrange", SETTINGS.min_dwell_s + 1.0),
    ):
        changed = []
        for _ in range(1 if is_quick else _ALL_CHANGES):
            wanted = _scaled(
                planner.problem,
                {one.name: draw.uniform(0.9, 1.1) for one in problem.services},
            )
            change = planner.change(wanted, _ALL_LIMIT_S, pause_s)
            lp = relax(wanted, _LP_LIMIT_S, threads).objective
            changed.append(
                replace(change, over_lp_percent=100.0 * (change.cost / lp - 1.0))
            )
        yield from _rows(name, f"±10 %, {kind}", changed, _ALL_GOALS)
    singles = []
    for service in draw.sample(
        problem.services, _ONE_CHANGES // (4 if is_quick else 1)
    ):
        wanted = _scaled(
            planner.problem, {service.name: draw.choice((0.8, 0.9, 1.1, 1.25))}
        )
        singles.append(
            planner.change(wanted, _ONE_LIMIT_S, SETTINGS.period_s / _ONE_CHANGES)
        )
    yield from _rows(name, "one service", singles, _ONE_GOALS)


def _rows(
    case: str, what: str, changed: Sequence[_Change], goals: Mapping[str, _Goal]
) -> Rows:
    """One row per goal: the worst of all changes, and the median."""
    fault = None if all(change.is_sound for change in changed) else "broken"
    for figure, goal in goals.items():
        values = [getattr(change, figure) for change in changed]
        yield {
            **judged(case, f"{what}: {figure}", max(values), goal, fault=fault),
            "median": statistics.median(values),
            "plans": len(values),
        }


class _Planner:
    """The policy as the control loop uses it: the last plan runs, its memory comes back with the next tick."""

    def __init__(self, problem: Problem, limit_s: float, threads: int) -> None:
        self.problem = problem
        self._threads = threads
        self._at_s = 0.0
        self._memory: Json = None
        self._plan(problem, limit_s)

    def change(self, problem: Problem, limit_s: float, pause_s: float) -> _Change:
        """The plan of a tick so long after the last one, made and running."""
        self._at_s += pause_s
        plan, seconds = self._plan(problem, limit_s)
        starts = (
            migration_cost_usd_per_hour(problem, plan)
            / problem.migration_cost_usd_per_hour
        )
        replicas = sum(gpu.count * len(gpu.replicas) for gpu in plan.gpus)
        return _Change(
            milliseconds=1000.0 * seconds,
            started_percent=100.0 * starts / replicas,
            cost=cost_usd_per_hour(problem, plan),
            is_sound=not plan.unserved and not violations(problem, plan),
        )

    def _plan(self, problem: Problem, limit_s: float) -> tuple[Plan, float]:
        began_s = time.perf_counter()
        budget = Budget(
            seconds=limit_s,
            threads=self._threads,
            stability=SETTINGS.stability,
            elapsed=lambda: time.perf_counter() - began_s,
        )
        plan, _, self._memory = policy("joint").make_plan(
            problem, Observed(at_s=self._at_s), self._memory, budget
        )
        seconds = time.perf_counter() - began_s
        self.problem = replace(problem, current=plan)
        return plan, seconds


def _scaled(problem: Problem, factors: Mapping[str, float]) -> Problem:
    return replace(
        problem,
        services=tuple(
            replace(
                each,
                arrival_rate_rps=each.arrival_rate_rps * factors.get(each.name, 1.0),
            )
            for each in problem.services
        ),
    )
