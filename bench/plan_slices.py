"""Part of `bench.plan`: A100s cut into MIG slices, against the least numbers of GPUs that were proven by other code."""

import gzip
import time

from bench.plan_runs import FOLDER, Rows, judged
from solvers.check import violations
from solvers.policies.registry import policy
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.outcome import Budget
from solvers.types.state import Observed

LIMIT_S = 1.0
GPUS = {
    "s1_half_slo": 2,
    "s2_half_slo": 3,
    "s4_half_slo": 7,
    "s5_half_slo": 12,
    "s1_p98": 2,
    "s2_p98": 3,
    "s4_p98": 7,
    "s5_p98": 14,
}
"""ParvaGPU's scenarios under its own law (its own answers: 2, 3, 7, 13), and for the 98th percentile."""


def slices(threads: int, *, is_quick: bool) -> Rows:  # noqa: ARG001  they take a second
    """ParvaGPU's scenarios: GPUs, proven to be the least."""
    for name, gpus in GPUS.items():
        path = FOLDER / "parvagpu" / f"parvagpu_{name}.json.gz"
        if not path.is_file():
            continue
        problem = problem_from_json(gzip.decompress(path.read_bytes()))
        began_s = time.perf_counter()
        plan, report, _ = policy("joint").make_plan(
            problem, Observed(at_s=0.0), None, Budget(seconds=LIMIT_S, threads=threads)
        )
        seconds = time.perf_counter() - began_s
        is_broken = bool(plan.unserved or violations(problem, plan))
        used = sum(gpu.count for gpu in plan.gpus)
        yield {
            **judged(
                f"parvagpu_{name}",
                f"GPUs proven in {LIMIT_S:g} s",
                used if report.status == "optimal" else None,
                (gpus, gpus),
                fault="broken" if is_broken else "late" if seconds > LIMIT_S else None,
            ),
            "seconds": seconds,
            "limit_s": LIMIT_S,
        }
