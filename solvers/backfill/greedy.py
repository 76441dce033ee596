"""Fill in three steps: what runs stays, what has no place gets the best left-over, what cannot wait an idle GPU."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from solvers.backfill.hosts import Host, HostTenant, bound_gpus, make_host
from solvers.backfill.problem import ENOUGH, FillLimits, FillProblem
from solvers.backfill.residents import (
    Seats,
    again,
    bound_task,
    empty_host,
    first_of_types,
    is_same,
    urgency,
)
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE, OperatingRows
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.state import GpuId, Task

MAX_HOSTS = 64
"""Hosts that are looked at for one task, those with most SMs left first: a tick has no time for thousands."""
RESTART_S = 60.0
"""A deadline is met by so much at least, since to start a task, here or elsewhere, takes time."""


def fill(wanted: FillProblem, limits: FillLimits | None = None) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with their tasks, and idle ones that tasks were given, by id; who is nowhere waits.

    The order of the items changes nothing. Raises InvalidInput for a replica without a service or row.
    O(tasks · MAX_HOSTS · rows of a network at one clock).
    """
    filling = _Filling(wanted, limits or FillLimits())
    before = {
        task.name: (gpu, task) for gpu in wanted.running_gpus for task in gpu.tasks
    }
    swapped = {name for name, (_, task) in before.items() if not task.is_resident}
    homeless = [
        task
        for task in _by_claim(wanted.tasks, swapped)
        if not filling.keep(task, before.get(task.name))
    ]
    for task in sorted(homeless, key=urgency):
        if not filling.place(task):
            filling.hold(task, before.get(task.name))
    # Last, when all have a place: only then is it known at what pace each of them runs.
    for task in sorted(wanted.tasks, key=urgency):
        filling.save(task)
    return filling.gpus()


def _by_claim(tasks: Iterable[Task], swapped: Collection[str]) -> list[Task]:
    """In which order tasks are left where they are."""
    # Running tasks are seated before swapped-out ones come back, so that none is put out for those.
    return sorted(
        tasks, key=lambda task: (task.name in swapped, -task.priority, task.name)
    )


class _Filling:
    """Hosts as they fill up."""

    def __init__(self, wanted: FillProblem, limits: FillLimits) -> None:
        self._problem = wanted.problem
        self._rows = OperatingRows(wanted.problem)
        self._seats = Seats(wanted.points)
        self._limits = limits
        self._cordoned = frozenset(wanted.cordoned)
        self._unused = {gpu.id: gpu for gpu in wanted.gpus}
        """GPUs that are no host."""
        self._hosts: dict[GpuId, Host] = {}
        for gpu in wanted.hosting_gpus:
            self._add_host(gpu)

    def _add_host(self, gpu: BoundGpu) -> None:
        bare = replace(gpu, tasks=())
        self._hosts[gpu.id] = make_host(self._problem, self._rows, bare)
        self._unused.pop(gpu.id, None)

    def gpus(self) -> tuple[BoundGpu, ...]:
        """What carries anything, by id."""
        return bound_gpus(self._hosts.values())

    def keep(self, task: Task, ran: tuple[BoundGpu, BoundTask] | None) -> bool:
        """Leave a task where it is, swapped out where it fits no more; False where it must look for another place."""
        if ran is None or not self._may_stay(task, *ran):
            return False
        host = self._hosts[ran[0].id]
        was = ran[1]
        seat = self._seats.of_share(task, host, was.sm_percent)
        if seat is None or not host.fits(seat):
            # It waits for its seat for a while: what put it out may pass sooner than a start elsewhere takes.
            return task.waiting_s < self._limits.move_s and self.hold(task, ran)
        host.residents.append((again(was, task, is_resident=True), seat))
        return True

    def hold(self, task: Task, ran: tuple[BoundGpu, BoundTask] | None) -> bool:
        """Swap a task out where it ran, or leave it so; whether that is possible."""
        if ran is None or not self._may_stay(task, *ran):
            return False
        self._hosts[ran[0].id].swapped.append(again(ran[1], task, is_resident=False))
        return True

    def _may_stay(self, task: Task, gpu: BoundGpu, was: BoundTask) -> bool:
        host = self._hosts.get(gpu.id)
        return (
            host is not None
            and is_same(task, was)
            and len(host.tasks) < self._limits.max_tasks_per_gpu
        )

    def place(self, task: Task) -> bool:
        """Give a task the best left-over, or an idle GPU where it may have one; whether it has a place."""
        place = self._beside(task)
        alone = self._alone(task)
        if alone is not None and self._may_be_alone(task, alone, place):
            place = alone
        if place is None:
            return False
        self._take(task, place)
        return True

    def save(self, task: Task) -> None:
        """Move a task that runs too slowly for its deadline to an idle GPU on which it meets it."""
        if task.due_in_s is None:
            return
        seated = (
            (host, at)
            for host in self._hosts.values()
            for at, (each, _) in enumerate(host.residents)
            if each.name == task.name
        )
        host, at = next(seated, (None, 0))
        if host is None:
            return
        alone = self._alone(task)
        if alone is not None and self._is_saved_by(task, alone, host.pace_ms(at)):
            del host.residents[at]
            self._take(task, alone)

    def _take(self, task: Task, place: "_Place") -> None:
        if self._unused.pop(place.host.gpu.id, None) is not None:
            self._hosts[place.host.gpu.id] = place.host
        place.host.residents.append((bound_task(task, place.seat), place.seat))

    def _beside(self, task: Task) -> "_Place | None":
        """The left-over on which an iteration is shortest."""
        max_tasks = self._limits.max_tasks_per_gpu
        hosts = (
            host
            for key, host in self._hosts.items()
            if key not in self._cordoned and len(host.tasks) < max_tasks
        )
        roomiest = sorted(hosts, key=lambda host: (-host.free_sm_percent, host.gpu.id))
        places = (self._on(task, host) for host in roomiest[:MAX_HOSTS])
        return min(filter(None, places), key=_Place.order, default=None)

    def _alone(self, task: Task) -> "_Place | None":
        """The idle GPU that meets the task's deadline at the least cost, or comes nearest to it."""
        idle = (gpu for key, gpu in self._unused.items() if key not in self._cordoned)
        # Idle GPUs of a type are alike: one stands for all.
        hosts = (empty_host(self._problem, gpu) for gpu in first_of_types(idle, task))
        places = filter(None, (self._on(task, host) for host in hosts))

        def order(place: _Place) -> tuple[bool, float, GpuId]:
            usd = place.host.gpu_type.price_usd_per_hour * place.iteration_ms
            misses = is_late(task, place.iteration_ms, spare_s=RESTART_S)
            return misses, usd, place.host.gpu.id

        return min(places, key=order, default=None)

    def _may_be_alone(
        self,
        task: Task,
        alone: "_Place",
        beside: "_Place | None",
    ) -> bool:
        """Whether it is saved by an idle GPU, or it is the last moment for that, or it has waited for long."""
        if beside is not None:
            return self._is_saved_by(task, alone, beside.iteration_ms)
        # A restart's time is about to be gone; later even an idle GPU would not meet the deadline.
        is_close = is_late(task, alone.iteration_ms, spare_s=RESTART_S)
        is_last_moment = is_close and not is_late(task, alone.iteration_ms)
        return is_last_moment or task.waiting_s >= self._limits.wait_s

    def _is_saved_by(self, task: Task, alone: "_Place", iteration_ms: float) -> bool:
        """Whether it meets its deadline on an idle GPU, and not at this pace."""
        return is_late(task, iteration_ms) and not is_late(
            task,
            alone.iteration_ms,
            spare_s=RESTART_S,
        )

    def _on(self, task: Task, host: Host) -> "_Place | None":
        """The smallest share of a host with ENOUGH of the speed that the largest one has; None where none fits."""
        free_percent = host.free_sm_percent + SM_PERCENT_TOLERANCE
        seats = [
            seat
            for seat in self._seats.on(task, host)
            if seat.row.sm_percent <= free_percent and host.fits(seat)
        ]
        if not seats:
            return None
        times_ms = [host.iteration_ms(seat) for seat in seats]
        # Seats ascend by share, so that the first one that is fast enough is the smallest.
        allowed_ms = min(times_ms) / ENOUGH
        time_ms, seat = next(
            each for each in zip(times_ms, seats, strict=True) if each[0] <= allowed_ms
        )
        return _Place(host=host, seat=seat, iteration_ms=time_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a task may run."""

    host: Host
    seat: HostTenant
    iteration_ms: float

    def order(self) -> tuple[float, GpuId]:
        """Sorts the fastest first."""
        return self.iteration_ms, self.host.gpu.id


def is_late(task: Task, iteration_ms: float, *, spare_s: float = 0.0) -> bool:
    """Whether it ends after its deadline, or so little before it, if it began now and kept this pace."""
    if task.due_in_s is None:
        return False
    left = task.iterations - task.done_iterations
    return left * iteration_ms / 1000.0 + spare_s > task.due_in_s
