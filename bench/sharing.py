"""SM shares: linear programmes in CVXPY next to exact searches, for limits of single replicas and for a whole GPU.

Run: `python -m bench.sharing`. Prints two tables, writes bench/results/sharing.json: the smallest SM percents that keep
limits (`solvers.sharing.exact` next to the scan of rows), and the division of a GPU for the most that its replicas do
together under SM percent and watts (`solvers.sharing.division` with the linear programme over mixtures of rows, which
is its bound, and what rounding the mixtures down to rows leaves).
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import cvxpy as cp
import numpy as np

from bench.report import Figures, print_table, write_results
from solvers.sharing.division import DividedRow, divide
from solvers.sharing.exact import solve_exact
from solvers.sharing.problem import LimitedCurve, ShareCurve, SharingProblem
from solvers.sharing.row_scan import smallest_rows

REPLICAS = (1, 8, 32, 100)
DIVIDED = (2, 3, 4, 6, 8)
"""Replicas on one GPU."""
ROWS = 20
REPEATS = 20
BUSY_W = 120.0
"""For all replicas of a GPU, of about 200 W that they would draw."""

Choices = Sequence[Sequence[DividedRow]]


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


def random_division(replicas: int, seed: int) -> Choices:
    """Rows of such curves: worth is requests per second of batch 8 by a priority; watts grow with the SM percent."""
    draw = random.Random(seed)
    made = []
    for replica in random_problem(replicas, seed).replicas:
        priority, watts = draw.uniform(0.2, 5.0), draw.uniform(0.8, 2.0)
        rates_rps = [8000.0 / time_ms for time_ms in replica.curve.execution_ms]
        made.append(
            [
                DividedRow(
                    sm, priority * rate_rps, watts * sm * (0.5 + 0.5 * sm / 100.0)
                )
                for sm, rate_rps in zip(
                    replica.curve.sm_percent, rates_rps, strict=True
                )
            ]
        )
    return made


def milliseconds(run: Callable[[], object]) -> float:
    """Wall-clock milliseconds of one call."""
    started = time.perf_counter()
    run()
    return 1000.0 * (time.perf_counter() - started)


def limits(replicas: int) -> Figures:
    """One row of the first table: first solve (compiles), median re-solve with other curves, and scan, which agree."""
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
        "CVXPY, first, ms": first,
        "CVXPY, again, ms": statistics.median(again),
        "scan, ms": statistics.median(scan),
        "agree": agree,
        "of": REPEATS,
    }


def division(replicas: int) -> Figures:
    """One row of the second table: times, how far the bound lies above the exact worth, and what rounding loses."""
    problems = [random_division(replicas, seed) for seed in range(REPEATS)]
    first = milliseconds(partial(mixtures, problems[0]))
    again = [milliseconds(partial(mixtures, problem)) for problem in problems]
    exact = [
        milliseconds(partial(divide, problem, power_w=BUSY_W)) for problem in problems
    ]
    above, lost = [], []
    for problem in problems:
        found = divide(problem, power_w=BUSY_W)
        assert found is not None, "the smallest rows fit"
        best = _worth(problem, found.places)
        bound, shares = mixtures(problem)
        above.append(100.0 * (bound / best - 1.0))
        lost.append(100.0 * (1.0 - _worth(problem, rounded(shares)) / best))
    return {
        "replicas": replicas,
        "CVXPY, first, ms": first,
        "CVXPY, again, ms": statistics.median(again),
        "exact, ms": statistics.median(exact),
        "exact, longest, ms": max(exact),
        "bound above, mean, %": statistics.fmean(above),
        "rounded down loses, mean, %": statistics.fmean(lost),
        "worst, %": max(lost),
    }


def mixtures(problem: Choices) -> tuple[float, np.ndarray]:
    """The linear programme over mixtures of each replica's rows: its value, and the mixtures (R, K)."""
    programme, mixture, worth, power_w = _programme(len(problem), len(problem[0]))
    worth.value = np.array([[row.worth for row in rows] for rows in problem])
    power_w.value = np.array([[row.power_w for row in rows] for rows in problem])
    value = float(programme.solve(solver=cp.CLARABEL))
    return value, np.asarray(mixture.value)


def rounded(shares: np.ndarray) -> list[int]:
    """The largest row that is not above each replica's mean share: keeps both sums, for power grows with the share."""
    mean_percent = shares @ np.array([5.0 * (row + 1) for row in range(ROWS)])
    return [max(0, int(percent / 5.0 + 1e-6) - 1) for percent in mean_percent]


@lru_cache
def _programme(
    replicas: int, rows: int
) -> tuple[cp.Problem, cp.Variable, cp.Parameter, cp.Parameter]:
    """maximise Σ v x  subject to  Σ p x ≤ 100,  Σ w x ≤ BUSY_W,  Σ_k x_rk = 1,  x ≥ 0; compiled once per size."""
    mixture = cp.Variable((replicas, rows), nonneg=True)
    worth, power_w = cp.Parameter((replicas, rows)), cp.Parameter((replicas, rows))
    sm_percent = np.array([5.0 * (row + 1) for row in range(ROWS)])
    constraints = [
        cp.sum(mixture @ sm_percent) <= 100.0,
        cp.sum(cp.multiply(power_w, mixture)) <= BUSY_W,
        cp.sum(mixture, axis=1) == 1.0,
    ]
    objective = cp.Maximize(cp.sum(cp.multiply(worth, mixture)))
    return cp.Problem(objective, constraints), mixture, worth, power_w


def _worth(problem: Choices, rows: Sequence[int]) -> float:
    return sum(of[row].worth for of, row in zip(problem, rows, strict=True))


def main() -> None:
    """Print the tables, write the JSON."""
    tables = {
        "smallest SM percents within limits": [limits(count) for count in REPLICAS],
        "division of one GPU": [division(count) for count in DIVIDED],
    }
    for title, rows in tables.items():
        print(f"\n{title}")
        print_table(rows)
    write_results(
        "sharing",
        [{"table": title, **row} for title, rows in tables.items() for row in rows],
    )


if __name__ == "__main__":
    main()
