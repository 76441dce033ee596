"""Runs the benches one after the other, then compares what they found with what Plimsoll promises of itself.

`python -m bench` takes some minutes on two cores; `--all` adds the long ones, names choose single ones. Each
bench runs in a process of its own, prints its tables and writes bench/results/<name>.json. The exit code says whether
every bench ran, not whether the figures please: they depend on the machine.
"""

import argparse
import subprocess
import sys
import time

from bench.report import RESULTS, machine, print_table, write_results
from bench.targets import compare

PROMISED = ("tick", "reaction", "sync", "router")
TECHNIQUES = (
    "capacity_law",
    "sharing",
    "placement",
    "governors",
    "sim_engine",
    "catalogue_error",
    "partners",
    "partner_stakes",
    "task_stakes",
    "forecast",
)
PREDICTIONS = (
    "predict",
    "predict_power",
    "predict_interference",
    "predict_fm",
    "predict_techniques",
)
LONG = (
    "gateway",
    "first_request",
    "demo",
    "autoscale",
    "ingest",
    "plan",
    "first_plans",
    "compare",
    "node_loss",
    "flash_crowds",
    "loads",
    "shared_problems",
    "scale",
    "llm.accuracy",
    "llm.fleet",
    "llm.mixed",
)


def main() -> int:
    """Run what the arguments ask for; 1 when a bench failed."""
    options = _options()
    names = options.names or [
        *PROMISED,
        *TECHNIQUES,
        *((*PREDICTIONS, *LONG) if options.all else ()),
    ]
    print(
        "Measured on "
        + ", ".join(f"{key} {value}" for key, value in machine().items()),
        flush=True,
    )
    failed = [name for name in names if not _run(name)]
    rows = compare()
    print("\n== promised figures")
    print_table(rows)
    write_results("summary", rows)
    print(f"\nAll figures: {RESULTS}")
    if failed:
        print(f"These benches failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str) -> bool:
    print(f"\n== {name}", flush=True)
    began = time.perf_counter()
    code = subprocess.run(
        [sys.executable, "-m", f"bench.{name}"], check=False
    ).returncode
    print(f"   ({time.perf_counter() - began:.0f} s)", flush=True)
    return code == 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = (*PROMISED, *TECHNIQUES, *PREDICTIONS, *LONG)
    parser.add_argument("names", nargs="*", metavar="BENCH", help=", ".join(known))
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"also the long ones: {', '.join((*PREDICTIONS, *LONG))}",
    )
    options = parser.parse_args()
    if unknown := sorted({*options.names} - {*known}):
        parser.error(
            f"no bench is called {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
