"""Part of `bench.plan`: 10,000 GPUs and 300 services, each plan in a process of its own, with its peak memory.

Run by itself: `python -m bench.plan_large SECONDS [--threads N]` plans it once and prints the figures as JSON.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.plan_runs import Rows, Run, judged, relax, run
from bench.synthetic_problems import synthetic_problem
from solvers.policies.warm_up import warm_up

GPUS, SERVICES, SEED = 10_000, 300, 1
_LP_LIMIT_S, _QUICK_LP_LIMIT_S = 90.0, 15.0
_MAX_MB = 450.0
_GOALS = (
    (15.0, (2.0, None), (None, None)),
    (60.0, (None, 0.5), (3.0, 2.0)),
    (90.0, (1.0, None), (None, None)),
)
"""Seconds, and what must be and is aimed at, in per cent over the relaxation and over the bound."""
_MB_PER_KIB = 1024.0 / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What one process found, and what it took."""

    run: Run
    peak_mb: float | None
    """Most resident memory; None where the system does not say."""


def large(threads: int, *, is_quick: bool) -> Rows:
    """Cost over the relaxation's optimum, and peak memory.

    The relaxation's optimum is between the bound and the objective of a long run of it. The plan's distance is stated
    from the objective where pricing finds no column any more that would lower it, else from the middle of the two; from
    the bound it is no less than the true one.
    """
    problem = synthetic_problem(GPUS, SERVICES, SEED)
    relaxed = relax(problem, _QUICK_LP_LIMIT_S if is_quick else _LP_LIMIT_S, threads)
    lp = (
        relaxed.objective
        if relaxed.is_exact
        else 0.5 * (max(relaxed.bound, 0.0) + relaxed.objective)
    )
    case = f"new_{GPUS}x{SERVICES}_s{SEED}"
    for limit_s, over_lp, over_bound in _GOALS:
        if is_quick and limit_s > _QUICK_LP_LIMIT_S:
            continue
        found = _in_new_process(limit_s, threads)
        made, fault = found.run, found.run.fault()
        over = 100.0 * (made.cost / lp - 1.0)
        yield {
            **judged(case, f"% over LP in {limit_s:g} s", over, over_lp, fault=fault),
            "cost": made.cost,
            "lp_objective": relaxed.objective,
            "lp_bound": relaxed.bound,
            **made.figures(),
        }
        bound = max(made.bound, relaxed.bound)
        over = 100.0 * (made.cost / bound - 1.0)
        figure = f"% over the bound in {limit_s:g} s"
        yield judged(case, figure, over, over_bound, fault=fault)
        yield judged(
            case,
            f"peak MB in {limit_s:g} s",
            found.peak_mb,
            (_MAX_MB, _MAX_MB),
            fault=fault,
        )


def _in_new_process(limit_s: float, threads: int) -> _Measured:
    command = [
        sys.executable,
        "-m",
        "bench.plan_large",
        str(limit_s),
        "--threads",
        str(threads),
    ]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return msgspec.json.decode(printed.splitlines()[-1], type=_Measured)


def main() -> int:
    """Plan once."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.plan_large", description=__doc__
    )
    parser.add_argument("seconds", type=float)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warm_up("joint")
    made = run(
        synthetic_problem(GPUS, SERVICES, SEED), options.seconds, options.threads
    )
    print(msgspec.json.encode(_Measured(run=made, peak_mb=_peak_mb())).decode())
    return 0


def _peak_mb() -> float | None:
    """Of this process so far. `getrusage` would not do: a process begins with the peak of the one that started it."""
    status = Path("/proc/self/status")
    text = status.read_text(encoding="utf-8") if status.is_file() else ""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.M)
    return int(found[1]) * _MB_PER_KIB if found else None


if __name__ == "__main__":
    sys.exit(main())
