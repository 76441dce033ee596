"""How far the catalogue's operating points lie from the simulated truth: solo, and packed as the contract's law says.

    python -m bench.catalogue_error [--json bench/results/catalogue_error.json]

Per network and GPU type: the mean absolute error of the planner's execution time, and the share of points at which
the truth is slower than the planner believes by more than 5 %. Packed: n equal replicas of the network fill the GPU.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth, load_truth
from app.catalogue.catalogue import list_networks, load_gpu_types, load_profiles
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType

PACKED = (2, 5, 10)
"""Replicas per GPU of the packed comparison, each with 100 / n percent of the SMs."""
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Planner against truth over the top-clock operating points of one network on one GPU type."""

    network: str
    gpu_type: str
    case: str
    """`solo`, or `packed-n` with n replicas on the GPU."""
    points: int
    mean_abs_error_percent: float
    mean_error_percent: float
    """Positive: the planner expects a longer time than the truth."""
    truth_over_by_5_percent: float
    """Share of the points, in percent, at which the truth exceeds the planner's time by more than 5 %."""


def compare(
    truth: Truth, gpu_type: GpuType, points: OperatingPoints
) -> Iterator[ErrorRow]:
    """Solo over all shares, then each packing over the rows with 100 / n percent."""
    top = [row for row in points.rows if row.clock_mhz == gpu_type.clocks_mhz[-1]]
    yield _summary(
        points, "solo", [_relative(truth, gpu_type, points, row, 1) for row in top]
    )
    for replicas in PACKED:
        rows = [row for row in top if row.sm_percent == 100 / replicas]
        errors = [_relative(truth, gpu_type, points, row, replicas) for row in rows]
        yield _summary(points, f"packed-{replicas}", errors)


def _relative(
    truth: Truth,
    gpu_type: GpuType,
    points: OperatingPoints,
    row: OperatingPoint,
    replicas: int,
) -> float:
    """(predicted - true) / true execution time of one row among `replicas` equal ones."""
    neighbours = replicas - 1
    launch_growth = (
        gpu_type.launch_per_neighbour * replicas + gpu_type.launch_base
        if neighbours
        else 0.0
    )
    predicted_ms = (
        row.transfer_ms
        + row.launch_ms * (1 + launch_growth)
        + row.run_ms * (1 + points.sensitivity * row.pressure * neighbours)
    )
    placed = RunningPart(
        network=points.network,
        gpu_type=points.gpu_type,
        sm_percent=row.sm_percent,
        batch=row.batch,
        clock_mhz=row.clock_mhz,
        neighbours=(SimulatedNeighbour(points.network, row.sm_percent, row.batch),)
        * neighbours,
    )
    true_ms = truth.execution_ms(placed, row.batch)
    return (predicted_ms - true_ms) / true_ms


def _summary(points: OperatingPoints, case: str, errors: list[float]) -> ErrorRow:
    # predicted < true / (1 + 5 %)
    slower = [error < 1 / (1 + TOLERANCE) - 1 for error in errors]
    return ErrorRow(
        network=points.network,
        gpu_type=points.gpu_type,
        case=case,
        points=len(errors),
        mean_abs_error_percent=round(100 * mean(map(abs, errors)), 2),
        mean_error_percent=round(100 * mean(errors), 2),
        truth_over_by_5_percent=round(100 * mean(slower), 2),
    )


def main() -> None:
    """Print the table for the V100 and the T4, and write all rows as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gpu-types", nargs="*", default=["V100-32GB", "T4"])
    arguments = parser.parse_args()
    truth = load_truth()
    types = {
        gpu_type.name: gpu_type for gpu_type in load_gpu_types(arguments.gpu_types)
    }
    shipped = load_profiles(list_networks("inference"), types)
    rows = [
        row
        for points in shipped
        for row in compare(truth, types[points.gpu_type], points)
    ]
    for gpu_type in types:
        print_table(gpu_type, [row for row in rows if row.gpu_type == gpu_type])
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps([asdict(row) for row in rows], indent=1) + "\n"
        )


def print_table(gpu_type: str, rows: list[ErrorRow]) -> None:
    """One line per network: mean absolute error / mean error / share of points with the truth over by 5 %."""
    cases = ["solo", *(f"packed-{count}" for count in PACKED)]
    print(
        f"\n{gpu_type}: |error| / error / points with the truth > 5 % over, all in percent"
    )
    print(f"{'network':20}" + "".join(f"{case:>24}" for case in cases))
    for network in dict.fromkeys(row.network for row in rows):
        print(f"{network:20}" + "".join(_cell(rows, network, case) for case in cases))
    for case in cases:
        of_case = [row for row in rows if row.case == case]
        print(
            f"all, {case}: |error| {mean(row.mean_abs_error_percent for row in of_case):.1f},"
            f" truth over {mean(row.truth_over_by_5_percent for row in of_case):.1f}"
        )


def _cell(rows: list[ErrorRow], network: str, case: str) -> str:
    row = next(row for row in rows if row.network == network and row.case == case)
    text = f"{row.mean_abs_error_percent:.1f} / {row.mean_error_percent:+.1f} / {row.truth_over_by_5_percent:.0f}"
    return f"{text:>24}"


if __name__ == "__main__":
    main()
