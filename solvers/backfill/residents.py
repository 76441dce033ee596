"""What every way to fill agrees on: whose turn it is, what a task that goes on looks like, and where it may sit."""

import math
from collections.abc import Iterable
from dataclasses import replace

from solvers.backfill.hosts import Host, HostTenant
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ, SM_PERCENT_TOLERANCE
from solvers.types.plan import BoundTask, idle_gpu
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import Gpu, Task


class Seats:
    """Where tasks may sit, by share; found once per network, GPU type, batch and clock."""

    def __init__(self, points: Iterable[OperatingPoints]) -> None:
        self._points = {(entry.network, entry.gpu_type): entry for entry in points}
        self._found: dict[tuple[str, str, str, int, float], list[HostTenant]] = {}

    def on(self, task: Task, host: Host) -> list[HostTenant]:
        """A task's rows at its batch and the host's clock, by SM percent; none where it avoids the GPU."""
        return [] if host.gpu.id in task.avoided_gpus else self._measured(task, host)

    def _measured(self, task: Task, host: Host) -> list[HostTenant]:
        gpu_type, clock_mhz = host.gpu.gpu_type, host.gpu.clock_mhz
        key = (task.kind, task.network, gpu_type, task.batch, clock_mhz)
        if key not in self._found:
            points = self._points.get((task.network, gpu_type))
            seats = _seats(points, task, clock_mhz) if points else []
            # SM percent is the first field of a row.
            self._found[key] = sorted(seats, key=lambda seat: seat.row)
        return self._found[key]

    def widest(self, task: Task, host: Host) -> HostTenant | None:
        """The largest share that the host has left for a task; None where there is none."""
        fitting = [seat for seat in self.on(task, host) if host.fits(seat)]
        return fitting[-1] if fitting else None

    def of_share(self, task: Task, host: Host, sm_percent: float) -> HostTenant | None:
        """The one of that share."""
        near = (
            seat
            for seat in self.on(task, host)
            if abs(seat.row.sm_percent - sm_percent) <= SM_PERCENT_TOLERANCE
        )
        return next(near, None)


def _seats(points: OperatingPoints, task: Task, clock_mhz: float) -> list[HostTenant]:
    return [
        HostTenant(row=row, sensitivity=points.sensitivity)
        for row in points.rows
        if row.batch == task.batch
        and abs(row.clock_mhz - clock_mhz) <= CLOCK_TOLERANCE_MHZ
    ]


def urgency(task: Task) -> tuple[float, float, float, str]:
    """Sorts the most urgent first: by priority, then by deadline, then by how long they wait."""
    return (
        -task.priority,
        math.inf if task.due_in_s is None else task.due_in_s,
        -task.waiting_s,
        task.name,
    )


def is_same(task: Task, was: BoundTask) -> bool:
    """Whether what was planned is still this task."""
    # A name may be given to another task: what its plan reserves would be wrong for that one.
    return (
        task.kind == was.kind
        and task.network == was.network
        and task.batch == was.batch
        and task.iterations == was.iterations
    )


def again(was: BoundTask, task: Task, *, is_resident: bool) -> BoundTask:
    """The same task on the same GPU. One that does not run would be started from what it last reported.

    While it runs that moves on all the time, and alone changes no plan.
    """
    done = task.done_iterations if task.waiting_s > 0.0 else was.done_iterations
    return replace(was, is_resident=is_resident, done_iterations=done)


def bound_task(task: Task, seat: HostTenant) -> BoundTask:
    """The task in a seat, from what it last reported."""
    return BoundTask(
        name=task.name,
        kind=task.kind,
        network=task.network,
        batch=task.batch,
        sm_percent=seat.row.sm_percent,
        memory_mib=seat.row.memory_mib,
        iterations=task.iterations,
        done_iterations=task.done_iterations,
    )


def first_of_types(gpus: Iterable[Gpu], task: Task) -> list[Gpu]:
    """The GPU of the lowest id of every GPU type that the task does not avoid, by type."""
    # Descending order puts the lowest id in last.
    by_id = sorted(gpus, key=lambda gpu: gpu.id, reverse=True)
    first = {gpu.gpu_type: gpu for gpu in by_id if gpu.id not in task.avoided_gpus}
    return [gpu for _, gpu in sorted(first.items())]


def empty_host(problem: Problem, gpu: Gpu) -> Host:
    """An idle GPU at its highest clock."""
    gpu_type = problem.gpu_type(gpu.gpu_type)
    return Host(gpu=idle_gpu(gpu, gpu_type), gpu_type=gpu_type, replicas=())
