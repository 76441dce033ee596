"""The joint planner against what is demanded of it, figure by figure; `make bench-plan`.

Run: `python -m bench.plan [--only PART] [--quick] [--threads N]`. Prints a table per part as it goes, and how many
figures are as aimed at, as they must be, or not; after each part writes what there is, with more columns, to
bench/results/plan.json (plan_PART.json with --only, plan_quick.json with --quick). About 18 minutes; --quick takes
four, on the smaller problems. Without `../shared` next to the checkout only generated problems are planned.

`met`: `aim`, `must`, `no`, `short` of the aim where nothing must be, `-` where nothing is demanded. With a fault a plan
meets nothing: it breaks a rule or leaves something unserved (`broken`), costs less than what is called proven
(`bound`), or took more than 10 % (50 ms) longer than its limit (`late`). The exit code is 1 after any but the last.
"""

import argparse
import sys
import time
from collections import Counter

from bench.plan_changes import changes
from bench.plan_costs import (
    against_greedy,
    bounds,
    costs,
    first_plans,
    generated,
    melange,
    proofs,
    rivals,
    uncapped,
    v100,
)
from bench.plan_large import large
from bench.plan_limits import limits
from bench.plan_runs import FOLDER, Rows
from bench.plan_slices import slices
from bench.plan_validity import validity
from bench.report import ROOM, Figures, print_table, write_results
from solvers.policies.warm_up import warm_up


def main() -> int:
    """Run the parts one after the other; 1 when any plan breaks a rule, or a proof."""
    options = _options()
    warm_up()
    if not FOLDER.is_dir():
        print(
            "No shared problems next to this checkout: only generated ones are planned."
        )
    rows: list[Figures] = []
    name = "_".join(
        filter(None, ("plan", options.only, "quick" if options.quick else ""))
    )
    for part, figures in PARTS.items():
        if options.only in ("", part):
            rows += _run(part, figures(options.threads, is_quick=options.quick))
            write_results(name, rows, settings=vars(options))
    print(
        "\n"
        + ", ".join(
            f"{count} {met}"
            for met, count in Counter(row["met"] for row in rows).most_common()
        )
    )
    return 1 if any(row["fault"] in ("broken", "bound") for row in rows) else 0


def _run(part: str, figures: Rows) -> list[Figures]:
    print(f"\n-- {part}", flush=True)
    began_s = time.perf_counter()
    rows: list[Figures] = []
    for row in figures:
        # So that a reader of a long run sees where it is; the table, with its widths, comes when all rows are there.
        print(f"   {row['case']}: {row['figure']}", file=sys.stderr, flush=True)
        rows.append({"part": part, **row})
    print_table(
        [{key: value for key, value in row.items() if key != "part"} for row in rows],
        room=ROOM,
    )
    print(f"   ({time.perf_counter() - began_s:.0f} s)", flush=True)
    return rows


PARTS = {
    "validity": validity,
    "costs": costs,
    "first_plans": first_plans,
    "proofs": proofs,
    "bounds": bounds,
    "generated": generated,
    "uncapped": uncapped,
    "greedy": against_greedy,
    "v100": v100,
    "slices": slices,
    "rivals": rivals,
    "melange": melange,
    "changes": changes,
    "large": large,
    "limits": limits,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument(
        "--only",
        default="",
        choices=("", *PARTS),
        metavar="PART",
        help=", ".join(PARTS),
    )
    parser.add_argument("--quick", action="store_true", help="four minutes")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
