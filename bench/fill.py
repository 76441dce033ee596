"""Tasks on what services leave over: the program of `joint` next to the greedy; `python -m bench.fill`.

Random fleets of the laws in `tests/solvers/factories.py`, which can be followed by hand: replicas at random rates,
a fifth of the GPUs idle, tasks of random priority, weight, deadline and waiting time. Counts how much weighted progress
and how many deadlines either keeps, what it pays for, and how long it takes.
"""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from bench.report import print_table, write_results
from solvers.backfill import exact, greedy
from solvers.backfill.exact import FillProgram
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.types.plan import BoundGpu
from solvers.types.problem import OperatingPoints
from tests.solvers.factories import POINTS, a_gpu, a_plan, a_task, bound_gpu, to_fill

SIZES = ((4, 3), (8, 8), (16, 16), (32, 32), (40, 48))
"""GPUs and tasks."""
INSTANCES = 20
SPEED_EXPONENT = 0.6
"""Of the SM percent: training gains less and less from more SMs."""

Row = dict[str, str | int | float]
Fill = Callable[[FillProblem], tuple[BoundGpu, ...]]


def random_case(gpus: int, tasks: int, seed: int, *, is_plain: bool) -> FillProblem:
    """Nothing runs yet but replicas; plain: nothing is due, and none has waited, so that only progress counts."""
    draw = random.Random(f"{gpus} {tasks} {seed}")
    fleet = [
        a_gpu(number, draw.choice(("cheap", "cheap", "dear"))) for number in range(gpus)
    ]
    bound = a_plan(
        *(
            bound_gpu(gpu, rate_rps=draw.uniform(1.0, 98.0))
            for gpu in fleet[: (4 * gpus + 4) // 5]
        )
    )
    jobs = [
        a_task(
            f"t{number:02}",
            priority=draw.choice((1.0, 2.0, 5.0)),
            weight=draw.random(),
            waiting_s=0.0 if is_plain else draw.choice((0.0, 100.0, 500.0, 700.0)),
            due_in_s=None
            if is_plain
            else draw.choice((None, None, draw.uniform(60.0, 900.0))),
        )
        for number in range(tasks)
    ]
    return replace(to_fill(bound, jobs, fleet), points=tuple(map(_concave, POINTS)))


def _concave(points: OperatingPoints) -> OperatingPoints:
    whole_ms = points.rows[-1].run_ms
    rows = (
        row._replace(run_ms=whole_ms * (100.0 / row.sm_percent) ** SPEED_EXPONENT)
        for row in points.rows
    )
    return replace(points, rows=tuple(rows))


def measure(gpus: int, tasks: int, *, is_plain: bool) -> list[Row]:
    """One row per method."""
    cases = [
        random_case(gpus, tasks, seed, is_plain=is_plain) for seed in range(INSTANCES)
    ]
    judges = [FillProgram(case, FillLimits()) for case in cases]
    rows = []
    filled: dict[str, list[tuple[BoundGpu, ...]]] = {}
    methods: dict[str, Fill] = {"greedy": greedy.fill, "exact": exact.fill}
    for name, fill in methods.items():
        times_ms = []
        filled[name] = []
        for case in cases:
            began = time.perf_counter()
            filled[name].append(fill(case))
            times_ms.append(1000.0 * (time.perf_counter() - began))
        found = [
            _figures(judge, case, gpus)
            for judge, case, gpus in zip(judges, cases, filled[name], strict=True)
        ]
        rows.append(
            {
                "gpus": gpus,
                "tasks": tasks,
                "deadlines": "none" if is_plain else "some",
                "method": name,
                **{
                    key: round(statistics.mean(each[key] for each in found), 3)
                    for key in found[0]
                },
                "worse than greedy": sum(
                    judge.worth(mine) < judge.worth(other) - 1e-9
                    for judge, mine, other in zip(
                        judges, filled[name], filled["greedy"], strict=True
                    )
                ),
                "ms median": round(statistics.median(times_ms), 1),
                "ms worst": round(max(times_ms), 1),
            }
        )
    return rows


def _figures(
    judge: FillProgram, case: FillProblem, gpus: tuple[BoundGpu, ...]
) -> dict[str, float]:
    """Tasks that run, their weighted speed, and USD per hour of GPUs without replicas."""
    speeds = []
    for gpu in gpus:
        host = judge.offers.host(gpu)
        for at, (bound, _) in enumerate(host.residents):
            standing = judge.offers.known[bound.name]
            speeds.append(
                standing.weight * min(1.0, standing.alone_ms / host.pace_ms(at))
            )
    paid = (
        case.problem.gpu_type(gpu.gpu_type).price_usd_per_hour
        for gpu in gpus
        if not gpu.replicas
    )
    return {
        "run": float(len(speeds)),
        "weighted speed": sum(speeds),
        "paid usd/h": sum(paid),
        "worth": judge.worth(gpus),
    }


def main() -> int:
    """Print and write the table."""
    rows = [
        row
        for is_plain in (True, False)
        for size in SIZES
        for row in measure(*size, is_plain=is_plain)
    ]
    print_table(rows)
    write_results("fill", rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
