"""Part of `bench.plan`: 10,000 GPUs and 300 services, each plan in a process of its own, with its peak memory.

Run by itself: `python -m bench.plan_large SECONDS [--threads N]` plans it once and prints the figures as JSON.
"""

import argparse
import json
import resource
import subprocess
import sys

from bench.plan_runs import Rows, judged, relax, run
from bench.synthetic_problems import synthetic_problem
from solvers.policies.warm_up import warm_up

GPUS, SERVICES, SEED = 10_000, 300, 1
_LP_LIMIT_S = 90.0
_KIB_PER_MB = 1e6 / 1024.0


def large(threads: int, *, is_quick: bool) -> Rows:
    """Cost over the relaxation's optimum, and peak memory.

    The optimum is between the bound and the objective of a long run of the relaxation. The plan's distance is stated
    from the middle of the two; `over_bound_percent` is from the bound, so no less than the true one.
    """
    if is_quick:
        return
    problem = synthetic_problem(GPUS, SERVICES, SEED)
    relaxed = relax(problem, _LP_LIMIT_S, threads)
    lp = 0.5 * (max(relaxed.bound, 0.0) + relaxed.objective)
    case = f"generated_{GPUS}x{SERVICES}_s{SEED}"
    for limit_s, must, aim in ((15.0, 2.0, None), (60.0, None, 0.5), (90.0, 1.0, None)):
        found = _in_new_process(limit_s, threads)
        over = 100.0 * (found["cost"] / lp - 1.0)
        is_sound = bool(found["is_sound"])
        yield {
            **judged(case, f"% over LP in {limit_s:g} s", over, (must, aim), is_sound=is_sound),
            "cost": found["cost"],
            "bound": found["bound"],
            "over_bound_percent": 100.0 * (found["cost"] / max(found["bound"], relaxed.bound) - 1.0),
            "lp_objective": relaxed.objective,
            "lp_bound": relaxed.bound,
            "limit_s": limit_s,
            "seconds": found["seconds"],
            "sound": is_sound,
        }
        yield judged(case, f"peak MB in {limit_s:g} s", found["peak_mb"], (500.0, 500.0))


def _in_new_process(limit_s: float, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.plan_large", str(limit_s), "--threads", str(threads)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def main() -> int:
    """Plan once."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan_large", description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warm_up()
    made = run(synthetic_problem(GPUS, SERVICES, SEED), options.seconds, options.threads)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB_PER_MB
    figures = {"cost": made.cost, "bound": made.bound, "seconds": made.seconds, "is_sound": made.is_sound}
    print(json.dumps({**figures, "peak_mb": peak_mb}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
