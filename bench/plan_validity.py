"""Part of `bench.plan`: plans of the policy `joint` for random problems, checked rule by rule and figure by figure.

They are drawn from two templates, the contract's example and a generated problem: services, rates, limits, stocks,
prices, objective and running plan all vary, down to nothing to serve, nothing to serve with, and SLOs that nothing
meets. Each is planned from nothing, then from its own plan with other rates; so is the contract's example itself.
"""

import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.plan_runs import Rows, judged
from bench.report import Figures
from bench.synthetic_problems import synthetic_problem
from solvers.check import violations
from solvers.check_report import report_violations
from solvers.policies.registry import policy
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.outcome import PLAN_STATUSES, Budget
from solvers.types.problem import Objective, Problem, ServiceDemand
from solvers.types.state import Observed

EXAMPLE = (
    Path(__file__).resolve().parents[1] / "tests" / "data" / "example_problem.json"
)
_FROM_EXAMPLE, _FROM_GENERATED = 1000, 100
"""Problems of each objective."""
_QUICK_DIVISOR = 20
_WORK = 0.02
_OBJECTIVES: tuple[Objective, ...] = ("min_cost", "max_goodput")


def validity(threads: int, *, is_quick: bool) -> Rows:  # noqa: ARG001  the problems are tiny
    """No plan and no report breaks a rule."""
    example, generated = (
        problem_from_json(EXAMPLE.read_bytes()),
        synthetic_problem(4, 8, 1),
    )
    yield _row("contract_example", example, None, 1)
    for objective in _OBJECTIVES:
        for name, template, count in (
            ("example", example, _FROM_EXAMPLE),
            ("4x8", generated, _FROM_GENERATED),
        ):
            yield _row(
                f"like_{name}",
                template,
                objective,
                count // (_QUICK_DIVISOR if is_quick else 1),
            )


def _row(
    case: str, template: Problem, objective: Objective | None, count: int
) -> Figures:
    """`count` problems that are like the template; without an objective the template itself."""
    seconds, statuses, broken = [], Counter[str](), 0
    for seed in range(count):
        draw = random.Random(f"{objective} {seed}")
        problem = template if objective is None else _problem(template, objective, draw)
        for _ in range(2):
            began_s = time.perf_counter()
            budget = Budget(work=_WORK, seed=seed)
            plan, report, _memory = policy("joint").make_plan(
                problem, Observed(at_s=0.0), None, budget
            )
            seconds.append(time.perf_counter() - began_s)
            statuses[report.status] += 1
            found = violations(problem, plan) + report_violations(problem, plan, report)
            broken += bool(found)
            if found:
                print(f"{case} {objective} {seed}: {found[0]}", file=sys.stderr)
            problem = replace(
                problem,
                current=plan,
                services=tuple(_other_rate(each, draw) for each in problem.services),
            )
    fault = "broken" if broken else None
    return {
        **judged(
            case,
            f"broken, {objective or template.objective}",
            float(broken),
            (0.0, 0.0),
            fault=fault,
        ),
        "problems": count,
        "plans": len(seconds),
        **{status: statuses[status] for status in PLAN_STATUSES},
        "ms_mean": 1000.0 * sum(seconds) / len(seconds),
        "ms_max": 1000.0 * max(seconds),
    }


def _problem(template: Problem, objective: Objective, draw: random.Random) -> Problem:
    stocks = (0, 1, 2, 5) if objective == "max_goodput" else (0, 1, 2, 5, None, None)
    types = tuple(
        replace(
            gpu_type,
            count=draw.choice(stocks),
            price_usd_per_hour=gpu_type.price_usd_per_hour
            * draw.choice((0.01, 1.0, 1.0, 40.0)),
            memory_mib=gpu_type.memory_mib * draw.choice((0.1, 1.0, 1.0, 1.0)),
            power_cap_w=max(
                gpu_type.idle_w,
                gpu_type.power_cap_w * draw.choice((0.3, 1.0, 1.0, 1.0)),
            ),
        )
        for gpu_type in template.gpu_types
    )
    return replace(
        template,
        objective=objective,
        energy_price_usd_per_kwh=draw.choice((0.0, 0.2, 3.0)),
        max_replicas_per_gpu=draw.choice((1, 2, 3, 6)),
        migration_cost_usd_per_hour=draw.choice((0.0, 0.05, 1.0)),
        gpu_types=types[: draw.choice((1, 2, len(types), len(types)))],
        services=tuple(
            _service(template, number, draw)
            for number in range(draw.choice((0, 1, 2, 3, 5, 8)))
        ),
        points=tuple(
            points
            for points in template.points
            if points.gpu_type in {one.name for one in types} and draw.random() < 0.9
        ),
    )


def _service(template: Problem, number: int, draw: random.Random) -> ServiceDemand:
    kind = draw.choice(template.services)
    fewest = draw.choice((0, 0, 0, 1, 3))
    return replace(
        kind,
        name=f"s{number}",
        slo_ms=kind.slo_ms * draw.choice((0.05, 0.7, 1.0, 3.0)),
        arrival_rate_rps=kind.arrival_rate_rps
        * draw.choice((0.0, 1e-6, 0.3, 1.0, 4.0, 30.0))
        * draw.uniform(0.5, 1.5),
        priority=draw.choice((0.01, 1.0, 1.0, 100.0)),
        min_replicas=fewest,
        max_replicas=draw.choice((None, None, fewest, fewest + 2)),
        allowed_gpu_types=draw.choice(
            (None, None, None, (), (template.gpu_types[0].name,))
        ),
    )


def _other_rate(service: ServiceDemand, draw: random.Random) -> ServiceDemand:
    return replace(
        service,
        arrival_rate_rps=service.arrival_rate_rps
        * draw.choice((0.0, 0.9, 1.0, 1.1, 2.0)),
    )
