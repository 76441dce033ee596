"""Placement: time, GPUs and proof on random fleets; `python -m bench.placement`."""

import json
import random
import statistics
import time
from pathlib import Path

from solvers.outcome import Budget
from solvers.placement.problem import GpuStock, PendingReplica, PlacementProblem
from solvers.placement.solve import solve

RESULTS = Path("bench/results/placement.json")
SIZES = ((8, 12), (16, 40), (100, 150))
INSTANCES = 20
WORK = 0.2
"""CP-SAT's deterministic time for one GPU type; about 0.2 s on a quiet core."""

Row = dict[str, float | int | str]


def random_problem(gpus: int, replicas: int, seed: int) -> PlacementProblem:
    """Two GPU types, replicas of services with several replicas each, SM percents in steps of 5."""
    draw = random.Random(f"{gpus} {replicas} {seed}")
    stocks = tuple(
        GpuStock(
            gpu_type=name,
            count=gpus // 2,
            price_usd_per_hour=price,
            memory_mib=memory_mib,
            power_w=power_w,
            max_replicas=6,
        )
        for name, price, memory_mib, power_w in (("t4", 0.526, 15_360.0, 55.0), ("v100", 3.06, 32_768.0, 250.0))
    )
    pending: list[PendingReplica] = []
    service = 0
    while len(pending) < replicas:
        stock = draw.choice(stocks)
        sm_percent, memory, power = 5.0 * draw.randint(2, 12), draw.uniform(0.05, 0.4), draw.uniform(0.1, 0.5)
        rate = draw.uniform(10.0, 300.0)
        for copy in range(draw.randint(1, max(1, gpus // 4))):
            pending.append(
                PendingReplica(
                    name=f"service-{service:03}/{copy}",
                    gpu_type=stock.gpu_type,
                    sm_percent=sm_percent,
                    memory_mib=round(memory * stock.memory_mib, 1),
                    power_w=round(power * stock.power_w, 1),
                    value=rate,
                    labels=(f"service-{service:03}",),
                )
            )
        service += 1
    return PlacementProblem(replicas=tuple(pending[:replicas]), gpus=stocks)


def measure(gpus: int, replicas: int) -> Row:
    """One row of the table: INSTANCES problems of one size."""
    milliseconds, gaps, optimal, searched, left_out = [], [], 0, 0, 0
    for seed in range(INSTANCES):
        problem = random_problem(gpus, replicas, seed)
        started = time.perf_counter()
        solution, report = solve(
            problem, Budget(seconds=1.0, work=WORK, elapsed=lambda s=started: time.perf_counter() - s)
        )
        milliseconds.append(1000.0 * (time.perf_counter() - started))
        optimal += report.status == "optimal"
        searched += report.method == "cp-sat"
        left_out += bool(solution.unplaced)
        gaps.append(100.0 * (solution.price_usd_per_hour / solution.price_bound_usd_per_hour - 1.0))
    return {
        "GPUs": gpus,
        "replicas": replicas,
        "p50 ms": round(statistics.median(milliseconds), 1),
        "max ms": round(max(milliseconds), 1),
        "optimal": f"{optimal}/{INSTANCES}",
        "CP-SAT better": searched,
        "some left out": left_out,
        "mean price gap %": round(statistics.mean(gaps), 2),
    }


def main() -> None:
    """Print the table and write it to `bench/results/`."""
    solve(random_problem(2, 40, 0), Budget(work=0.01))  # Imports ortools, which is not part of a decision's time.
    rows = [measure(gpus, replicas) for gpus, replicas in SIZES]
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(f"{value!s:>{len(name)}}" for name, value in row.items()))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
