"""What every policy makes of the shared planner problems: cost above the best known, and a digest of each plan.

    python -m bench.shared_problems [--policies NAME ...] [--problems TEXT] [--work W] [--compare FILE]

Budgets are of work, not of time, so a plan is the same on every machine and on every day: two trees plan alike when
their digests are equal. Run it in one tree, keep bench/results/shared_problems.json, and give it to `--compare` in the
other: rows that differ are listed, and the exit status is 1. Needs the folder `../shared/problems` by the checkout.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.plan_runs import Known, known_problems, load
from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.policies.registry import policies, policy
from solvers.types.documents.plan_json import plan_document
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Observed

WORK = 0.2
"""Units of deterministic work a solve: enough for every step of every policy to be taken."""
LIMIT_S = 600.0
"""Far beyond what the work takes: were it reached, the machine's speed would show in the plan."""
LARGEST_ROWS = 40_000
"""Problems of 1,000 GPUs have more; all policies take an hour for them."""
_ROWS_FOR_TRAINED = 15_000
"""InSS' actor asks its network about every row: beyond this, minutes a plan."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan every problem with every policy, from nothing."""
    options = _options(arguments)
    known = [one for one in known_problems().values() if options.problems in one.name]
    if not known:
        print("no such shared problem next to this checkout")
        return 0
    # Before the minutes of planning, and before it is written: both may be the same file.
    before = _plans_in(options.compare) if options.compare else None
    rows: list[Figures] = []
    for one in known:
        problem = load(one.name)
        # The largest are left to `bench.plan`.
        if _row_count(problem) <= LARGEST_ROWS:
            rows += [
                _row(one, problem, name, options.work)
                for name in options.policies
                if _row_count(problem) <= _ROWS_FOR_TRAINED or "inss" not in name
            ]
    print_table(rows)
    write_results("shared_problems", rows, settings={"work": options.work})
    return 0 if before is None else _report_changes(before, rows)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policies", nargs="+", choices=policies(), default=policies())
    parser.add_argument("--problems", default="", help="only those whose name has it")
    parser.add_argument("--work", type=float, default=WORK, help="units a solve")
    parser.add_argument("--compare", type=Path, help="results of another tree")
    return parser.parse_args(arguments)


def _row_count(problem: Problem) -> int:
    return sum(len(points.rows) for points in problem.points)


def _row(known: Known, problem: Problem, name: str, work: float) -> Figures:
    plan, report, _ = policy(name).make_plan(
        problem, Observed(at_s=0.0), None, Budget(seconds=LIMIT_S, work=work)
    )
    cost = report.cost_usd_per_hour
    return {
        "problem": known.name,
        "policy": name,
        "usd_per_hour": cost,
        "above_percent": 100.0 * (cost / known.best - 1.0),
        "unserved": len(plan.unserved),
        "violations": len(violations(problem, plan)),
        "plan": _digest(plan, report),
    }


def _digest(plan: Plan, report: PlanReport) -> str:
    """Of what runs where: a plan's report has seconds in it, which differ from run to run."""
    gpus = json.dumps(plan_document(plan, report)["gpus"], sort_keys=True)
    return hashlib.sha256(gpus.encode()).hexdigest()[:12]


def _plans_in(path: Path) -> dict[tuple[str, str], str]:
    """Digests by problem and policy."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["problem"], row["policy"]): row["plan"] for row in rows}


def _report_changes(
    before: Mapping[tuple[str, str], str], rows: Sequence[Figures]
) -> int:
    now = {(str(row["problem"]), str(row["policy"])): row["plan"] for row in rows}
    both = [key for key in now if key in before]
    changed = [key for key in both if now[key] != before[key]]
    print(f"{len(both) - len(changed)} of {len(both)} plans are the same")
    for problem, name in changed:
        print(f"another plan: {name} on {problem}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
