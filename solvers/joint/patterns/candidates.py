"""Candidates: the operating rows of a Problem that may run on a GPU type at one clock, as one array of all fields.

A replica that misses its SLO, alone or with neighbours, carries nothing, yet may stand there and counts as one of its
service's fewest replicas. So services with such a least number keep rows that miss their SLO as candidates that carry
0; for others such a replica would only cost.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.types import Flags, Law, Numbers, Reals
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

STEP_TOLERANCE = 1e-6
"""Rounding of SM percents, and of how many steps they take."""

CANDIDATE_FIELDS = (
    "service",
    "row",
    "width",
    "law",
    "batch",
    "memory",
    "power",
    "pressure",
    "alone_ms",
    "launch_ms",
    "growth_ms",
    "overload_ms",
    "room",
    "slo_ms",
    "max_rps",
    "may_idle",
)
"""Fields of a GpuMode with one entry per candidate."""
_SERVICE, _WIDTH, _BATCH = (
    CANDIDATE_FIELDS.index(name) for name in ("service", "width", "batch")
)

Rows = Mapping[tuple[str, str], Reals]
"""The operating rows of each (network, GPU type)."""


def rows_of(problem: Problem) -> Rows:
    """The operating rows of a problem."""
    # Once, since many services may share a network.
    return {(one.network, one.gpu_type): _rows(one) for one in problem.points}


def _rows(points: OperatingPoints) -> Reals:
    """(K, fields of a row)"""
    return np.array(points.rows, dtype=np.float64).reshape(
        -1, len(OperatingPoint._fields)
    )


def sorted_candidates(
    problem: Problem, rows: Rows, gpu_type: GpuType, clock_mhz: float, law: Law
) -> Reals:
    """(K, fields) by service, SM steps and batch: kernels and branching take a service's candidates for a range."""
    table = _candidates(problem, rows, gpu_type, clock_mhz)
    table = table[_is_usable(table, problem, gpu_type, law)]
    return table[np.lexsort((table[:, _BATCH], table[:, _WIDTH], table[:, _SERVICE]))]


def max_width(problem: Problem, gpu_type: GpuType) -> float:
    """SM steps of the GPU, beyond a whole number by a tolerance for rounding; places where no SM limits hold."""
    if gpu_type.overload is not None:
        return float(problem.max_replicas_per_gpu)
    return 100.0 / gpu_type.sm_percent_step + STEP_TOLERANCE


def room_w(gpu_type: GpuType) -> float:
    """Watts that replicas may draw besides the idle ones."""
    return float(gpu_type.power_cap_w - gpu_type.idle_w)


def _candidates(
    problem: Problem, rows: Rows, gpu_type: GpuType, clock_mhz: float
) -> Reals:
    """(K, fields) the rows at the clock of every service that may run on the type."""
    tables = []
    for network, numbers in _services_by_network(problem, gpu_type).items():
        table = rows.get((network, gpu_type.name))
        if table is not None:
            at = np.flatnonzero(np.abs(table[:, 2] - clock_mhz) <= CLOCK_TOLERANCE_MHZ)
            tables.append(_of_network(problem, gpu_type, table[at], at, numbers))
    return np.vstack([np.zeros((0, len(CANDIDATE_FIELDS))), *tables])


def _services_by_network(problem: Problem, gpu_type: GpuType) -> dict[str, list[int]]:
    """Numbers of the services that may run on the type."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, service in enumerate(problem.services):
        if service.allows(gpu_type.name) and service.max_replicas != 0:
            numbers[service.network].append(number)
    return numbers


def _of_network(
    problem: Problem,
    gpu_type: GpuType,
    rows: Reals,
    at: npt.NDArray[np.int64],
    numbers: Sequence[int],
) -> Reals:
    """(K, fields) of the services with these numbers, all of one network, each with these rows of it.

    at: (K,) the rows' numbers.
    """
    law = problem.capacity_law
    services = [problem.services[number] for number in numbers]
    points = problem.points_of(services[0].network, gpu_type.name)
    assert points is not None, "it has rows"
    # Neither the clock, which all of them have, nor what only tasks do: stall.
    share, batch, _, transfer, launch, run, memory, power, pressure, _ = rows.T

    def by_row(column: Reals) -> Reals:
        return np.tile(column, len(services))

    def by_service(values: Sequence[float]) -> Reals:
        return np.repeat(np.array(values, np.float64), len(at))

    # Without SM limits replicas are counted: the table's `steps` are then as many as may share a GPU.
    is_uncapped = gpu_type.overload is not None
    steps = np.round(share / gpu_type.sm_percent_step)
    first_rows = [law.percentiles.index(each.percentile) for each in services]
    return np.column_stack(
        (
            by_service(numbers),
            by_row(at.astype(np.float64)),
            by_row(np.ones(len(at)) if is_uncapped else steps),
            len(law.batches) * by_service(first_rows) + by_row(_sizes_at(law, batch)),
            *map(by_row, (batch, memory, power, pressure, transfer + run, launch)),
            # What a unit of the others' pressure adds to the execution time.
            by_row(run * points.sensitivity),
            # And what it adds beyond the pressure that leaves the GPU full.
            by_row(run * (gpu_type.overload or 0.0)),
            by_row(np.maximum(0.0, 1.0 - pressure)),
            by_service([each.slo_ms for each in services]),
            by_service([_max_rps(each) for each in services]),
            by_service([float(each.min_replicas > 0) for each in services]),
        )
    )


def _max_rps(service: ServiceDemand) -> float:
    return np.inf if service.max_replica_rps is None else service.max_replica_rps


def _sizes_at(law: CapacityLaw, batch: Reals) -> Reals:
    """(K,) places of batches among the law's. Raises KeyError for one that is none of its own."""
    places = {float(size): at for at, size in enumerate(law.batches)}
    return np.array([places[size] for size in batch.tolist()], np.float64)


def _is_usable(table: Reals, problem: Problem, gpu_type: GpuType, law: Law) -> Flags:
    """(K,) candidates that fit the GPU by themselves and meet their SLO with no neighbour, or need not."""
    column = dict(zip(CANDIDATE_FIELDS, table.T, strict=True))
    duration_ms = np.maximum(column["alone_ms"] + column["launch_ms"], 1e-12)
    ratio = column["slo_ms"] / duration_ms
    utilisation = utilisation_at(law, column["law"].astype(np.int32), ratio)
    fits: Flags = (
        (column["memory"] <= gpu_type.memory_mib)
        & (column["power"] <= room_w(gpu_type))
        & (column["width"] <= max_width(problem, gpu_type))
        & ((utilisation > 0.0) | (column["may_idle"] > 0.0))
    )
    return fits


def utilisation_at(law: Law, rows: Numbers, ratio: Reals) -> Reals:
    """What the law's row of each candidate allows at these ratios of SLO to duration: (K, ...) for (K, ...) of them."""
    utilisation = np.zeros_like(ratio)
    for row in np.unique(rows):
        own = rows == row
        utilisation[own] = np.interp(
            ratio[own], law.ratios, law.utilisation[row], left=0.0
        )
    return utilisation
