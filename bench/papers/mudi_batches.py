"""Mudi's search for a batch where there is something to search: every batch from 1 to 32, against trying them all.

The catalogue has four to six batches of a network, of which the search tries most. Here rows between them are filled in
(linear in the batch, as the law of most networks is), one replica shares an A100 with one training task, and the batch
that GP-LCB comes to is compared with the best of all.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from app.catalogue.catalogue import load_gpu_types, load_profiles
from bench.papers.mudi_cases import whole_gpu
from bench.papers.mudi_scenario import GPU_TYPE, KINDS
from solvers.backfill.hosts import make_host
from solvers.backfill.residents import Seats
from solvers.laws.capacity_law import make_capacity_law
from solvers.laws.operating_rows import OperatingRows
from solvers.papers.mudi.iterations import Iterations
from solvers.papers.mudi.tune import Tuner
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import Task

NETWORKS = ("alexnet-trt", "resnet50-trt", "vgg19-trt")
LARGEST = 32
_SLOS_MS = (40.0, 80.0, 160.0)
_PARTS = (0.1, 0.6)  # a replica's rate, in parts of what an entire GPU carries


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """One replica and one task."""

    trials: int
    """Batches that were tried, of LARGEST."""
    over_least: float
    """The task's iteration time over that next to the best batch of all."""


def search_batches(seed: int) -> BatchSearch | None:
    """One random case; None where no batch lets the task in."""
    draw = random.Random(seed)
    network, kind = draw.choice(NETWORKS), draw.choice(KINDS)
    problem = _problem(network, draw.choice(_SLOS_MS))
    gpu = whole_gpu(problem, "service", number=0, part=draw.uniform(*_PARTS))
    task = Task(
        name="task",
        kind="training",
        network=kind.network,
        batch=kind.batch,
        iterations=1000,
    )
    host = make_host(problem, OperatingRows(problem), gpu)
    tuner = _tuner(problem)
    found = tuner.tune(host, [task], room=1.0)
    if found is None:
        return None
    # With the rows of one batch only, what the GPU is tuned to is the best with that one.
    single = (_tuner(_with_batch(problem, batch)) for batch in range(1, LARGEST + 1))
    tunings = (each.tune(host, [task], room=1.0) for each in single)
    least = min(each.slowness for each in tunings if each is not None)
    trials = max(len(search.trials) for search in tuner.searches)
    return BatchSearch(trials=trials, over_least=found.slowness / least)


def _tuner(problem: Problem) -> Tuner:
    seats = Seats(load_profiles(sorted({kind.network for kind in KINDS}), [GPU_TYPE]))
    return Tuner(
        problem=problem, seats=seats, iterations=Iterations(problem, seats, (), ())
    )


def _with_batch(problem: Problem, batch: int) -> Problem:
    (points,) = problem.points
    rows = tuple(row for row in points.rows if row.batch == batch)
    return replace(problem, points=(replace(points, rows=rows),))


def _problem(network: str, slo_ms: float) -> Problem:
    (gpu_type,) = load_gpu_types([GPU_TYPE])
    service = ServiceDemand(
        name="service",
        network=network,
        slo_ms=slo_ms,
        percentile=0.98,
        arrival_rate_rps=0.0,
    )
    return Problem(
        max_replicas_per_gpu=1,
        capacity_law=make_capacity_law([0.98], range(1, LARGEST + 1)),
        gpu_types=(gpu_type,),
        services=(service,),
        points=(_every_batch(network),),
    )


@cache
def _every_batch(network: str) -> OperatingPoints:
    """The catalogue's points with rows for all batches between its own."""
    (points,) = load_profiles([network], [GPU_TYPE])
    settings = sorted({(row.sm_percent, row.clock_mhz) for row in points.rows})
    rows = (
        row
        for setting in settings
        for row in _filled(
            [row for row in points.rows if (row.sm_percent, row.clock_mhz) == setting]
        )
    )
    return replace(points, rows=tuple(rows))


def _filled(rows: Sequence[OperatingPoint]) -> Iterator[OperatingPoint]:
    """Every figure of a row, linear in the batch between those that are known."""
    rows = sorted(rows, key=lambda row: row.batch)
    known = [row.batch for row in rows]
    for batch in range(known[0], known[-1] + 1):
        figures = (
            float(np.interp(batch, known, column))
            for column in list(zip(*rows, strict=True))[3:]
        )
        yield OperatingPoint(rows[0].sm_percent, batch, rows[0].clock_mhz, *figures)
