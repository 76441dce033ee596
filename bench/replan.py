"""Re-planning of a running fleet after changes of its rates: time, replicas started, cost over the new relaxation.

Run: `python -m bench.replan [--problem NAME] [--seconds S] [--threads N] [--seeds N]`. Prints a table, writes
bench/results/replan.json. Needs the folder `../shared/problems` beside the checkout.

The policy `joint` plans the problem from nothing, then again after every rate has changed by up to 10 %, uniformly and
independently, and after one service's rate has changed; each time from the first plan, with the settings of the control
loop, before the dwell has passed. `relaxation` is what column generation finds for the new rates: no plan costs much
less.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.control.store import PolicySettings
from bench.plan_runs import FOLDER, load
from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.cost import started
from solvers.joint.prices import relax
from solvers.outcome import Budget, PlanReport
from solvers.plan import Plan
from solvers.policies import policy
from solvers.policies.warm_up import warm_up
from solvers.problem import Problem
from solvers.state import Json, Observed

RELAXATION_S = 5.0
FACTORS = (1.05, 1.1, 1.2, 1.3, 0.9, 0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The same fleet under other rates."""

    name: str
    problem: Problem
    has_relaxation: bool


def main() -> int:
    """Plan once from nothing, then from that plan for every case."""
    options = _options()
    if not FOLDER.is_dir():
        print("no shared problems beside this checkout")
        return 0
    warm_up()
    problem = load(options.problem)
    plan, _, memory, _ = _timed(problem, options.seconds, options.threads, at_s=0.0, memory=None)
    rows = []
    for number, case in enumerate(_cases(replace(problem, current=plan), options.seeds)):
        settings = PolicySettings()
        found, report, memory, seconds = _timed(
            case.problem, settings.solve_seconds, options.threads, at_s=1.0 + 0.1 * number, memory=memory
        )
        rows.append(_row(case, found, report, seconds))
    print_table(rows)
    write_results("replan", rows)
    return 0


def _cases(running: Problem, seeds: int) -> Iterator[Case]:
    for seed in range(1, seeds + 1):
        draw = random.Random(seed)
        factors = [draw.uniform(0.9, 1.1) for _ in running.services]
        yield Case(name=f"all ±10 %, seed {seed}", problem=_with(running, factors), has_relaxation=True)
    for seed, factor in enumerate(FACTORS):
        chosen = random.Random(seed).randrange(len(running.services))
        factors = [factor if number == chosen else 1.0 for number in range(len(running.services))]
        yield Case(name=f"one × {factor}", problem=_with(running, factors), has_relaxation=False)


def _with(problem: Problem, factors: list[float]) -> Problem:
    services = zip(problem.services, factors, strict=True)
    return replace(
        problem,
        services=tuple(replace(each, arrival_rate_rps=factor * each.arrival_rate_rps) for each, factor in services),
    )


def _timed(
    problem: Problem, seconds: float, threads: int, *, at_s: float, memory: Json
) -> tuple[Plan, PlanReport, Json, float]:
    """The policy's answer and the seconds that it took."""
    began_s = time.perf_counter()
    budget = Budget(
        seconds=seconds,
        work=seconds,
        threads=threads,
        elapsed=lambda: time.perf_counter() - began_s,
        stability=PolicySettings().stability,
    )
    plan, report, memory = policy("joint").make_plan(problem, Observed(at_s=at_s), memory, budget)
    return plan, report, memory, time.perf_counter() - began_s


def _row(case: Case, plan: Plan, report: PlanReport, seconds: float) -> Figures:
    assert case.problem.current is not None
    running = sum(gpu.count * len(gpu.replicas) for gpu in case.problem.current.gpus)
    starts = started(case.problem, plan)
    relaxation = _relaxation(case.problem) if case.has_relaxation else None
    cost = report.cost_usd_per_hour
    return {
        "case": case.name,
        "ms": 1000.0 * seconds,
        "cost": cost,
        "relaxation": relaxation,
        "over_percent": None if relaxation is None else 100.0 * (cost / relaxation - 1.0),
        "started": starts,
        "started_percent": 100.0 * starts / running,
        "unserved": len(plan.unserved),
        "violations": len(violations(case.problem, plan)),
    }


def _relaxation(problem: Problem) -> float:
    end_s = time.perf_counter() + RELAXATION_S
    relaxed = relax(replace(problem, current=None), is_over=lambda: time.perf_counter() >= end_s)
    assert relaxed is not None
    return relaxed.cost_usd_per_hour


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replan", description=__doc__)
    parser.add_argument("--problem", default="synthetic_1000x100_s1")
    parser.add_argument("--seconds", type=float, default=15.0, help="for the first plan")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
