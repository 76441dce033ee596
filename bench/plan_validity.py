"""Plans of the policy `joint` for 2,000 random problems, checked rule by rule and figure by figure.

Run: `python -m bench.plan_validity [PROBLEMS]`. Prints a table, writes bench/results/plan_validity.json; exits with
1 when any plan or report breaks a rule. The problems are drawn from the contract's example: services, rates, limits,
stocks, prices, objective and running plan all vary, down to nothing to serve, nothing to serve with, and SLOs that
nothing meets.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.report import Figures, print_table, write_results
from solvers.check import report_violations, violations
from solvers.outcome import Budget
from solvers.policies import policy
from solvers.policies.warm_up import warm_up
from solvers.problem import Objective, Problem, ServiceDemand
from solvers.problem_json import problem_from_json
from solvers.state import Observed

EXAMPLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "example_problem.json"
PROBLEMS = 2000
WORK = 0.02


def main() -> int:
    """Plan all problems, each from nothing and then from its own plan with other rates."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PROBLEMS
    warm_up()
    rows = list(validity(count))
    print_table(rows)
    write_results("plan_validity", rows)
    return 1 if any(row["broken"] for row in rows) else 0


def validity(count: int) -> Iterator[Figures]:
    """One row per objective, over half of the problems each."""
    example = problem_from_json(EXAMPLE.read_bytes())
    for objective in ("min_cost", "max_goodput"):
        yield _row(example, objective, count // 2)


def _row(example: Problem, objective: str, count: int) -> Figures:
    seconds, statuses, broken = [], Counter[str](), 0
    for seed in range(count):
        draw = random.Random(f"{objective} {seed}")
        problem = _problem(example, "min_cost" if objective == "min_cost" else "max_goodput", draw)
        for _ in range(2):
            began_s = time.perf_counter()
            plan, report, _memory = policy("joint").make_plan(
                problem, Observed(at_s=0.0), None, Budget(work=WORK, seed=seed)
            )
            seconds.append(time.perf_counter() - began_s)
            statuses[report.status] += 1
            found = violations(problem, plan) + report_violations(problem, plan, report)
            broken += bool(found)
            if found:
                print(f"{objective} {seed}: {found[0]}", file=sys.stderr)
            problem = replace(
                problem, current=plan, services=tuple(_other_rate(each, draw) for each in problem.services)
            )
    return {
        "objective": objective,
        "problems": count,
        "plans": len(seconds),
        "broken": broken,
        **{status: statuses[status] for status in ("optimal", "feasible", "greedy", "kept")},
        "ms_mean": 1000.0 * sum(seconds) / max(1, len(seconds)),
        "ms_max": 1000.0 * max(seconds, default=0.0),
    }


def _problem(example: Problem, objective: Objective, draw: random.Random) -> Problem:
    stocks = (0, 1, 2, 5) if objective == "max_goodput" else (0, 1, 2, 5, None, None)
    types = tuple(
        replace(
            gpu_type,
            count=draw.choice(stocks),
            price_usd_per_hour=gpu_type.price_usd_per_hour * draw.choice((0.01, 1.0, 1.0, 40.0)),
            memory_mib=gpu_type.memory_mib * draw.choice((0.1, 1.0, 1.0, 1.0)),
            power_cap_w=max(gpu_type.idle_w, gpu_type.power_cap_w * draw.choice((0.3, 1.0, 1.0, 1.0))),
        )
        for gpu_type in example.gpu_types
    )
    return replace(
        example,
        objective=objective,
        energy_price_usd_per_kwh=draw.choice((0.0, 0.2, 3.0)),
        max_replicas_per_gpu=draw.choice((1, 2, 3, 6)),
        migration_cost_usd_per_hour=draw.choice((0.0, 0.05, 1.0)),
        gpu_types=types[: draw.choice((1, 2, 2, 2))],
        services=tuple(_service(example, number, draw) for number in range(draw.choice((0, 1, 2, 3, 5, 8)))),
        points=tuple(
            points
            for points in example.points
            if points.gpu_type in {one.name for one in types} and draw.random() < 0.9
        ),
    )


def _service(example: Problem, number: int, draw: random.Random) -> ServiceDemand:
    kind = draw.choice(example.services)
    fewest = draw.choice((0, 0, 0, 1, 3))
    return replace(
        kind,
        name=f"s{number}",
        slo_ms=kind.slo_ms * draw.choice((0.05, 0.7, 1.0, 3.0)),
        arrival_rate_rps=kind.arrival_rate_rps * draw.choice((0.0, 1e-6, 0.3, 1.0, 4.0, 30.0)) * draw.uniform(0.5, 1.5),
        priority=draw.choice((0.01, 1.0, 1.0, 100.0)),
        min_replicas=fewest,
        max_replicas=draw.choice((None, None, fewest, fewest + 2)),
        allowed_gpu_types=draw.choice((None, None, None, (), (example.gpu_types[0].name,))),
    )


def _other_rate(service: ServiceDemand, draw: random.Random) -> ServiceDemand:
    return replace(service, arrival_rate_rps=service.arrival_rate_rps * draw.choice((0.0, 0.9, 1.0, 1.1, 2.0)))


if __name__ == "__main__":
    sys.exit(main())
