"""Fill as baselines do it: a task takes what one GPU's replicas leave over, and what it does to them is not asked.

    constraints  SMs, memory and watts; one task per GPU
    widest       the GPU with most SMs left over, all of them
    best fit     the smallest left-over that reaches the knee of the task's speed, all of it; else the widest

What runs stays as long as it fits; where replicas have grown it starts again in what is left, or is swapped out. A task
that has waited `wait_s` gets an idle GPU, as everywhere.

Source: how Mudi (EuroSys 2025) runs GSLICE and gpulets with training; the slides do not say how they choose, so
`widest` (GSLICE gives what is not held) and `best fit` (gpulets' rule for its own services) are ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from solvers.backfill.hosts import Host, HostTenant, any_time, bound_gpus, make_host
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.backfill.residents import (
    Seats,
    again,
    bound_task,
    empty_host,
    is_same,
    urgency,
)
from solvers.laws.operating_rows import OperatingRows
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.state import GpuId, Task

Place = tuple[Host, HostTenant]
SeatsOn = Callable[[Host], Sequence[HostTenant]]
Choose = Callable[[Sequence[Place], SeatsOn], Place]
"""Chooses among the free GPUs, each with the widest seat that it has left, given all seats of the task on a GPU."""


def widest(places: Sequence[Place], seats_on: SeatsOn) -> Place:
    """The most SMs; of equals the lowest id."""
    del seats_on
    return min(places, key=lambda place: (-place[1].row.sm_percent, place[0].gpu.id))


def best_fit(places: Sequence[Place], seats_on: SeatsOn) -> Place:
    """The fewest SMs that reach the knee of the task's speed on their GPU, else the most."""
    enough = [
        place
        for place in places
        if place[1].row.sm_percent >= knee_percent(seats_on(place[0]))
    ]
    if not enough:
        return widest(places, seats_on)
    return min(enough, key=lambda place: (place[1].row.sm_percent, place[0].gpu.id))


def knee_percent(seats: Sequence[HostTenant]) -> float:
    """The share at which the speed lies farthest above the chord from nothing to the widest; the smallest of equals."""
    last = seats[-1].row
    slope = 1.0 / last.solo_ms / last.sm_percent
    above = {
        seat.row.sm_percent: 1.0 / seat.row.solo_ms - slope * seat.row.sm_percent
        for seat in seats
    }
    return max(above, key=lambda share: (above[share], -share))


def fill_left_over(
    wanted: FillProblem,
    choose: Choose,
    limits: FillLimits | None = None,
) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with at most one task each, and idle ones that tasks were given, by id.

    The order of the items changes nothing. Raises InvalidInput for a replica without a service or row.
    """
    left = LeftOver(wanted, limits or FillLimits())
    for task in sorted(left.waiting(), key=urgency):
        left.place(task, choose)
    return left.gpus()


class LeftOver:
    """GPUs with what they leave over; what runs is on them from the beginning."""

    def __init__(self, wanted: FillProblem, limits: FillLimits) -> None:
        self._wanted, self._limits = wanted, limits
        self._rows = OperatingRows(wanted.problem)
        self._seats = Seats(wanted.points)
        self._cordoned = frozenset(wanted.cordoned)
        self._hosts: dict[GpuId, Host] = {}
        self._placed: set[str] = set()
        for gpu in wanted.hosting_gpus:
            self.put(replace(gpu, tasks=()))
        self._unused = {gpu.id: gpu for gpu in wanted.gpus if gpu.id not in self._hosts}
        self._keep_running()

    def _keep_running(self) -> None:
        tasks = {task.name: task for task in self._wanted.tasks}
        for gpu in self._wanted.running_gpus:
            # One task per GPU: a second one, of another policy's plan, looks for a place of its own.
            for was in gpu.tasks[:1]:
                task = tasks.get(was.name)
                if gpu.id in self._hosts and task is not None and is_same(task, was):
                    self._keep(self._hosts[gpu.id], task, was)

    def put(self, gpu: BoundGpu) -> Host:
        """Take a GPU as it is, with its replicas; promises do not count here."""
        host = make_host(self._wanted.problem, self._rows, gpu)
        # An infinite limit: `fits` then asks for SMs, memory and watts alone, as these baselines do.
        seats = tuple(replace(seat, allowed_ms=any_time) for seat in host.replicas)
        self._hosts[gpu.id] = Host(gpu=gpu, gpu_type=host.gpu_type, replicas=seats)
        return self._hosts[gpu.id]

    def waiting(self) -> list[Task]:
        """Tasks without a place."""
        return [task for task in self._wanted.tasks if task.name not in self._placed]

    def free(self) -> list[Host]:
        """GPUs with replicas and without a task, on which something may start, by id."""
        hosts = (
            host
            for key, host in sorted(self._hosts.items())
            if key not in self._cordoned
        )
        return [host for host in hosts if host.replicas and not host.tasks]

    def gpus(self) -> tuple[BoundGpu, ...]:
        """What carries anything, by id."""
        return bound_gpus(self._hosts.values())

    def seats(self, task: Task, host: Host) -> list[HostTenant]:
        """All seats of a task on a GPU, by share."""
        return self._seats.on(task, host)

    def widest_seat(self, task: Task, host: Host) -> HostTenant | None:
        """The largest share that is left."""
        return self._seats.widest(task, host)

    def take(self, task: Task, host: Host, seat: HostTenant) -> None:
        """Give a task its place."""
        host.residents.append((bound_task(task, seat), seat))
        self._placed.add(task.name)

    def place(self, task: Task, choose: Choose) -> None:
        """Give a task the place that is chosen, or an idle GPU when it has waited for long."""
        places = [
            (host, seat)
            for host in self.free()
            if (seat := self.widest_seat(task, host)) is not None
        ]
        if places:
            host, seat = choose(places, partial(self._seats.on, task))
            self.take(task, host, seat)
        elif task.waiting_s >= self._limits.wait_s:
            self._take_idle(task)

    def _take_idle(self, task: Task) -> None:
        for key, gpu in sorted(self._unused.items()):
            if key in self._cordoned:
                continue
            host = empty_host(self._wanted.problem, gpu)
            seat = self.widest_seat(task, host)
            if seat is not None:
                self._hosts[key] = host
                del self._unused[key]
                self.take(task, host, seat)
                return

    def _keep(self, host: Host, task: Task, was: BoundTask) -> None:
        if not was.is_resident and task.waiting_s >= self._limits.move_s:
            return
        seat = self._seats.of_share(task, host, was.sm_percent)
        if seat is not None and host.fits(seat):
            host.residents.append((again(was, task, is_resident=True), seat))
        elif (smaller := self.widest_seat(task, host)) is not None:
            host.residents.append((bound_task(task, smaller), smaller))
        else:
            host.swapped.append(again(was, task, is_resident=False))
        self._placed.add(task.name)
