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
from solvers.joint.relaxation import dual_prices as prices
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.outcome import Budget
from solvers.types.problem import Problem

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "problems"
_ROUNDING = 1e-4
"""Known costs are written with four decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one shared problem, in USD per hour."""

    name: str
    bound: float
    best: float


def known_problems() -> dict[str, Known]:
    """By name, what the shared problems' README says of those that are there; none without the folder."""
    readme = FOLDER / "README.md"
    table = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    found = re.findall(
        r"^\| (\w+) \| \d+ \| \d+ \| ([\d.]+) \| ([\d.]+) \|", table, re.M
    )
    return {
        name: Known(name=name, bound=float(bound), best=float(best))
        for name, bound, best in found
        if _path(name).is_file()
    }


def load(name: str) -> Problem:
    """A shared problem. Raises FileNotFoundError."""
    return problem_from_json(gzip.decompress(_path(name).read_bytes()))


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json.gz"


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
    def latest_s(self) -> float:
        """10 % or 50 ms more than the limit: what counts as kept."""
        return max(1.1 * self.limit_s, self.limit_s + 0.05)

    def fault(self, known: Known | None = None) -> str | None:
        """Why the plan counts for nothing; None where it counts.

        `broken`: a rule is, or something is unserved. `bound`: plan and bound, ours or the known ones, contradict each
        other. `late`: it took too long.
        """
        if not self.is_valid:
            return "broken"
        if (
            known is not None
            and max(self.bound, known.bound) > min(self.cost, known.best) + _ROUNDING
        ):
            return "bound"
        return None if self.seconds <= self.latest_s else "late"

    @property
    def gap_percent(self) -> float | None:
        """Of the cost over the run's own bound."""
        return 100.0 * (self.cost / self.bound - 1.0) if self.bound > 0.0 else None

    def figures(self, known: Known | None = None) -> Figures:
        """What stands in the table next to the figure that has a goal."""
        return {
            "bound": self.bound,
            **(
                {}
                if known is None
                else {"known_bound": known.bound, "best_known": known.best}
            ),
            "status": self.status,
            "found_s": self.found_s,
            "seconds": self.seconds,
            "limit_s": self.limit_s,
            "gap_percent": self.gap_percent,
        }


def run(problem: Problem, limit_s: float, threads: int) -> Run:
    """Plan the problem from nothing, within `limit_s` of wall-clock time."""
    began_s = time.perf_counter()
    budget = Budget(
        seconds=limit_s, threads=threads, elapsed=lambda: time.perf_counter() - began_s
    )
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
        relaxed = prices.relax(
            problem, pool=pool, is_over=lambda: time.perf_counter() - began_s >= limit_s
        )
    if relaxed is None:
        raise ValueError("there is nothing to serve")
    found = relaxed.relaxation
    return Relaxed(
        bound=found.bound,
        objective=found.solution.objective,
        is_exact=found.is_exact,
        seconds=time.perf_counter() - began_s,
    )


def judge(
    value: float | None,
    must: float | None,
    aim: float | None,
    *,
    fault: str | None = None,
) -> str:
    """`aim`, `must`, `no`, or `short` of the aim where nothing must be; `-` without either. Less is better."""
    if must is None and aim is None:
        return "-" if fault is None else "no"
    if value is None or fault is not None:
        return "no"
    if aim is not None and value <= aim + _ROUNDING:
        return "aim"
    if must is None:
        return "short"
    return "must" if value <= must + _ROUNDING else "no"


def judged(
    case: str,
    figure: str,
    value: float | None,
    goal: tuple[float | None, float | None],
    *,
    fault: str | None = None,
) -> Figures:
    """The columns that every part begins with; goal: what must be and what is aimed at, less is better."""
    must, aim = goal
    return {
        "case": case,
        "figure": figure,
        "value": value,
        "must": must,
        "aim": aim,
        "met": judge(value, must, aim, fault=fault),
        "fault": fault,
    }


Rows = Iterator[Figures]
"""Of one part, one after the other, so that the table grows while the part runs."""
