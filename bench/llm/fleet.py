"""The planner of language models on large fleets: gap to the proven bound, time, and what deciding together saves.

    python -m bench.llm.fleet [--shared ../shared]

Five GPU types (L40S, A100, H100, H200, B200: 32, 24, 24, 12 and 8 % of the fleet); services of the kinds in
`llm_fleet` with log-normal rates that use about half of the fleet, three quarters (tight) or all of it (scarce). Every
plan is checked. `single_percent`: how much cheaper than the best single GPU type for everything, as many of it as
wanted, with the best degree of each service and the default budget of 8,192 tokens.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bench.measured_sets import shared_folder
from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour
from solvers.llm.planner.fleet import plan_llms
from solvers.types.llm import LlmDemand, LlmPoints, LlmRow, TokenSlo
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import CapacityLaw, Problem
from solvers.types.state import GpuType

SHARES = {
    "l40s": 0.32,
    "a100_sxm": 0.24,
    "h100_sxm": 0.24,
    "h200_sxm": 0.12,
    "b200_sxm": 0.08,
}
PRICES: Mapping[str, Mapping[str, float]] = {
    # llm-d-planner's gpu_catalog, as llm_models/gpu_types.csv has it.
    "planner": {
        "l40s": 2.5,
        "a100_sxm": 3.5,
        "h100_sxm": 4.5,
        "h200_sxm": 5.75,
        "b200_sxm": 7.25,
    },
    # On demand, as the shipped catalogue has them; B200 by its ratio to H200 in the other list.
    "cloud": {
        "l40s": 1.861,
        "a100_sxm": 5.069,
        "h100_sxm": 6.88,
        "h200_sxm": 7.91,
        "b200_sxm": 9.97,
    },
}
MEMORY_GIB = {
    "l40s": 48,
    "a100_sxm": 80,
    "h100_sxm": 80,
    "h200_sxm": 141,
    "b200_sxm": 180,
}
DEFAULT_BUDGET = 8192
CLOCK_MHZ = 1980.0
SIZES = ((100, 30), (1000, 100), (3000, 300), (10_000, 1000))
BUDGET_S = 10.0
_USE = {"plenty": 0.5, "tight": 0.75, "scarce": 0.95}


class Kind(NamedTuple):
    """One kind of service: a network with its lengths and SLO."""

    network: str
    load: str
    ttft_ms: float
    itl_ms: float


Capacities = Mapping[Kind, Mapping[tuple[str, int, int], float]]
"""By kind and by GPU type, degree and token budget."""


def load_capacities(path: Path) -> Capacities:
    """Requests per second of one replica; kinds that no GPU type can serve are left out."""
    found: defaultdict[Kind, dict[tuple[str, int, int], float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            kind = Kind(
                row["model"], row["load"], float(row["ttft_ms"]), float(row["itl_ms"])
            )
            key = (row["system"], int(row["tp"]), int(row["chunk"]))
            found[kind][key] = float(row["capacity_rps"])
    return {kind: own for kind, own in sorted(found.items()) if max(own.values()) > 0.0}


def make_problem(
    capacities: Capacities,
    prices: Mapping[str, float],
    *,
    gpus: int,
    services: int,
    seed: int,
    use: float,
) -> Problem:
    """A fleet with `gpus` GPUs and services that want about that share of it."""
    generator = np.random.default_rng(seed)
    kinds = list(capacities)
    drawn = [kinds[at] for at in generator.integers(len(kinds), size=services)]
    rates = np.exp(generator.normal(1.0, 1.0, size=services))
    wanted = [
        rate / _rps_per_gpu(capacities[kind])
        for kind, rate in zip(drawn, rates, strict=True)
    ]
    rates *= use * gpus / math.fsum(wanted)
    return Problem(
        max_replicas_per_gpu=1,
        capacity_law=CapacityLaw(
            percentiles=(), batches=(), slo_ratios=(1.0, 2.0), max_utilisation=()
        ),
        gpu_types=tuple(
            _gpu_type(name, prices[name], count=round(share * gpus / 8) * 8)
            for name, share in SHARES.items()
        ),
        services=(),
        points=(),
        llm_services=tuple(
            _service(at, kind, float(rate))
            for at, (kind, rate) in enumerate(zip(drawn, rates, strict=True))
        ),
        llm_points=tuple(
            points
            for at, kind in enumerate(drawn)
            for points in _points(at, kind, capacities[kind])
        ),
    )


def _rps_per_gpu(own: Mapping[tuple[str, int, int], float]) -> float:
    """Requests per second of a GPU, at the best way to run on each type, averaged over the fleet."""
    return math.fsum(
        share
        * max(
            (rps / tp for (name, tp, _), rps in own.items() if name == each),
            default=0.0,
        )
        for each, share in SHARES.items()
    )


def _gpu_type(name: str, price: float, count: int | None) -> GpuType:
    return GpuType(
        name=name,
        price_usd_per_hour=price,
        memory_mib=MEMORY_GIB[name] * 1024.0,
        count=count,
        sm_percent_step=100.0,
        idle_w=80.0,
        power_cap_w=1000.0,
        clocks_mhz=(CLOCK_MHZ,),
        gpus_per_node=8,
    )


def _service(at: int, kind: Kind, rate_rps: float) -> LlmDemand:
    return LlmDemand(
        name=f"service-{at:04d}",
        network=kind.network,
        slo=TokenSlo(ttft_ms=kind.ttft_ms, itl_ms=kind.itl_ms, percentile=0.95),
        lengths=kind.load,
        arrival_rate_rps=rate_rps,
    )


def _points(
    at: int, kind: Kind, own: Mapping[tuple[str, int, int], float]
) -> list[LlmPoints]:
    rows: defaultdict[str, list[LlmRow]] = defaultdict(list)
    for (name, tp, budget), rps in sorted(own.items()):
        memory_mib = 0.9 * 1024.0 * MEMORY_GIB[name]
        row = LlmRow(tp, budget, 256, 100.0, CLOCK_MHZ, rps, memory_mib, 400.0, 90.0)
        rows[name].append(row)
    return [
        LlmPoints(
            service=f"service-{at:04d}",
            gpu_type=name,
            network=kind.network,
            provenance="predicted",
            rows=tuple(of_type),
        )
        for name, of_type in rows.items()
    ]


def single_type_usd(problem: Problem) -> float:
    """What everything costs on the best single GPU type, in any number, with the default token budget."""
    totals = []
    for gpu_type in problem.gpu_types:
        only = replace(
            problem,
            gpu_types=(replace(gpu_type, count=None, paid_count=0),),
            llm_points=tuple(
                replace(
                    points,
                    rows=tuple(
                        row
                        for row in points.rows
                        if row.max_num_batched_tokens == DEFAULT_BUDGET
                    ),
                )
                for points in problem.llm_points
                if points.gpu_type == gpu_type.name
            ),
        )
        found = plan_llms(only, Budget(seconds=BUDGET_S))
        if not found.unserved:
            totals.append(_cost(only, found.replicas))
    return min(totals, default=math.inf)


def _cost(problem: Problem, replicas: Sequence) -> float:  # type: ignore[type-arg]
    plan = Plan(policy="joint", llm_replicas=tuple(replicas))
    return cost_usd_per_hour(problem, plan)


def measure(problem: Problem, **names: str | int) -> Figures:
    """One row of the table."""
    began = perf_counter()
    budget = Budget(seconds=BUDGET_S, elapsed=lambda: perf_counter() - began)
    found = plan_llms(problem, budget)
    seconds = perf_counter() - began
    plan = Plan(policy="joint", llm_replicas=found.replicas, unserved=found.unserved)
    cost = cost_usd_per_hour(problem, plan)
    single = single_type_usd(problem) if problem.llm_services else math.nan
    return {
        **names,
        "cost_usd_per_hour": round(cost, 2),
        "gap_percent": round(100.0 * (cost / found.cost_bound - 1.0), 3)
        if found.cost_bound
        else None,
        "seconds": round(seconds, 2),
        "short_services": len(found.unserved),
        "violations": len(violations(problem, plan)),
        "single_percent": round(100.0 * (1.0 - cost / single), 1)
        if not found.unserved and math.isfinite(single)
        else None,
    }


def main() -> None:
    """Print the table and write it."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    capacities = load_capacities(shared / "data" / "llm_fleet" / "capacities.csv")
    rows = []
    for gpus, services in SIZES:
        for list_name, prices in PRICES.items():
            for fleet, use in _USE.items():
                for seed in range(3 if gpus == 1000 else 1):
                    problem = make_problem(
                        capacities,
                        prices,
                        gpus=gpus,
                        services=services,
                        seed=seed,
                        use=use,
                    )
                    rows.append(
                        measure(
                            problem,
                            gpus=gpus,
                            services=services,
                            prices=list_name,
                            fleet=fleet,
                            seed=seed,
                        )
                    )
    print_table(rows)
    write_results("llm_fleet", rows)


if __name__ == "__main__":
    main()
