"""How far `hetsev` is from the best known costs of the shared planner problems; `bench.plan` has `joint`.

Run: `python -m bench.shared_problems`. Prints a table, writes bench/results/shared_problems.json. Needs the folder
`../shared/problems` beside the checkout; without it there is nothing to compare with.
"""

import sys
import time

from bench.plan_runs import Known, known_problems, load
from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.policies.registry import policy
from solvers.policies.warm_up import warm_up
from solvers.types.outcome import Budget
from solvers.types.state import Observed

BUDGET_S = 2.0


def main() -> int:
    """Plan every problem once, from nothing."""
    known = known_problems()
    if not known:
        print("no shared problems beside this checkout")
        return 0
    warm_up()
    rows = [_row(one) for one in known.values()]
    print_table(rows)
    write_results("shared_problems", rows)
    return 0


def _row(known: Known) -> Figures:
    problem = load(known.name)
    began_s = time.perf_counter()
    budget = Budget(seconds=BUDGET_S, elapsed=lambda: time.perf_counter() - began_s)
    plan, report, _ = policy("hetsev").make_plan(
        problem, Observed(at_s=0.0), None, budget
    )
    return {
        "problem": known.name,
        "usd_per_hour": report.cost_usd_per_hour,
        "best_known_usd_per_hour": known.best,
        "above_percent": 100.0 * (report.cost_usd_per_hour / known.best - 1.0),
        "unserved": len(plan.unserved),
        "violations": len(violations(problem, plan)),
        "seconds": time.perf_counter() - began_s,
    }


if __name__ == "__main__":
    sys.exit(main())
