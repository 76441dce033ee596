"""The joint planner on the shared planner problems, against their best known costs and bounds; `make bench-plan`.

Run: `python -m bench.plan [--only PART] [--threads N]`. Prints a table, writes bench/results/plan.json. Needs the
folder `../shared/problems` beside the checkout; without it there is nothing to compare with.

`must` and `aim` are USD per hour: on the V100s whole GPUs, for the rest factors on the best known cost or bound.
"""

import argparse
import gzip
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.cost import cost_usd_per_hour
from solvers.joint.solve import solve
from solvers.outcome import Budget
from solvers.policies.warm_up import warm_up
from solvers.problem import Problem
from solvers.problem_json import problem_from_json

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "problems"
V100_USD_PER_HOUR = 3.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one problem, in USD per hour."""

    name: str
    bound: float
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the plan of one problem may cost within which time."""

    seconds: float
    must: float
    aim: float


def main() -> int:
    """Plan every problem once, from nothing."""
    options = _options()
    if not FOLDER.is_dir():
        print("no shared problems beside this checkout")
        return 0
    warm_up()
    rows = [
        _row(known, goal, options.threads) for known in _known() if options.only in known.name for goal in _goals(known)
    ]
    print_table(rows)
    if not options.only:
        write_results("plan", rows)
    return 0


def _known() -> Iterator[Known]:
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, bound, best in re.findall(r"^\| (\w+) \| \d+ \| \d+ \| ([\d.]+) \| ([\d.]+) \|", table, re.M):
        yield Known(name=name, bound=float(bound), best=float(best))


def _goals(known: Known) -> Iterator[Goal]:
    if known.name.startswith("v100"):
        must, aim = _V100_GPUS[known.name]
        yield Goal(seconds=15.0, must=must * V100_USD_PER_HOUR, aim=aim * V100_USD_PER_HOUR)
    elif "1000x100" in known.name:
        yield Goal(seconds=2.0, must=1.04 * known.bound, aim=1.025 * known.bound)
        yield Goal(seconds=15.0, must=1.025 * known.bound, aim=1.01 * known.bound)
    elif "100x30" in known.name:
        yield Goal(seconds=5.0, must=1.02 * known.best, aim=known.best)
    else:
        yield Goal(seconds=5.0 if "4x8" in known.name else 10.0, must=1.001 * known.best, aim=known.best)


_V100_GPUS = {
    "v100_3models_n12_half": (3, 3),
    "v100_3models_n50_half": (10, 9),
    "v100_3models_n100_half": (20, 20),
    "v100_3models_n12_p98": (4, 4),
    "v100_3models_n50_p98": (13, 12),
    "v100_3models_n100_p98": (27, 27),
}
"""GPUs that must do and that are aimed at. iGniter needs 3, 10 and 22 under `half`."""


def _row(known: Known, goal: Goal, threads: int) -> Figures:
    problem = _load(known.name)
    began_s = time.perf_counter()
    budget = Budget(
        seconds=goal.seconds, work=goal.seconds, threads=threads, elapsed=lambda: time.perf_counter() - began_s
    )
    solution, report = solve(problem, budget)
    seconds = time.perf_counter() - began_s
    cost, bound = cost_usd_per_hour(problem, solution.plan), solution.cost_bound
    return {
        "problem": known.name,
        "limit_s": goal.seconds,
        "must": goal.must,
        "aim": goal.aim,
        "cost": cost,
        "met": "aim" if cost <= goal.aim + 1e-4 else "must" if cost <= goal.must + 1e-4 else "no",
        "best_known": known.best,
        "bound": bound,
        "known_bound": known.bound,
        "gap_percent": 100.0 * (cost / bound - 1.0) if bound is not None and bound > 0.0 else None,
        "status": str(report.status),
        "best_after_s": solution.found_s,
        "seconds": seconds,
        "unserved": len(solution.plan.unserved),
        "violations": len(violations(problem, solution.plan)),
    }


def _load(name: str) -> Problem:
    return problem_from_json(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--only", default="", metavar="PART", help="only problems whose name contains this")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
