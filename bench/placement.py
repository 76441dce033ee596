"""Placement: time, GPUs and proof on random fleets; `python -m bench.placement`."""

import json
import random
import statistics
import time
from pathlib import Path

from solvers.placement.problem import GpuStock, PendingReplica, PlacementProblem
from solvers.placement.solve import solve
from solvers.types.outcome import Budget

RESULTS = Path("bench/results/placement.json")
SIZES = ((8, 12), (16, 40), (100, 150))
SIZE_FACTORS = {"fits": 0.6, "distinct": 0.6, "too much": 1.2}
"""By load, on the sizes of the replicas. `distinct`: every replica is a service of its own, the hardest to prove."""
INSTANCES = 20
WORK = 0.2
"""CP-SAT's deterministic time for one GPU type; about 0.2 s on a quiet core."""

Row = dict[str, float | int | str]


def random_problem(gpus: int, replicas: int, load: str, seed: int) -> PlacementProblem:
    """Two GPU types, replicas of services with several replicas each, SM percents in steps of 5."""
    draw, size_factor = random.Random(f"{gpus} {replicas} {seed}"), SIZE_FACTORS[load]
    max_copies = 1 if load == "distinct" else max(1, gpus // 4)
    stocks = tuple(
        GpuStock(
            gpu_type=name,
            count=gpus // 2,
            price_usd_per_hour=price,
            memory_mib=memory_mib,
            power_w=power_w,
            max_replicas=6,
        )
        for name, price, memory_mib, power_w in (
            ("t4", 0.526, 15_360.0, 55.0),
            ("v100", 3.06, 32_768.0, 250.0),
        )
    )
    pending: list[PendingReplica] = []
    service = 0
    while len(pending) < replicas:
        stock = draw.choice(stocks)
        sm_percent = 5.0 * max(1, round(size_factor * draw.randint(2, 12)))
        memory, power = (
            size_factor * draw.uniform(0.05, 0.4),
            size_factor * draw.uniform(0.1, 0.5),
        )
        rate = draw.uniform(10.0, 300.0)
        for copy in range(draw.randint(1, max_copies)):
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


def measure(gpus: int, replicas: int, load: str) -> Row:
    """One row of the table: INSTANCES problems of one size and load."""
    milliseconds, value_gaps, price_gaps = [], [], [0.0]
    optimal, searched, left_out = 0, 0, 0
    for seed in range(INSTANCES):
        problem = random_problem(gpus, replicas, load, seed)
        started = time.perf_counter()
        solution, report = solve(problem, Budget(seconds=1.0, work=WORK))
        milliseconds.append(1000.0 * (time.perf_counter() - started))
        optimal += report.status == "optimal"
        searched += report.method == "cp-sat"
        left_out += bool(solution.unplaced)
        if not solution.unplaced:
            price_gaps.append(
                100.0
                * (
                    solution.price_usd_per_hour / solution.price_bound_usd_per_hour
                    - 1.0
                )
            )
        value_gaps.append(
            100.0 * (solution.placed_value_bound / solution.placed_value - 1.0)
        )
    return {
        "GPUs": gpus,
        "replicas": replicas,
        "load": load,
        "p50 ms": round(statistics.median(milliseconds), 1),
        "max ms": round(max(milliseconds), 1),
        "optimal": f"{optimal}/{INSTANCES}",
        "CP-SAT better": searched,
        "some left out": left_out,
        "worst price gap %": round(max(price_gaps), 2),
        "worst value gap %": round(max(value_gaps), 2),
    }


def main() -> None:
    """Print the table and write it to `bench/results/`."""
    solve(
        random_problem(2, 40, "too much", 0), Budget(work=0.01)
    )  # Imports ortools, which is not part of a decision's time.
    rows = [
        measure(gpus, replicas, load)
        for gpus, replicas in SIZES
        for load in SIZE_FACTORS
    ]
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(f"{value!s:>{len(name)}}" for name, value in row.items()))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
