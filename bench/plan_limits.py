"""Part of `bench.plan`: how long `plimsoll plan --time-limit` takes, a fresh process each time, and other commands.

Every policy plans three problems: an ordinary one, the same with SLOs so tight that little can serve them, and with
500 times the demand. What counts is the wall time of the whole command, the worst of two
runs; with a limit, beyond it. Whether a plan is good is judged elsewhere: some baselines, which know nothing of how
neighbours slow each other, break rules, and their plans are refused in the same time.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from bench.plan_runs import Rows, judged
from bench.report import Figures
from bench.synthetic_problems import synthetic_problem
from solvers.policies.registry import policies
from solvers.types.documents.problem_json import problem_to_json
from solvers.types.problem import Problem

GPUS, SERVICES, SEED = 60, 20, 1
Goal: TypeAlias = tuple[float, float | None]
"""What must be and what is aimed at, in seconds."""
_LIMIT_S = 1.0
_BEYOND_S = (1.5, 0.8)
"""What a command may take beyond its limit, its start included."""
_EXAMPLE = Path(__file__).parents[1] / "tests" / "data" / "example_problem.json"
_EXAMPLE_S = (0.9, None)
_HELP_S = (0.4, None)
_TIGHT = 0.35
_SHORTAGE = 500.0
_RUNS = 2
_REFUSED = b"it is not written"


def limits(threads: int, *, is_quick: bool) -> Rows:
    """Seconds beyond the limit by policy and problem; then of commands that have none."""
    with tempfile.TemporaryDirectory() as folder:
        for name, problem in _problems():
            path = Path(folder) / f"{name}.json"
            path.write_text(problem_to_json(problem), encoding="utf-8")
            case = f"new_{GPUS}x{SERVICES}_s{SEED}, {name}"
            for policy in ("joint",) if is_quick else policies():
                asked = [str(path), "--policy", policy, "--time-limit", str(_LIMIT_S)]
                options = [*asked, "--threads", str(threads), "-o", f"{folder}/plan"]
                figure = f"{policy}: s beyond {_LIMIT_S:g} s"
                yield _row(case, figure, ["plan", *options], _BEYOND_S, _LIMIT_S)
        asked = ["plan", str(_EXAMPLE), "-o", f"{folder}/plan"]
        yield _row("example", "plan: s", asked, _EXAMPLE_S)
        yield _row("", "serve --help: s", ["serve", "--help"], _HELP_S)


def _problems() -> Iterator[tuple[str, Problem]]:
    problem = synthetic_problem(GPUS, SERVICES, SEED)
    services = problem.services
    yield "ordinary", problem
    tight = (replace(one, slo_ms=_TIGHT * one.slo_ms) for one in services)
    yield "tight SLOs", replace(problem, services=tuple(tight))
    rates = [_SHORTAGE * one.arrival_rate_rps for one in services]
    wanted = zip(services, rates, strict=True)
    asked = (replace(one, arrival_rate_rps=rate) for one, rate in wanted)
    yield "shortage", replace(problem, services=tuple(asked))


def _row(
    case: str, figure: str, arguments: Sequence[str], goal: Goal, limit_s: float = 0.0
) -> Figures:
    program = (sys.executable, "-c", "from app.cli.main import main; main()")
    seconds = 0.0
    for _ in range(_RUNS):
        began_s = time.perf_counter()
        ended = subprocess.run([*program, *arguments], capture_output=True, check=False)
        seconds = max(seconds, time.perf_counter() - began_s)
        if ended.returncode != 0 and _REFUSED not in ended.stderr:
            return judged(case, figure, None, goal, fault=f"exit {ended.returncode}")
    return judged(case, figure, seconds - limit_s, goal)
