"""The contract's laws of shared GPUs, for solvers: execution times next to neighbours, capacities, and worst cases.

Nothing here decides anything. `solvers.check` re-states the same laws on its own; tests hold the two together.
Source: contract version 1, "The laws".
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.types.problem import CapacityLaw, OperatingPoint, Problem
from solvers.types.state import GpuType

Reals = npt.NDArray[np.float64]

_TIMES = slice(3, 6)
"""Columns transfer_ms, launch_ms and run_ms of an OperatingPoint."""
_SAFE_STEP = 1e-12
"""Relative step back from a computed limit, far above the rounding of the few operations behind it."""
_FINEST_STEP_PERCENT = 0.01
"""Neighbours are looked at on no finer a grid, however fine the GPU type's own is: it has one column per step."""
_STEPS_TOLERANCE = 1e-6
"""A multiple of the SM step that is this near to a whole number of steps counts as one (the contract's matching)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The other replicas on a replica's GPU."""

    count: int
    """How many there are; the contract's n is `count + 1`."""
    pressure: float
    """Their summed pressure, the contract's Π."""


ALONE = Neighbours(count=0, pressure=0.0)


def neighbours_of(rows: Sequence[OperatingPoint], at: int) -> Neighbours:
    """Those of the replica at that position, given the rows of all replicas of its GPU; their order changes nothing."""
    others = [row.pressure for number, row in enumerate(rows) if number != at]
    return Neighbours(count=len(others), pressure=math.fsum(others))


def execution_ms(
    row: OperatingPoint,
    neighbours: Neighbours = ALONE,
    *,
    sensitivity: float,
    gpu_type: GpuType,
) -> float:
    """Milliseconds that one whole batch takes next to these neighbours."""
    launch_ms = row.launch_ms * launch_factor(gpu_type, neighbours.count + 1)
    return (
        row.transfer_ms
        + launch_ms
        + row.run_ms * (1.0 + sensitivity * neighbours.pressure)
    )


def capacity_rps(
    law: CapacityLaw,
    *,
    percentile: float,
    batch: int,
    slo_ms: float,
    execution_ms: float,
) -> float:
    """The highest arrival rate at which that percentile of requests still finishes within the SLO.

    Falls as `execution_ms` (> 0) rises. Raises ValueError when the law holds no such percentile or batch.
    """
    return (
        1000.0
        * batch
        / execution_ms
        * law.utilisation(percentile, batch, slo_ms / execution_ms)
    )


class Beside(NamedTuple):
    """What a replica does beside its neighbours."""

    execution_ms: float
    """Of one whole batch; infinite where its network has no points on the GPU type."""
    capacity_rps: float
    """0 where it misses its SLO whatever its rate."""


def beside(
    problem: Problem,
    gpu_type: GpuType,
    seats: Sequence[tuple[str, OperatingPoint]],
    at: int,
) -> Beside:
    """What the replica at that position does; seats: service and row of every replica of the GPU.

    Raises KeyError for a service that the problem lacks.
    """
    name, row = seats[at]
    service = problem.service(name)
    points = problem.points_of(service.network, gpu_type.name)
    if points is None:
        return Beside(math.inf, 0.0)
    neighbours = neighbours_of([row for _, row in seats], at)
    duration_ms = execution_ms(
        row, neighbours, sensitivity=points.sensitivity, gpu_type=gpu_type
    )
    law, percentile, slo_ms = problem.capacity_law, service.percentile, service.slo_ms
    carried = capacity_rps(
        law,
        percentile=percentile,
        batch=row.batch,
        slo_ms=slo_ms,
        execution_ms=duration_ms,
    )
    return Beside(duration_ms, carried)


def executions_ms(
    rows: Sequence[OperatingPoint],
    neighbours: Neighbours = ALONE,
    *,
    sensitivity: float,
    gpu_type: GpuType,
) -> Reals:
    """`execution_ms` of many rows of one network on one GPU type: (N,)."""
    factors = (
        1.0,
        launch_factor(gpu_type, neighbours.count + 1),
        1.0 + sensitivity * neighbours.pressure,
    )
    executions: Reals = _times(rows) @ np.array(factors)
    return executions


def launch_factor(gpu_type: GpuType, replicas: int) -> float:
    """By how much the launch term grows with that many replicas on the GPU; 1 for a single one."""
    if replicas <= 1:
        return 1.0
    return 1.0 + gpu_type.launch_per_neighbour * replicas + gpu_type.launch_base


def capacities_rps(
    law: CapacityLaw,
    rows: Sequence[OperatingPoint],
    executions_ms: Reals,
    *,
    percentile: float,
    slo_ms: float,
) -> Reals:
    """`capacity_rps` of many rows: (N,), given their execution times (N,). Raises ValueError like `capacity_rps`."""
    batches = np.array([row.batch for row in rows], dtype=np.int64)
    ratios = slo_ms / executions_ms
    utilisations = np.zeros(len(rows))
    for batch in np.unique(batches):
        of_batch = batches == batch
        column = _column(law, percentile, int(batch))
        utilisations[of_batch] = np.interp(
            ratios[of_batch], law.slo_ratios, column, left=0.0
        )
    return 1000.0 * batches / executions_ms * utilisations


def max_execution_ms(
    law: CapacityLaw, *, percentile: float, batch: int, slo_ms: float, rate_rps: float
) -> float:
    """The longest execution time with which the capacity is still at least `rate_rps`; never overstated.

    Short of the exact value by at most 1e-9 of it. Infinite for rate 0, and 0 when no execution time is short enough
    (the law is 0 everywhere). With r = slo/execution the capacity is 1000 · batch · r · ρ(r) / slo, which never falls
    along r, so bisection over the grid finds the cell of the law, where r · ρ(r) is a quadratic.
    Raises ValueError like `capacity_rps`.
    """
    if rate_rps <= 0.0:
        return float("inf")
    column = _column(law, percentile, batch)
    needed = rate_rps * slo_ms / (1000.0 * batch)
    right = bisect_left(
        range(len(column)), needed, key=lambda cell: law.slo_ratios[cell] * column[cell]
    )
    if right == len(column):
        ratio = needed / column[-1] if column[-1] > 0.0 else float("inf")
    elif right == 0:
        ratio = law.slo_ratios[0]
    else:
        ratio = _ratio_within_cell(
            law.slo_ratios[right - 1 : right + 1], column[right - 1 : right + 1], needed
        )
    execution = slo_ms / ratio
    while execution > 0.0 and rate_rps > capacity_rps(
        law, percentile=percentile, batch=batch, slo_ms=slo_ms, execution_ms=execution
    ):
        execution *= 1.0 - _SAFE_STEP
    return execution


def _ratio_within_cell(
    ratios: Sequence[float], utilisations: Sequence[float], needed: float
) -> float:
    """The smallest r in the cell with r · ρ(r) = needed, ρ linear: m·r² + q·r − needed = 0."""
    slope = (utilisations[1] - utilisations[0]) / (ratios[1] - ratios[0])
    intercept = utilisations[0] - slope * ratios[0]
    if slope == 0.0:
        return needed / intercept
    # q may be negative (ρ rises from 0 inside the law), so the root is taken in the form without cancellation.
    root = np.sqrt(intercept * intercept + 4.0 * slope * needed)
    ratio = (
        2.0 * needed / (intercept + root)
        if intercept >= 0.0
        else (root - intercept) / (2.0 * slope)
    )
    return min(max(float(ratio), ratios[0]), ratios[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstNeighbours:
    """The worst neighbours that a replica can get on one GPU type, by SM percent that it leaves free."""

    gpu_type: GpuType
    pressure: Reals
    """(K, U): the greatest summed pressure of exactly k neighbours within u SM steps; −inf where k do not fit."""

    def executions_ms(
        self, rows: Sequence[OperatingPoint], *, sensitivity: float
    ) -> Reals:
        """Upper bounds (N,) of the execution times of rows of one network; a bound is reached by some set of
        neighbours."""
        steps = self.pressure.shape[1] - 1
        used = np.array([row.sm_percent for row in rows]) / _grid_percent(self.gpu_type)
        free = np.clip(steps - np.ceil(used - _STEPS_TOLERANCE), 0, steps).astype(
            np.int64
        )
        times = _times(rows)
        worst = np.zeros(len(rows))
        for count, pressure in enumerate(self.pressure[:, free]):
            run_factor = 1.0 + sensitivity * np.where(
                np.isfinite(pressure), pressure, 0.0
            )
            launch = launch_factor(self.gpu_type, count + 1)
            execution = times[:, 0] + times[:, 1] * launch + times[:, 2] * run_factor
            worst = np.maximum(worst, np.where(np.isfinite(pressure), execution, 0.0))
        return worst


def worst_neighbours(
    candidates: Sequence[Sequence[OperatingPoint]],
    *,
    gpu_type: GpuType,
    max_replicas: int,
) -> WorstNeighbours:
    """The worst that up to `max_replicas` − 1 neighbours can do to a replica that shares its GPU with them.

    `candidates` holds one sequence of rows per *other* service that may come to such a GPU: of each at most one row
    is there, since no two replicas of a service share a GPU. (For arbitrary neighbours repeat the same rows
    `max_replicas` − 1 times.) Only SM percent limits the neighbours; memory and power would only make it milder, and
    clocks are not matched, so the answer is an upper bound. A multiple-choice knapsack by dynamic programming over
    (services, number of neighbours, SM steps): services × rows on their Pareto front × max_replicas numpy operations.
    """
    step = _grid_percent(gpu_type)
    steps = int(100.0 / step + _STEPS_TOLERANCE)
    most = np.full((max(1, min(max_replicas, len(candidates) + 1)), steps + 1), -np.inf)
    most[0] = 0.0
    for rows in candidates:
        before = most.copy()
        for width, pressure in _heaviest(rows, step):
            if width <= steps:
                most[1:, width:] = np.maximum(
                    most[1:, width:], before[:-1, : steps + 1 - width] + pressure
                )
    return WorstNeighbours(gpu_type=gpu_type, pressure=most)


def _heaviest(rows: Sequence[OperatingPoint], step: float) -> list[tuple[int, float]]:
    """(SM steps, pressure) of the rows that no narrower row exceeds in pressure, ascending in both.

    Rounded down where the grid is coarser than the GPU type's, so that no set of neighbours is overlooked.
    """
    front: list[tuple[int, float]] = []
    for width, pressure in sorted(
        (int(row.sm_percent / step + _STEPS_TOLERANCE), -row.pressure) for row in rows
    ):
        if not front or -pressure > front[-1][1]:
            front.append((width, -pressure))
    return front


def _grid_percent(gpu_type: GpuType) -> float:
    return max(gpu_type.sm_percent_step, _FINEST_STEP_PERCENT)


def _times(rows: Sequence[OperatingPoint]) -> Reals:
    return np.array(rows, dtype=np.float64).reshape(
        len(rows), len(OperatingPoint._fields)
    )[:, _TIMES]


def _column(law: CapacityLaw, percentile: float, batch: int) -> Sequence[float]:
    return law.max_utilisation[law.percentiles.index(percentile)][
        law.batches.index(batch)
    ]
