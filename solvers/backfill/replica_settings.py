"""What tasks need of a GPU whose replicas are set otherwise: none that has a place there, or could have one, loses it.

A higher clock or another batch may leave replicas their promises and still take the watts or the memory that a task
needs, or be one at which the task was never measured.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from solvers.backfill.hosts import Host, make_host
from solvers.backfill.problem import FillProblem
from solvers.backfill.residents import Seats
from solvers.laws.colocation import max_execution_ms
from solvers.laws.operating_rows import (
    CLOCK_TOLERANCE_MHZ,
    SM_PERCENT_TOLERANCE,
    OperatingRows,
)
from solvers.types.errors import InvalidInput
from solvers.types.plan import BoundGpu, BoundReplica, BoundTask
from solvers.types.problem import OperatingPoint, Problem
from solvers.types.state import ReplicaId, Task


class Places:
    """Places of one problem's tasks on GPUs with replicas."""

    def __init__(self, wanted: FillProblem) -> None:
        self._problem = wanted.problem
        self._rows, self._seats = OperatingRows(wanted.problem), Seats(wanted.points)
        self._tasks = {task.name: task for task in wanted.tasks}
        kinds = {
            (task.network, task.batch): task
            for task in sorted(wanted.tasks, key=lambda task: task.name)
        }
        self._kinds = [kinds[key] for key in sorted(kinds)]
        """One task of every network and batch: no other fits where it does not."""
        self._running = {
            gpu.id: tuple(task for task in gpu.tasks if task.is_resident)
            for gpu in wanted.running_gpus
        }

    def are_kept(self, gpu: BoundGpu, other: BoundGpu) -> bool:
        """Whether the GPU, set otherwise, obeys its limits and has a place for every task that it has one for now.

        Raises InvalidInput for a replica of `gpu` without a service or row.
        """
        before = make_host(self._problem, self._rows, gpu)
        try:
            after = make_host(self._problem, self._rows, other)
        except InvalidInput:
            # Its replicas were not measured at these settings.
            return False
        if not after.holds():
            return False
        residents = self._running.get(gpu.id, ())
        # Running tasks count only if they fit the present settings: otherwise they go whatever the GPU is set to.
        if self._seat(before, residents) and before.holds():
            if not self._seat(after, residents) or not after.holds():
                return False
        else:
            before.residents.clear()
        return all(
            self._has_place(after, kind)
            for kind in self._kinds
            if self._has_place(before, kind)
        )

    def _seat(self, host: Host, residents: tuple[BoundTask, ...]) -> bool:
        """Put what runs there on the host; whether all of it has a row."""
        for bound in residents:
            task = self._tasks.get(bound.name)
            # A task that is gone leaves its place to others.
            if task is None:
                continue
            seat = self._seats.of_share(task, host, bound.sm_percent)
            if seat is None:
                return False
            host.residents.append((bound, seat))
        return True

    def _has_place(self, host: Host, task: Task) -> bool:
        """Whether the smallest share fits; if it does not, no larger one does."""
        return any(host.fits(seat) for seat in self._seats.on(task, host)[:1])


GAIN = 1.1
"""Times the room that it has: for less a replica keeps its batch."""


def with_roomy_batches(wanted: FillProblem) -> FillProblem:
    """The problem with the replicas of every GPU at the roomiest batches at which no task loses a place (`places`).

    A batch may need more memory than the replica was started with: then it is a new process, without an id. Under a
    power budget, and without tasks, as it is. Raises InvalidInput for a replica without a service.
    """
    if wanted.problem.power_budget_w is not None or not wanted.tasks:
        return wanted
    places = Places(wanted)
    gpus = tuple(_with_room(wanted.problem, places, gpu) for gpu in wanted.bound.gpus)
    return replace(wanted, bound=replace(wanted.bound, gpus=gpus))


def _with_room(problem: Problem, places: Places, gpu: BoundGpu) -> BoundGpu:
    # One replica after the other, each next to the batches that those before it have got.
    for at, replica in enumerate(gpu.replicas):
        for following in _roomier(problem, gpu, replica):
            changed = replace(
                gpu,
                replicas=(*gpu.replicas[:at], following, *gpu.replicas[at + 1 :]),
            )
            if places.are_kept(gpu, changed):
                gpu = changed
                break
    return gpu


def _roomier(
    problem: Problem,
    gpu: BoundGpu,
    replica: BoundReplica,
) -> Iterator[BoundReplica]:
    """The replica at batches with more room, at its share and clock, the roomiest first."""
    points = problem.points_of(replica.network, gpu.gpu_type)
    own = [
        row
        for row in (points.rows if points else ())
        if abs(row.sm_percent - replica.sm_percent) <= SM_PERCENT_TOLERANCE
        and abs(row.clock_mhz - gpu.clock_mhz) <= CLOCK_TOLERANCE_MHZ
    ]
    rooms = {row.batch: _room(problem, replica, row) for row in own}
    # A replica that has lost its own row stays as it is: `make_host` raises for it.
    enough = GAIN * rooms.get(replica.batch, math.inf)
    for row in sorted(own, key=lambda row: (-rooms[row.batch], row.batch)):
        if rooms[row.batch] > enough:
            yield _at_row(replica, row)


def _room(problem: Problem, replica: BoundReplica, row: OperatingPoint) -> float:
    """By how much the execution may grow until its promise breaks; neighbours change that for all batches alike."""
    service = problem.service(replica.service)
    longest_ms = max_execution_ms(
        problem.capacity_law,
        percentile=service.percentile,
        batch=row.batch,
        slo_ms=service.slo_ms,
        rate_rps=replica.arrival_rate_rps,
    )
    return longest_ms / row.solo_ms


def _at_row(replica: BoundReplica, row: OperatingPoint) -> BoundReplica:
    """In place, where its memory is enough."""
    if row.memory_mib <= replica.memory_mib:
        return replace(replica, batch=row.batch)
    return replace(
        replica,
        id=ReplicaId(""),
        batch=row.batch,
        memory_mib=row.memory_mib,
    )


def with_top_clocks(wanted: FillProblem) -> FillProblem:
    """The problem with every GPU that carries replicas at the highest clock at which no task loses a place (`places`).

    Under a power budget, and without tasks, as it is. Raises InvalidInput for a replica without a service or row.
    """
    if wanted.problem.power_budget_w is not None or not wanted.tasks:
        return wanted
    places = Places(wanted)
    gpus = tuple(
        _at_top_clock(wanted.problem, places, gpu) if gpu.replicas else gpu
        for gpu in wanted.bound.gpus
    )
    return replace(wanted, bound=replace(wanted.bound, gpus=gpus))


def _at_top_clock(problem: Problem, places: Places, gpu: BoundGpu) -> BoundGpu:
    # The highest first: tasks run faster, and so do replicas. The present clock needs no test.
    for clock_mhz in sorted(problem.gpu_type(gpu.gpu_type).clocks_mhz, reverse=True):
        raised = replace(gpu, clock_mhz=max(clock_mhz, gpu.clock_mhz))
        if clock_mhz <= gpu.clock_mhz or places.are_kept(gpu, raised):
            return raised
    return gpu
