"""InSS on its own boards' latencies: what plans could do (the paper's Σ b/t), and the highest load that they serve.

The paper maximises Σ h with h = b / t, the throughput of replicas that never wait, and states gains of "system
throughput". Its baselines' 3,800 requests a second are more than the published program ever offers (at most 2,050), so
that it compares Σ b / t, not what was served: a policy that gives a network no more than it needs, as iGniter does,
must lose by that. Here both are told, for the same rates, on a plant of the paper's own measurements:

    t(b, p) = (floor^4 + ((fixed + work · b) · 100 / p)^4)^(1/4), times 1.09 for each neighbour

floor, fixed and work by least squares through the 24 rows of the paper's tables 2 and 3, then times printed / law,
linear in the batch between printed batches, so that its rows are hit. An RTX 2060 Super does the work in 30 / 34 of the
time (SMs). EfficientNet and MobileNet have one printed level each, so rows with them are synthetic; all have. Plans
only: no request is simulated. No actor is trained for this plant: `inss` proposes by its provisioner and search.
"""

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.papers.inss_stage import PERCENTILE, SIX, WORKLOADS
from bench.papers.table import Row, Table
from solvers.check import violations
from solvers.laws.capacity_law import make_capacity_law
from solvers.laws.colocation import execution_ms, neighbours_of
from solvers.laws.operating_rows import OperatingRows
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType, Observed

BATCHES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
SM_PERCENTS = tuple(float(percent) for percent in range(6, 101, 2))
PER_NEIGHBOUR = 0.09
"""What the fit removed from rows with neighbours."""
MEMORY_MIB = {
    "alexnet": 1000.0,
    "resnet50": 1900.0,
    "vgg16": 1500.0,
    "mnasnet": 1500.0,
    "mobilenet": 1000.0,
    "efficientnet": 1900.0,
}
"""Of the published program, whatever the batch."""
PAPER_GAINS = {"gpulets": 28.1, "igniter": 189.7}
POLICIES = ("inss", "inss_1e", *PAPER_GAINS, "joint")
LOADS = tuple(round(0.2 * step, 1) for step in range(2, 31))
"""Of the mix's rates, ascending."""
_CLOCK_MHZ = 1680.0
_BOARDS = {"RTX-2060-Super": (8000.0, 30.0 / 34.0), "RTX-2060": (6000.0, 1.0)}
"""(MB, time of the same work next to an RTX 2060's); two of each."""
_TABLE = Path(__file__).with_name("data") / "inss_2060.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class InssCurve:
    """The time of a batch of one network, alone on an RTX 2060."""

    floor_ms: float
    fixed_ms: float
    work_ms: float
    printed: tuple[tuple[float, float], ...]
    """(batch, printed / law) where the paper prints a row, ascending; factor 1 where it prints one
    batch only."""

    def batch_ms(self, batch: int, sm_percent: float) -> float:
        """Times are in ms; the factor is constant beyond the printed batches."""
        busy_ms = (self.fixed_ms + self.work_ms * batch) * 100.0 / sm_percent
        batches, factors = zip(*self.printed, strict=True)
        law_ms: float = (self.floor_ms**4 + busy_ms**4) ** 0.25
        return law_ms * float(np.interp(batch, batches, factors))


@cache
def inss_curves() -> dict[str, InssCurve]:
    """By network, as the experiments name it."""
    found = {}
    for row in csv.DictReader(_TABLE.read_text().splitlines()):
        pairs = (pair.split(":") for pair in row["printed_over_law"].split())
        found[row["network"]] = InssCurve(
            floor_ms=float(row["floor_ms"]),
            fixed_ms=float(row["fixed_ms_at_full"]),
            work_ms=float(row["work_ms_per_item_at_full"]),
            printed=tuple((float(batch), float(factor)) for batch, factor in pairs),
        )
    return found


@cache
def plant_problem() -> Problem:
    """Six networks on four boards, without rates."""
    return Problem(
        objective="max_goodput",
        max_replicas_per_gpu=6,
        capacity_law=make_capacity_law([PERCENTILE], BATCHES),
        gpu_types=tuple(
            GpuType(
                name=name,
                price_usd_per_hour=1.0,
                memory_mib=memory_mib,
                count=2,
                sm_percent_step=2.0,
                idle_w=20.0,
                power_cap_w=160.0,
                clocks_mhz=(_CLOCK_MHZ,),
            )
            for name, (memory_mib, _) in _BOARDS.items()
        ),
        services=tuple(
            ServiceDemand(
                name=name,
                network=name,
                slo_ms=WORKLOADS[name].slo_ms,
                percentile=PERCENTILE,
                arrival_rate_rps=0.0,
            )
            for name in SIX
        ),
        points=tuple(_points(name, board) for name in SIX for board in _BOARDS),
    )


def _points(network: str, board: str) -> OperatingPoints:
    _, slower = _BOARDS[board]
    curve = inss_curves()[network]
    rows = tuple(
        OperatingPoint(
            sm_percent,
            batch,
            _CLOCK_MHZ,
            0.0,
            0.0,
            slower * curve.batch_ms(batch, sm_percent),
            MEMORY_MIB[network],
            1.2 * sm_percent,
            PER_NEIGHBOUR,
        )
        for sm_percent, batch in product(SM_PERCENTS, BATCHES)
    )
    return OperatingPoints(network=network, gpu_type=board, sensitivity=1.0, rows=rows)


def at_load(load: float, seed: int) -> Problem:
    """The plant's problem at `load` times a mix drawn from the published ranges."""
    draw = random.Random(seed)
    problem = plant_problem()
    rates = {
        name: draw.uniform(WORKLOADS[name].lowest_rps, WORKLOADS[name].highest_rps)
        for name in SIX
    }
    services = (
        replace(each, arrival_rate_rps=load * rates[each.name])
        for each in problem.services
    )
    return replace(problem, services=tuple(services))


def planned_by(name: str, problem: Problem) -> Plan:
    """A policy's first plan; every policy has the same budget."""
    budget = Budget(seconds=10.0, work=1.0)
    plan, _, _ = policy(name).make_plan(problem, Observed(at_s=0.0), None, budget)
    return plan


def sum_of_throughputs_rps(problem: Problem, plan: Plan) -> float:
    """The paper's objective: Σ b / t over replicas, with what their neighbours cost."""
    rows = OperatingRows(problem)
    total = 0.0
    for gpu in plan.gpus:
        gpu_type = problem.gpu_type(gpu.gpu_type)
        mine = [rows.row_of(gpu, replica) for replica in gpu.replicas]
        for at, replica in enumerate(gpu.replicas):
            time_ms = execution_ms(
                mine[at],
                neighbours_of(mine, at),
                sensitivity=1.0,
                gpu_type=gpu_type,
            )
            total += gpu.count * 1000.0 * replica.batch / time_ms
    return total


class HighestLoad(NamedTuple):
    """Up to which load a policy's plans serve all but a thousandth; 0 where they serve none so."""

    believed: float
    """As the policy itself believes."""
    promised: float
    """With every percentile promised by the capacity law."""


def highest_load(name: str, seed: int, loads: Sequence[float] = LOADS) -> HighestLoad:
    """Of these, ascending, up to the first at which something is left out."""
    served: list[tuple[float, bool]] = []
    for load in loads:
        problem = at_load(load, seed)
        plan = planned_by(name, problem)
        asked_rps = sum(each.arrival_rate_rps for each in problem.services)
        # So little is what `optimal` leaves open, too.
        if sum(each.rate_rps for each in plan.unserved) > 1e-3 * asked_rps:
            break
        served.append((load, not violations(problem, plan)))
    lawful = takewhile(lambda each: each[1], served)
    return HighestLoad(
        believed=max((load for load, _ in served), default=0.0),
        promised=max((load for load, _ in lawful), default=0.0),
    )


def plant_table(seeds: Sequence[int], *, quick: bool = False) -> Table:
    """Σ b / t at the mixes' own rates, its gain over the baselines, and the highest loads; `quick`: of fewer ones."""
    return Table(
        system="InSS",
        title="six networks on 4 GPUs, the paper's own latencies, plans only",
        scenario="bench/papers/inss_plant.py",
        seeds=tuple(seeds),
        rows=tuple(_rows(seeds, LOADS[::4] if quick else LOADS)),
        notes=(
            "The paper's gains of throughput must be of Σ b / t: its baselines' 3,800 requests a second are more than "
            "its published program ever sends (at most 2,050). iGniter gives no network more than it needs.",
            "EfficientNet and MobileNet have one printed level each, GSLICE has no first plan without measurements.",
        ),
    )


def _rows(seeds: Sequence[int], loads: Sequence[float]) -> Iterator[Row]:
    sums: dict[str, tuple[float, ...]] = {}
    for name in POLICIES:
        problems = [at_load(1.0, seed) for seed in seeds]
        sums[name] = tuple(
            sum_of_throughputs_rps(each, planned_by(name, each)) for each in problems
        )
        yield _row("Σ b / t at the mix's rates, rps", name, sums[name])
    for name, paper in PAPER_GAINS.items():
        gains = tuple(
            100.0 * (mine / theirs - 1.0)
            for mine, theirs in zip(sums["inss"], sums[name], strict=True)
        )
        row = _row(f"gain in Σ b / t over {name}, %", "inss", gains)
        yield replace(row, paper=paper)
    for name in POLICIES:
        highest = [highest_load(name, seed, loads) for seed in seeds]
        believed = tuple(each.believed for each in highest)
        yield _row("highest load planned in full, x the mix", name, believed)
        promised = tuple(each.promised for each in highest)
        yield _row("the same with the 99th percentile promised", name, promised)


def _row(figure: str, name: str, values: tuple[float, ...]) -> Row:
    return Row(figure=figure, policy=name, paper=None, values=values, truth="synthetic")
