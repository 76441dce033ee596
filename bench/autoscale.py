"""How long the autoscaling technique takes: p50 and p99 by method and size, with enough GPUs and with too few.

Run: `python -m bench.autoscale`. Prints a table and writes bench/results/autoscale.json.
"""

import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from solvers.autoscale.problem import (
    AutoscaleProblem,
    ScalingOption,
    ServiceTarget,
    TypeTotals,
)
from solvers.autoscale.solve import Method, solve
from solvers.types.outcome import Budget

RESULTS = Path(__file__).parent / "results" / "autoscale.json"
PRICES_USD_PER_HOUR = (0.35, 0.71, 1.21, 3.06)
"""List prices of the order of T4, L4, A10G and V100."""
BUDGET = Budget(seconds=5.0, work=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    services: int
    gpu_types: int
    gpus_per_type: int
    method: Method
    solves: int
    ms_p50: float
    ms_p99: float
    optimal: int
    short: int
    """Solves in which some service was left short."""
    cost_over_best_percent_mean: float
    """Cost of the wanted replicas above the best method's, where both serve everything."""


def make_problem(
    *, services: int, gpu_types: int, gpus: int, seed: int
) -> AutoscaleProblem:
    """A seeded problem whose services run at last period's rate and now want another."""
    draw = random.Random(f"{services}/{gpu_types}/{gpus}/{seed}")
    prices = {f"type-{index}": PRICES_USD_PER_HOUR[index] for index in range(gpu_types)}
    targets = tuple(
        ServiceTarget(
            name=f"service-{index:02}",
            arrival_rate_rps=draw.uniform(20, 600),
            priority=draw.choice([1, 2, 5]),
        )
        for index in range(services)
    )
    options = tuple(
        ScalingOption(
            service=target.name,
            gpu_type=gpu_type,
            capacity_rps=price * draw.uniform(60, 140),
            cost_usd_per_hour=price * (share := draw.choice([0.2, 0.3, 0.5, 1.0])),
            memory_mib=draw.uniform(1500, 8000),
            sm_percent=100 * share,
            power_w=120 * share,
            running=draw.choice([0, 0, 1, 2]),
            launch_s=draw.uniform(5, 40),
        )
        for target in targets
        for gpu_type, price in prices.items()
    )
    totals = tuple(
        TypeTotals(
            gpu_type=name,
            gpus=gpus,
            memory_mib=16000 * gpus,
            sm_percent=100 * gpus,
            power_w=200 * gpus,
        )
        for name in prices
    )
    return AutoscaleProblem(
        services=targets, options=options, totals=totals, launch_weight_per_s=0.005
    )


def measure(*, services: int, gpu_types: int, gpus: int, solves: int) -> list[Row]:
    """The rows of one size, one per method, over the same problems."""
    problems = [
        make_problem(services=services, gpu_types=gpu_types, gpus=gpus, seed=seed)
        for seed in range(solves)
    ]
    costs: dict[Method, list[float]] = {}
    times: dict[Method, list[float]] = {}
    counts: Counter[tuple[Method, str]] = Counter()
    methods: tuple[Method, ...] = ("cp_sat", "highs", "cbc", "greedy")
    for method in methods:
        solve(problems[0], BUDGET, method=method)  # Loads the solver.
        costs[method], times[method] = [], []
        for problem in problems:
            begun = time.perf_counter()
            solution, report = solve(problem, BUDGET, method=method)
            times[method].append(1000 * (time.perf_counter() - begun))
            counts[method, "optimal"] += report.status.value == "optimal"
            counts[method, "short"] += bool(solution.unserved)
            prices = [
                option.cost_usd_per_hour for option in sorted(problem.options, key=_key)
            ]
            cost = sum(
                price * entry.count
                for price, entry in zip(prices, solution.counts, strict=True)
            )
            costs[method].append(float("nan") if solution.unserved else cost)
    best = np.nanmin(np.array(list(costs.values())), axis=0, initial=np.inf)
    return [
        Row(
            services=services,
            gpu_types=gpu_types,
            gpus_per_type=gpus,
            method=method,
            solves=solves,
            ms_p50=float(np.percentile(times[method], 50)),
            ms_p99=float(np.percentile(times[method], 99)),
            optimal=counts[method, "optimal"],
            short=counts[method, "short"],
            cost_over_best_percent_mean=_mean_excess_percent(
                np.array(costs[method]), best
            ),
        )
        for method in methods
    ]


def main() -> None:
    """Measure all sizes, print the table and write the JSON."""
    rows = [
        *measure(services=4, gpu_types=2, gpus=8, solves=200),
        *measure(services=4, gpu_types=2, gpus=2, solves=200),
        *measure(services=30, gpu_types=4, gpus=40, solves=100),
        *measure(services=30, gpu_types=4, gpus=16, solves=20),
    ]
    print(
        "services  types  gpus/type  method   solves   p50 ms   p99 ms  optimal  short  cost over best"
    )
    for row in rows:
        print(
            f"{row.services:8}  {row.gpu_types:5}  {row.gpus_per_type:9}  {row.method:7}  {row.solves:6}"
            f"  {row.ms_p50:7.2f}  {row.ms_p99:7.2f}  {row.optimal:7}  {row.short:5}"
            f"  {row.cost_over_best_percent_mean:12.2f} %"
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _key(option: ScalingOption) -> tuple[str, str]:
    return option.service, option.gpu_type


def _mean_excess_percent(costs: np.ndarray, best: np.ndarray) -> float:
    served = np.isfinite(costs) & np.isfinite(best)
    return (
        float(np.mean(100 * (costs[served] / best[served] - 1)))
        if served.any()
        else 0.0
    )


if __name__ == "__main__":
    main()
