"""`plimsoll samples plan`: what to measure next of a network, without any server."""

import sys
from collections.abc import Sequence
from itertools import product
from math import isnan
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from agents.base.plurals import counted
from app.catalogue.catalogue import CatalogueError, load_gpu_types
from app.cli.common.files import STDIO, write_csv
from app.measurements.csv_files import query_rows, read_samples
from solvers.predict.data.sample_checks import MAX_BATCH
from solvers.predict.data.samples import Group, Queries, make_queries
from solvers.predict.learn.profiling_plan import MAX_POINTS, make_profiling_plan
from solvers.types.state import GpuType

Condition: TypeAlias = tuple[float, float, float]
"""Batch, SM percent, clock in MHz."""

USUAL_POINTS = 8
"""With this number of samples an unmeasured network's error falls to a quarter (docs/predict.md)."""


def plan(
    network: Annotated[
        str, typer.Argument(metavar="NETWORK", help="The network to measure")
    ],
    gpu_type: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="GPU type of the catalogue, on which to measure"
        ),
    ],
    *,
    samples: Annotated[
        list[Path] | None,
        typer.Option(metavar="CSV", help="Samples measured so far; may be repeated"),
    ] = None,
    points: Annotated[
        int,
        typer.Option("--count", min=1, max=MAX_POINTS, help="At most this many points"),
    ] = USUAL_POINTS,
    largest_batch: Annotated[
        int,
        typer.Option(
            min=1, max=int(MAX_BATCH), help="Batches are 1, 2, 4, ... up to this"
        ),
    ] = 64,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="POINTS",
            help="Where to write the points; - = stdout",
        ),
    ] = STDIO,
) -> None:
    """List the most informative points to measure next for a network.

    Needs no server. Writes batch, SM percent and clock of each point as CSV, the most informative first. Measure there,
    fill in latency_ms, and give the file to `plimsoll fit` or `plimsoll samples send`.
    """
    try:
        (found,) = load_gpu_types([gpu_type])
    except CatalogueError as error:
        raise typer.BadParameter(str(error), param_hint="'--gpu-type'") from error
    done = _measured(samples or [], network, found)
    # Sorted: equally informative points are proposed in one order, whatever a set's.
    grid = sorted(set(_grid(found, largest_batch)).difference(done))
    proposed = make_profiling_plan(
        _queries(network, found, grid),
        done=_queries(network, found, done),
        count=points,
    )
    write_csv(output, query_rows(proposed))
    sys.stderr.write(
        f"{counted(len(proposed), 'point')} to measure; {len(done):,} known already\n"
    )


def _grid(gpu_type: GpuType, largest_batch: int) -> list[Condition]:
    """Everything that could be measured: batches by doubling, each step of the SM percent, each clock."""
    # Throughput changes little between 16 and 17; doubling covers the range with seven batches.
    batches = (float(2**power) for power in range(largest_batch.bit_length()))
    steps = range(1, int(100.0 / gpu_type.sm_percent_step) + 1)
    shares = [step * gpu_type.sm_percent_step for step in steps]
    return list(product(batches, shares, gpu_type.clocks_mhz))


def _measured(
    files: Sequence[Path], network: str, gpu_type: GpuType
) -> list[Condition]:
    """The distinct conditions of the network on the GPU type that were measured alone and without limits."""
    if not files:
        return []
    at = read_samples(files).samples.at
    found = set()
    for row in at.groups().get(Group(network, gpu_type.name), ()):
        if (
            # Samples next to neighbours or under limits say little of the network alone: their points are still to be
            # measured.
            at.time_quota_percent[row] == 100.0
            and isnan(at.power_limit_w[row])
            and not at.neighbours[row]
        ):
            # An unknown clock means the highest one, as everywhere.
            clock_mhz = (
                max(gpu_type.clocks_mhz)
                if isnan(at.clock_mhz[row])
                else float(at.clock_mhz[row])
            )
            found.add((float(at.batch[row]), float(at.sm_percent[row]), clock_mhz))
    return sorted(found)


def _queries(
    network: str, gpu_type: GpuType, conditions: Sequence[Condition]
) -> Queries:
    size = len(conditions)
    batch, sm_percent, clock_mhz = (
        zip(*conditions, strict=True) if conditions else ((), (), ())
    )
    return make_queries(
        [network] * size,
        [gpu_type.name] * size,
        batch=batch,
        sm_percent=sm_percent,
        clock_mhz=clock_mhz,
    )
