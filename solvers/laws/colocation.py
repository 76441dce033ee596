"""The contract's laws of shared GPUs, for solvers: execution times next to neighbours, capacities, and worst cases.

Nothing here decides anything. `solvers.check` re-states the same laws on its own; tests hold the two together.
Source: contract version 1, "The laws".
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

Reals = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_TIMES = slice(3, 6)
"""Columns transfer_ms, launch_ms and run_ms of an OperatingPoint."""
_SAFE_STEP = 1e-12
"""Relative step back from a computed limit, far above the rounding of the few operations behind it."""
_FINEST_STEP_PERCENT = 0.01
"""The grid of the worst neighbours is no finer, however fine the GPU type's own is: it has one column per step."""
_STEPS_TOLERANCE = 1e-6
"""A multiple of the SM step that is this near to an integer number of steps counts as one (the contract's matching)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The other replicas on a replica's GPU."""

    count: int
    """How many there are; the contract's n is `count + 1`."""
    pressure: float
    """Their summed pressure, the contract's Π."""


ALONE = Neighbours(count=0, pressure=0.0)


def neighbours_of(rows: Sequence[OperatingPoint], at: int) -> Neighbours:
    """Those of the replica or task at that position, given the rows of all on its GPU; their order changes nothing."""
    return neighbours_with([row for number, row in enumerate(rows) if number != at])


def neighbours_with(rows: Iterable[OperatingPoint]) -> Neighbours:
    """The neighbours that run at these rows."""
    pressures = [row.pressure for row in rows]
    # fsum makes the sum independent of the order, so that equal GPUs get equal times.
    return Neighbours(count=len(pressures), pressure=math.fsum(pressures))


def execution_ms(
    row: OperatingPoint,
    neighbours: Neighbours = ALONE,
    *,
    sensitivity: float,
    gpu_type: GpuType,
) -> float:
    """Milliseconds that one full batch takes next to these neighbours."""
    launch_ms = row.launch_ms * launch_factor(gpu_type, neighbours.count + 1)
    run_factor = 1.0 + sensitivity * neighbours.pressure
    # Asked first, since plans go through this a million times and few types have no SM limits.
    if gpu_type.overload is not None:
        run_factor += float(_overload(gpu_type, (row,), neighbours.pressure)[0])
    return row.transfer_ms + launch_ms + row.run_ms * run_factor


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
    utilisation = law.utilisation(percentile, batch, slo_ms / execution_ms)
    return 1000.0 * batch / execution_ms * utilisation


def alone_rps(
    problem: Problem, service: ServiceDemand, gpu_type: GpuType, row: OperatingPoint
) -> float:
    """The capacity of a replica of the service that has its GPU to itself. Raises ValueError as `capacity_rps` does."""
    # Nothing presses on it, so that its network's sensitivity does not matter.
    duration_ms = execution_ms(row, ALONE, sensitivity=0.0, gpu_type=gpu_type)
    return capacity_rps(
        problem.capacity_law,
        percentile=service.percentile,
        batch=row.batch,
        slo_ms=service.slo_ms,
        execution_ms=duration_ms,
    )


class Beside(NamedTuple):
    """What a replica does next to its neighbours."""

    execution_ms: float
    """Time of one full batch; infinite where its network has no points on the GPU type."""
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
    capacity = capacity_rps(
        problem.capacity_law,
        percentile=service.percentile,
        batch=row.batch,
        slo_ms=service.slo_ms,
        execution_ms=duration_ms,
    )
    return Beside(duration_ms, capacity)


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
    times = _times(rows)
    executions: Reals = times @ np.array(factors)
    executions += times[:, 2] * _overload(gpu_type, rows, neighbours.pressure)
    return executions


def _overload(
    gpu_type: GpuType, rows: Sequence[OperatingPoint], others: Reals | float
) -> Reals:
    """(N,) what the pressure of others adds to the run factor of rows where no SM limits hold; 0 elsewhere.

    Up to a whole GPU nothing, since kernels of one run while others wait for their hosts; linear beyond.
    """
    if gpu_type.overload is None:
        return np.zeros(len(rows))
    room = np.maximum(0.0, 1.0 - np.array([row.pressure for row in rows]))
    return gpu_type.overload * np.maximum(0.0, others - room)


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
    needed = rate_rps * slo_ms / (1000.0 * batch)
    execution = slo_ms / _min_ratio(
        law.slo_ratios, _column(law, percentile, batch), needed
    )
    # Rounding may have left it a few ulp too long; the checker, which computes forwards, must find the rate carried.
    while execution > 0.0 and rate_rps > capacity_rps(
        law, percentile=percentile, batch=batch, slo_ms=slo_ms, execution_ms=execution
    ):
        execution *= 1.0 - _SAFE_STEP
    return execution


def _min_ratio(
    ratios: Sequence[float], utilisations: Sequence[float], needed: float
) -> float:
    """The smallest r with r · ρ(r) >= needed; infinite where the law is 0 everywhere."""
    right = bisect_left(
        range(len(ratios)), needed, key=lambda cell: ratios[cell] * utilisations[cell]
    )
    if right == 0:
        return ratios[0]
    if right < len(ratios):
        cell = slice(right - 1, right + 1)
        return _ratio_within_cell(ratios[cell], utilisations[cell], needed)
    # Beyond its last ratio the law is constant.
    return needed / utilisations[-1] if utilisations[-1] > 0.0 else float("inf")


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
        transfer_ms, launch_ms, run_ms = _times(rows).T
        worst = np.zeros(len(rows))
        for count, pressure in enumerate(self.pressure[:, self._free_steps(rows)]):
            fits = np.isfinite(pressure)
            # −inf · 0 is NaN for a network that no neighbour disturbs, so it is replaced before and not after.
            others = np.where(fits, pressure, 0.0)
            beyond = _overload(self.gpu_type, rows, others)
            run_factor = 1.0 + sensitivity * others + beyond
            launch = launch_factor(self.gpu_type, count + 1)
            execution = transfer_ms + launch_ms * launch + run_ms * run_factor
            worst = np.maximum(worst, np.where(fits, execution, 0.0))
        return worst

    def _free_steps(self, rows: Sequence[OperatingPoint]) -> Indices:
        """(N,) SM steps that a replica at each row leaves free."""
        steps = self.pressure.shape[1] - 1
        used = np.array([row.sm_percent for row in rows]) / _grid_percent(self.gpu_type)
        free = np.clip(steps - np.ceil(used - _STEPS_TOLERANCE), 0, steps)
        free_steps: Indices = free.astype(np.int64)
        return free_steps


def worst_neighbours(
    candidates: Sequence[Sequence[OperatingPoint]],
    *,
    gpu_type: GpuType,
    max_replicas: int,
) -> WorstNeighbours:
    """The worst that up to `max_replicas` − 1 neighbours can do to a replica that shares its GPU with them.

    `candidates` holds one sequence of rows per *other* service that may come to such a GPU: of each at most one row
    is there, since no two replicas of a service share a GPU. (For arbitrary neighbours repeat the same rows
    `max_replicas` − 1 times.) Only SM percent limits the neighbours, or only their number where no SM limits hold;
    memory and power would only make it milder, and clocks are not matched, so the answer is an upper bound. A
    multiple-choice knapsack by dynamic programming over (services, number of neighbours, SM steps): services × rows on
    their Pareto front × max_replicas numpy operations.
    """
    step = _grid_percent(gpu_type)
    steps = int(100.0 / step + _STEPS_TOLERANCE)
    counts = max(1, min(max_replicas, len(candidates) + 1))
    worst = np.full((counts, steps + 1), -np.inf)
    worst[0] = 0.0
    for rows in candidates:
        # From a copy, since at most one row of a service is on the GPU.
        before = worst.copy()
        for width, pressure in _heaviest(rows, step):
            if width <= steps:
                added = before[:-1, : steps + 1 - width] + pressure
                worst[1:, width:] = np.maximum(worst[1:, width:], added)
    return WorstNeighbours(gpu_type=gpu_type, pressure=worst)


def _heaviest(rows: Sequence[OperatingPoint], step: float) -> list[tuple[int, float]]:
    """(SM steps, pressure) of the rows that no narrower row exceeds in pressure, ascending in both.

    Rounded down where the grid is coarser than the GPU type's, so that no set of neighbours is overlooked.
    """
    front: list[tuple[int, float]] = []
    # Among rows of one width the greatest pressure comes first, hence its sign.
    for width, negative in sorted(
        (int(row.sm_percent / step + _STEPS_TOLERANCE), -row.pressure) for row in rows
    ):
        if not front or -negative > front[-1][1]:
            front.append((width, -negative))
    return front


def _grid_percent(gpu_type: GpuType) -> float:
    # Without SM limits no neighbour takes a step of them.
    if gpu_type.overload is not None:
        return math.inf
    return max(gpu_type.sm_percent_step, _FINEST_STEP_PERCENT)


def _times(rows: Sequence[OperatingPoint]) -> Reals:
    """(N, 3) transfer, launch and run times."""
    # Reshaped, so that no rows at all give (0, 3) and not an error.
    table = np.array(rows, dtype=np.float64)
    return table.reshape(len(rows), len(OperatingPoint._fields))[:, _TIMES]


def _column(law: CapacityLaw, percentile: float, batch: int) -> Sequence[float]:
    plane = law.max_utilisation[law.percentiles.index(percentile)]
    return plane[law.batches.index(batch)]
