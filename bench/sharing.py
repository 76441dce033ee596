"""Sharing: time of the linear programmes and of the scan, by number of replicas; `python -m bench.sharing`."""

import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from solvers.sharing.exact import solve_exact
from solvers.sharing.problem import LimitedCurve, ShareCurve, SharingProblem
from solvers.sharing.row_scan import smallest_rows

RESULTS = Path("bench/results/sharing.json")
REPLICAS = (1, 8, 32, 100)
ROWS = 20
REPEATS = 20

Row = dict[str, float | int]


def random_problem(replicas: int, seed: int) -> SharingProblem:
    """Falling convex curves with a knee, 20 rows each, and limits between their ends."""
    draw = random.Random(seed)
    sm_percent = tuple(5.0 * (row + 1) for row in range(ROWS))
    made = []
    for number in range(replicas):
        floor, area, knee = (
            draw.uniform(1.0, 10.0),
            draw.uniform(100.0, 900.0),
            draw.uniform(20.0, 90.0),
        )
        execution_ms = tuple(
            floor + area / min(sm, knee) - 0.001 * sm for sm in sm_percent
        )
        limit_ms = draw.uniform(execution_ms[-1], execution_ms[0])
        curve = ShareCurve(sm_percent=sm_percent, execution_ms=execution_ms)
        made.append(
            LimitedCurve(name=f"replica-{number}", curve=curve, limit_ms=limit_ms)
        )
    return SharingProblem(replicas=tuple(made))


def milliseconds(run: Callable[[], object]) -> float:
    """Wall-clock milliseconds of one call."""
    started = time.perf_counter()
    run()
    return 1000.0 * (time.perf_counter() - started)


def measure(replicas: int) -> Row:
    """One row of the table: first solve (compiles), median re-solve with other curves, and scan; all must agree."""
    problems = [random_problem(replicas, seed) for seed in range(REPEATS)]
    first = milliseconds(partial(solve_exact, problems[0], seconds=10.0))
    again = [
        milliseconds(partial(solve_exact, problem, seconds=10.0))
        for problem in problems
    ]
    scan = [milliseconds(partial(smallest_rows, problem)) for problem in problems]
    agree = sum(
        solve_exact(problem, seconds=10.0)[0] == smallest_rows(problem)
        for problem in problems
    )
    return {
        "replicas": replicas,
        "first ms": round(first, 1),
        "re-solve p50 ms": round(statistics.median(again), 2),
        "scan p50 ms": round(statistics.median(scan), 3),
        "agree": agree,
        "of": REPEATS,
    }


def main() -> None:
    """Print the table and write it to `bench/results/`."""
    rows = [measure(replicas) for replicas in REPLICAS]
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(f"{value!s:>{len(name)}}" for name, value in row.items()))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
