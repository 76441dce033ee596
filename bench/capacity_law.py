"""The capacity law at one percentile, how long its table takes to build, and how far it lies from a simulation.

python -m bench.capacity_law [--percentile 0.98] [--json bench/results/capacity_law.json]
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.bulk_queue_simulation import simulate_miss_probability
from solvers.laws.bulk_queue import miss_probability
from solvers.laws.capacity_law import make_capacity_law, max_utilisation

PERCENTILES = (0.95, 0.98, 0.99)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SHOWN_RATIOS = (1.0, 1.5, 1.9, 1.99, 2.0, 2.25, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0)
SIMULATED_QUEUES = ((1, 0.3), (1, 0.7), (4, 0.5), (16, 0.4), (16, 0.9), (64, 0.85))
SIMULATED_RATIOS = (1.2, 1.6, 1.9, 2.0, 2.4, 3.0, 5.0, 10.0)
SIMULATED_REQUESTS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run measured."""

    percentile: float
    slo_ratios: tuple[float, ...]
    max_utilisation: dict[int, tuple[float, ...]]
    """Per batch, at each of `slo_ratios`, without a table in between."""
    build_s: float
    """A table of PERCENTILES × BATCHES, nothing cached."""
    table_ratios: int
    simulation_points: int
    simulation_max_error: float
    """Largest absolute difference of the miss probability, predicted and simulated."""


def measure(percentile: float) -> Result:
    """Builds the table first, while nothing is cached."""
    started_at = time.perf_counter()
    law = make_capacity_law(PERCENTILES, BATCHES)
    build_s = time.perf_counter() - started_at
    errors = [
        _simulation_error(batch, utilisation) for batch, utilisation in SIMULATED_QUEUES
    ]
    return Result(
        percentile=percentile,
        slo_ratios=SHOWN_RATIOS,
        max_utilisation={
            batch: tuple(
                max_utilisation(batch, percentile=percentile, slo_ratio=ratio)
                for ratio in SHOWN_RATIOS
            )
            for batch in BATCHES
        },
        build_s=build_s,
        table_ratios=len(law.slo_ratios),
        simulation_points=len(SIMULATED_QUEUES) * len(SIMULATED_RATIOS),
        simulation_max_error=max(errors),
    )


def _simulation_error(batch: int, utilisation: float) -> float:
    simulated = simulate_miss_probability(
        batch,
        utilisation=utilisation,
        slo_ratios=SIMULATED_RATIOS,
        requests=SIMULATED_REQUESTS,
        seed=1,
    )
    predicted = miss_probability(
        batch, utilisation=utilisation, slo_ratio=SIMULATED_RATIOS
    )
    return float(np.max(np.abs(predicted - simulated)))


def print_table(result: Result) -> None:
    print(
        f"highest utilisation at {100 * result.percentile:g} %, by batch and SLO / execution time"
    )
    print("batch " + "".join(f"{ratio:>8g}" for ratio in result.slo_ratios))
    for batch, row in result.max_utilisation.items():
        print(f"{batch:>5} " + "".join(f"{value:>8.4f}" for value in row))
    print(
        f"table of {len(PERCENTILES)} percentiles × {len(BATCHES)} batches × {result.table_ratios} ratios:"
        f" {result.build_s:.2f} s"
    )
    print(
        f"simulation, {result.simulation_points} points: largest error of the miss probability"
        f" {result.simulation_max_error:.5f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--percentile", type=float, default=0.98)
    parser.add_argument(
        "--json", type=Path, default=Path("bench/results/capacity_law.json")
    )
    options = parser.parse_args()
    result = measure(options.percentile)
    print_table(result)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(asdict(result), indent=1) + "\n")


if __name__ == "__main__":
    main()
