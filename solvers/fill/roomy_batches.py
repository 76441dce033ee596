"""Replicas beside which tasks run at the batch that leaves these most room, instead of the cheapest one.

The room of a batch is the longest execution with which the replica keeps its promise at its rate, over the execution
that it has alone: so much may neighbours and a burst slow it down together. A plan for replicas alone chooses the batch
at which they are cheapest, which is often a smaller one with less room: then every burst puts the tasks out.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from solvers.fill.places import Places
from solvers.fill.problem import FillProblem
from solvers.plan import BoundGpu, BoundReplica
from solvers.predict.colocation import max_execution_ms
from solvers.problem import OperatingPoint, Problem
from solvers.rows import CLOCK_TOLERANCE_MHZ, SM_PERCENT_TOLERANCE
from solvers.state import ReplicaId

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
    for at, replica in enumerate(gpu.replicas):
        for following in _roomier(problem, gpu, replica):
            changed = replace(gpu, replicas=(*gpu.replicas[:at], following, *gpu.replicas[at + 1 :]))
            if places.are_kept(gpu, changed):
                gpu = changed
                break
    return gpu


def _roomier(problem: Problem, gpu: BoundGpu, replica: BoundReplica) -> Iterator[BoundReplica]:
    """The replica at batches with more room, at its share and clock, the roomiest first."""
    points = problem.points_of(replica.network, gpu.gpu_type)
    own = [
        row
        for row in (points.rows if points else ())
        if abs(row.sm_percent - replica.sm_percent) <= SM_PERCENT_TOLERANCE
        and abs(row.clock_mhz - gpu.clock_mhz) <= CLOCK_TOLERANCE_MHZ
    ]
    rooms = {row.batch: _room(problem, replica, row) for row in own}
    enough = GAIN * rooms.get(replica.batch, math.inf)  # Who has lost its own row is told so by whoever seats it.
    for row in sorted(own, key=lambda row: (-rooms[row.batch], row.batch)):
        if rooms[row.batch] > enough:
            yield _at_row(replica, row)


def _room(problem: Problem, replica: BoundReplica, row: OperatingPoint) -> float:
    """Of the module's docstring; neighbours change it for all batches alike."""
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
    return replace(replica, id=ReplicaId(""), batch=row.batch, memory_mib=row.memory_mib)
