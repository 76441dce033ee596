"""What the parts of `bench.plan` share: timed solves and relaxations, problems to plan, and figures with goals."""

import gzip
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.report import Figures
from solvers.check import violations
from solvers.cost import cost_usd_per_hour
from solvers.joint import prices
from solvers.joint.solve import solve
from solvers.outcome import Budget
from solvers.problem import Problem
from solvers.problem_json import problem_from_json

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "problems"
_ROUNDING = 1e-4
"""USD per hour: known costs are written with four decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one shared problem, in USD per hour."""

    name: str
    bound: float
    best: float


def known_problems() -> dict[str, Known]:
    """By name, what the shared problems' README says; none without the folder."""
    if not FOLDER.is_dir():
        return {}
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\w+) \| \d+ \| \d+ \| ([\d.]+) \| ([\d.]+) \|", table, re.M)
    return {name: Known(name=name, bound=float(bound), best=float(best)) for name, bound, best in found}


def load(name: str) -> Problem:
    """A shared problem. Raises FileNotFoundError."""
    return problem_from_json(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One solve from nothing, and what the checker says of its plan."""

    cost: float
    bound: float
    """0 where none is proven."""
    status: str
    gpus: int
    seconds: float
    found_s: float
    """When the plan was found."""
    limit_s: float
    is_valid: bool
    """No rule is broken, and everything is served."""

    @property
    def is_in_time(self) -> bool:
        """Within 10 % or 50 ms of the limit."""
        return self.seconds <= max(1.1 * self.limit_s, self.limit_s + 0.05)

    @property
    def is_sound(self) -> bool:
        """Whether the plan may count at all."""
        return self.is_valid and self.is_in_time

    @property
    def gap_percent(self) -> float | None:
        """Of the cost over the run's own bound."""
        return 100.0 * (self.cost / self.bound - 1.0) if self.bound > 0.0 else None

    def figures(self) -> Figures:
        """What stands in the table beside the figure that has a goal."""
        return {
            "bound": self.bound,
            "gap_percent": self.gap_percent,
            "status": self.status,
            "limit_s": self.limit_s,
            "seconds": self.seconds,
            "found_s": self.found_s,
            "sound": self.is_sound,
        }


def run(problem: Problem, limit_s: float, threads: int) -> Run:
    """Plan the problem from nothing, within so many seconds of wall-clock time."""
    began_s = time.perf_counter()
    budget = Budget(seconds=limit_s, threads=threads, elapsed=lambda: time.perf_counter() - began_s)
    solution, report = solve(problem, budget)
    seconds = time.perf_counter() - began_s
    return Run(
        cost=cost_usd_per_hour(problem, solution.plan),
        bound=solution.cost_bound or 0.0,
        status=str(report.status),
        gpus=sum(gpu.count for gpu in solution.plan.gpus),
        seconds=seconds,
        found_s=solution.found_s,
        limit_s=limit_s,
        is_valid=not solution.plan.unserved and not violations(problem, solution.plan),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The linear relaxation as far as it came, in USD per hour: its optimum is between the two."""

    bound: float
    objective: float
    is_exact: bool
    seconds: float


def relax(problem: Problem, limit_s: float, threads: int) -> Relaxed:
    """Solve only the relaxation of a problem with something to serve."""
    began_s = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        relaxed = prices.relax(problem, pool=pool, is_over=lambda: time.perf_counter() - began_s >= limit_s)
    if relaxed is None:
        raise ValueError("there is nothing to serve")
    found = relaxed.relaxation
    return Relaxed(
        bound=found.bound,
        objective=found.solution.objective,
        is_exact=found.is_exact,
        seconds=time.perf_counter() - began_s,
    )


def judge(value: float | None, must: float | None, aim: float | None, *, is_sound: bool = True) -> str:
    """`aim`, `must` or `no`, where less is better; `-` where nothing is demanded."""
    if must is None and aim is None:
        return "-" if is_sound else "no"
    if value is None or not is_sound:
        return "no"
    if aim is not None and value <= aim + _ROUNDING:
        return "aim"
    if must is None:
        return "short of aim"
    return "must" if value <= must + _ROUNDING else "no"


def judged(
    case: str, figure: str, value: float | None, goal: tuple[float | None, float | None], *, is_sound: bool = True
) -> Figures:
    """The columns that every part begins with; goal: what must be and what is aimed at, less is better."""
    must, aim = goal
    return {
        "case": case,
        "figure": figure,
        "value": value,
        "must": must,
        "aim": aim,
        "met": judge(value, must, aim, is_sound=is_sound),
    }


Rows = Iterator[Figures]
"""Of one part, one after the other, so that the table grows while the part runs."""
