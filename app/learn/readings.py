"""Readings: what replicas executed → how far that lies from what their operating points state. Pure functions.

The stated time of a replica is that of its row next to its neighbours, by the contract's law, at the mean size of the
batches that it executed: between the rows of its SM percent and clock, each term changes linearly with the batch.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.store.store import Execution
from solvers.laws.colocation import Neighbours, execution_ms, neighbours_of
from solvers.predict.data.samples import Group
from solvers.predict.learn.online import ExecutionReading, RowKey
from solvers.types.plan import BoundGpu
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType

MIN_BATCHES = 5
"""Fewer batches in a period say nothing."""
BATCH_CV = 0.15
"""Standard deviation of one batch's time over its mean; iGniter's co-located runs have 0.02 to 0.1."""
NEIGHBOUR_SHARE = 0.25
"""What neighbours add to ln(time) is known but for this share: how much they overlap depends on how busy they are.

Faster next to neighbours than stated is put down to them first, up to this share; slower is put down to the row.
"""
FILL_SIGMA = 0.03
"""Per doubling between the mean executed batch and the row's own."""


@dataclass(slots=True)
class StatedTimes:
    """Operating points by network, GPU type, SM percent and clock; indexed when first asked for."""

    points: Mapping[Group, OperatingPoints]
    gpu_types: Mapping[str, GpuType]
    _lines: dict[Group, dict[tuple[float, float], list[OperatingPoint]]] = field(
        default_factory=dict
    )

    def row(self, group: Group, key: RowKey) -> OperatingPoint | None:
        """The row of that SM percent, batch and clock, or None."""
        return next(
            (row for row in self._line(group, key) if row.batch == key.batch), None
        )

    def at_batch(
        self, group: Group, key: RowKey, batch: float
    ) -> OperatingPoint | None:
        """The row that batches of this mean size have; None outside the rows of that SM percent and clock."""
        line = self._line(group, key)
        # Outside the rows nothing is stated, and beyond its ends the law need not be linear.
        right = bisect_left(line, batch, key=lambda row: row.batch)
        if right == len(line) or (right == 0 and line[0].batch > batch):
            return None
        if line[right].batch == batch:
            return line[right]
        return _between(line[right - 1], line[right], batch)

    def _line(self, group: Group, key: RowKey) -> list[OperatingPoint]:
        if group not in self._lines:
            lines: dict[tuple[float, float], list[OperatingPoint]] = defaultdict(list)
            # Indexed on demand: a fleet runs few of the conditions that profiles have.
            for row in self.points[group].rows if group in self.points else ():
                lines[_place(row.sm_percent, row.clock_mhz)].append(row)
            self._lines[group] = {
                place: sorted(rows, key=lambda row: row.batch)
                for place, rows in lines.items()
            }
        return self._lines[group].get(_place(key.sm_percent, key.clock_mhz), [])


def _between(low: OperatingPoint, high: OperatingPoint, batch: float) -> OperatingPoint:
    """A row between two of the same SM percent and clock, each of whose terms changes linearly with the batch."""
    weight = (batch - low.batch) / (high.batch - low.batch)

    def at(start: float, end: float) -> float:
        return start + weight * (end - start)

    return high._replace(
        transfer_ms=at(low.transfer_ms, high.transfer_ms),
        launch_ms=at(low.launch_ms, high.launch_ms),
        run_ms=at(low.run_ms, high.run_ms),
    )


def make_readings(
    gpus: Iterable[BoundGpu], executions: Sequence[Execution], stated: StatedTimes
) -> dict[Group, list[ExecutionReading]]:
    """Readings by network and GPU type, of GPUs that ran exactly what the plan says all the while."""
    by_gpu = executed_by_gpu(executions)
    readings: dict[Group, list[ExecutionReading]] = defaultdict(list)
    for gpu in gpus:
        seen = by_gpu.get(gpu.id, {})
        if runs_as_planned(gpu, seen):
            for group, reading in _readings_of(gpu, seen, stated):
                readings[group].append(reading)
    return dict(readings)


def executed_by_gpu(
    executions: Iterable[Execution],
) -> Mapping[str, Mapping[str, Execution]]:
    """What executed, by GPU and replica."""
    by_gpu: dict[str, dict[str, Execution]] = defaultdict(dict)
    for execution in executions:
        by_gpu[execution.gpu][execution.replica] = execution
    return by_gpu


def runs_as_planned(gpu: BoundGpu, seen: Mapping[str, Execution]) -> bool:
    """Whether the GPU had the planned replicas, all ready with their settings, and no other.

    Next to a task a time says nothing sure of a replica: what tasks do to it is not learned.
    """
    if gpu.tasks:
        return False
    # Compared with the plan, not with each other: agents report what they run, and may be behind.
    planned = {
        replica.id: (replica.sm_percent, replica.batch) for replica in gpu.replicas
    }
    return planned.keys() == seen.keys() and all(
        each.is_steady and _same((each.sm_percent, each.batch), planned[each.replica])  # type: ignore[index]
        for each in seen.values()
    )


def _readings_of(
    gpu: BoundGpu, seen: Mapping[str, Execution], stated: StatedTimes
) -> Iterable[tuple[Group, ExecutionReading]]:
    conditions = _conditions(gpu)
    found = [stated.row(group, key) for group, key in conditions]
    rows = [row for row in found if row is not None]
    # With one neighbour unknown, no replica's stated time is known.
    if len(rows) < len(found) or gpu.gpu_type not in stated.gpu_types:
        return
    for at, (group, key) in enumerate(conditions):
        execution = seen[gpu.replicas[at].id]
        beside = neighbours_of(rows, at)
        reading = _reading(group, key, execution, beside, stated)
        if reading is not None:
            yield group, reading


def _conditions(gpu: BoundGpu) -> list[tuple[Group, RowKey]]:
    """What the row of each replica is known by."""
    return [
        (
            Group(each.network, gpu.gpu_type),
            RowKey(each.sm_percent, each.batch, gpu.clock_mhz),
        )
        for each in gpu.replicas
    ]


def _reading(
    group: Group,
    key: RowKey,
    execution: Execution,
    neighbours: Neighbours,
    stated: StatedTimes,
) -> ExecutionReading | None:
    """How far one replica's time lies from the stated one; None where it says nothing."""
    if execution.batches < MIN_BATCHES or execution.execution_ms <= 0.0:
        return None
    # Batches that go before they are full are shorter: the stated time is that of the mean size.
    fill = execution.requests / execution.batches
    if (row := stated.at_batch(group, key, fill)) is None:
        return None
    expected_ms = execution_ms(
        row,
        neighbours,
        sensitivity=stated.points[group].sensitivity,
        gpu_type=stated.gpu_types[group.gpu_type],
    )
    log_ratio = math.log(execution.execution_ms / expected_ms)
    unsure = NEIGHBOUR_SHARE * math.log(expected_ms / row.solo_ms)
    fill_sigma = FILL_SIGMA * math.log2(key.batch / fill)
    return ExecutionReading(
        replica=execution.replica,
        row=key,
        # Faster than stated is put down to the neighbours first, which may have been less busy than stated.
        log_ratio=log_ratio if log_ratio >= 0.0 else min(0.0, log_ratio + unsure),
        # Independent causes, so that their variances add up; the first shrinks with the number of batches.
        variance=BATCH_CV**2 / execution.batches + unsure**2 + fill_sigma**2,
    )


def _place(sm_percent: float, clock_mhz: float) -> tuple[float, float]:
    """To the contract's tolerances: 1e-6 percent, 1e-3 MHz."""
    return round(sm_percent, 6), round(clock_mhz, 3)


def _same(one: tuple[float, int], other: tuple[float, int]) -> bool:
    return round(one[0], 6) == round(other[0], 6) and one[1] == other[1]
