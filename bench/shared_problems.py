"""How far `hetsev` is from the best known costs of the shared planner problems.

Run: `python -m bench.shared_problems`. Prints a table, writes bench/results/shared_problems.json. Needs the folder
`../shared/problems` beside the checkout; without it there is nothing to compare with.
"""

import gzip
import re
import sys
import time
from pathlib import Path

from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.outcome import Budget
from solvers.policies import policy
from solvers.policies.warm_up import warm_up
from solvers.problem_json import problem_from_json
from solvers.state import Observed

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "problems"
BUDGET_S = 2.0


def main() -> int:
    """Plan every problem once, from nothing."""
    if not FOLDER.is_dir():
        print("no shared problems beside this checkout")
        return 0
    warm_up()
    best = re.findall(r"^\| (\w+) \| \d+ \| \d+ \| [\d.]+ \| ([\d.]+) \|", (FOLDER / "README.md").read_text(), re.M)
    rows = [_row(name, float(cost)) for name, cost in best]
    print_table(rows)
    write_results("shared_problems", rows)
    return 0


def _row(name: str, best_usd_per_hour: float) -> Figures:
    problem = problem_from_json(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    began_s = time.perf_counter()
    budget = Budget(seconds=BUDGET_S, elapsed=lambda: time.perf_counter() - began_s)
    plan, report, _ = policy("hetsev").make_plan(problem, Observed(at_s=0.0), None, budget)
    return {
        "problem": name,
        "usd_per_hour": report.cost_usd_per_hour,
        "best_known_usd_per_hour": best_usd_per_hour,
        "above_percent": 100.0 * (report.cost_usd_per_hour / best_usd_per_hour - 1.0),
        "unserved": len(plan.unserved),
        "violations": len(violations(problem, plan)),
        "seconds": time.perf_counter() - began_s,
    }


if __name__ == "__main__":
    sys.exit(main())
