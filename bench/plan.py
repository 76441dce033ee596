"""The joint planner against what is demanded of it, figure by figure; `make bench-plan`.

Run: `python -m bench.plan [--only PART] [--quick] [--threads N]`. Prints a table per part as it goes, and how many
figures are as aimed at, as they must be, or not; writes bench/results/plan.json (not with --only or --quick). About 12
minutes; --quick takes one, on the smaller problems. Without `../shared` beside the checkout only generated problems are
planned.

`met`: `aim`, `must`, `no`, `short of aim` where nothing must be, `-` where nothing is demanded. A plan that breaks a
rule, leaves anything unserved, or takes more than 10 % (50 ms) longer than its limit meets nothing.
"""

import argparse
import sys
import time
from collections import Counter

from bench.plan_changes import changes
from bench.plan_costs import against_greedy, bounds, costs, first_plans, generated, melange, proofs, v100
from bench.plan_large import large
from bench.plan_runs import FOLDER, Rows, judged
from bench.plan_validity import PROBLEMS, validity
from bench.report import Figures, print_table, write_results
from solvers.policies.warm_up import warm_up

_QUICK_PROBLEMS = 100


def main() -> int:
    """Run the parts one after the other; 1 when any plan breaks a rule."""
    options = _options()
    warm_up()
    if not FOLDER.is_dir():
        print("No shared problems beside this checkout: only generated ones are planned.")
    rows: list[Figures] = []
    for name, part in PARTS.items():
        if options.only in ("", name):
            rows += _run(name, part(options.threads, is_quick=options.quick))
    print("\n" + ", ".join(f"{count} {met}" for met, count in Counter(row["met"] for row in rows).most_common()))
    if not options.only and not options.quick:
        write_results("plan", rows)
    return 1 if any(row.get("broken") for row in rows) else 0


def _run(name: str, part: Rows) -> list[Figures]:
    print(f"\n-- {name}", flush=True)
    began_s = time.perf_counter()
    rows: list[Figures] = []
    for row in part:
        # So that a reader of a long run sees where it is; the table, with its widths, comes when all rows are there.
        print(f"   {row['case']}: {row['figure']}", file=sys.stderr, flush=True)
        rows.append({"part": name, **row})
    print_table([{key: value for key, value in row.items() if key != "part"} for row in rows])
    print(f"   ({time.perf_counter() - began_s:.0f} s)", flush=True)
    return rows


def _valid(threads: int, *, is_quick: bool) -> Rows:  # noqa: ARG001  the problems are tiny
    """Random small problems, degenerate ones too: no plan breaks a rule."""
    for figures in validity(_QUICK_PROBLEMS if is_quick else PROBLEMS):
        broken = figures["broken"]
        yield {**judged(str(figures["objective"]), "broken plans", float(broken or 0), (0.0, 0.0)), **figures}


PARTS = {
    "validity": _valid,
    "costs": costs,
    "first_plans": first_plans,
    "proofs": proofs,
    "bounds": bounds,
    "generated": generated,
    "greedy": against_greedy,
    "v100": v100,
    "melange": melange,
    "changes": changes,
    "large": large,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--only", default="", choices=("", *PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="one minute")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
