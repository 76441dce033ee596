"""One GPU with its tasks, tuned for all of them again or left with a share for one more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.backfill.hosts import TOLERANCE, Host, HostTenant, make_host
from solvers.backfill.residents import Seats, bound_task
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE, OperatingRows
from solvers.papers.mudi.tune import ROOM, Tuned, Tuner
from solvers.types.plan import BoundTask
from solvers.types.problem import OperatingPoint, Problem
from solvers.types.state import ReplicaId, Task

MAX_TUNINGS = 48
"""Tunings of one call: the rest waits for the next tick. One takes some milliseconds."""
REUSED = 0.7
"""A share of at least this part of an even one is taken as it was left, since then no other process restarts."""
GAIN = 0.15
"""By so much more, of all together, tasks must get done where one more joins those of a GPU; it waits otherwise."""
PATIENCE_S = 300.0
"""After so long a task joins others in any case."""


@dataclass(slots=True)
class MudiSite:
    """One GPU with its tasks while they are placed."""

    host: Host
    is_uneven: bool = False
    """A task's share has no row any more, so that it cannot stay as it is."""

    @property
    def is_tunable(self) -> bool:
        """Whether it has one replica."""
        return len(self.host.replicas) == 1


class SiteTuning:
    """Changes sites as one problem's laws and one tuner's tunings have it."""

    def __init__(
        self,
        problem: Problem,
        tasks: Mapping[str, Task],
        *,
        seats: Seats,
        tuner: Tuner,
    ) -> None:
        self.rows = OperatingRows(problem)
        self._problem = problem
        self._tasks = tasks
        self._seats = seats
        self._tuner = tuner

    def has_memory(self, host: Host, task: Task) -> bool:
        """Whether it is enough for one more next to the replica at the row that needs least."""
        points = self._problem.points_of(
            host.gpu.replicas[0].network, host.gpu.gpu_type
        )
        min_mib = min(
            (row.memory_mib for row in (points.rows if points else ())), default=0.0
        )
        own_mib = min(
            (seat.row.memory_mib for seat in self._seats.on(task, host)), default=0.0
        )
        residents_mib = sum(seat.row.memory_mib for _, seat in host.residents)
        # At its least: whether a row that needs more is worth it is for the tuning to decide, which is costly.
        return min_mib + residents_mib + own_mib <= host.gpu_type.memory_mib * (
            1.0 + TOLERANCE
        )

    def reuse(self, site: MudiSite, task: Task) -> bool:
        """Seat a task in the share that is free, if that is worth as much as a part of an even division."""
        host = site.host
        seat = self._left_share(host, task)
        if not host.residents or seat is None:
            return False
        newest = (bound_task(task, seat), seat)
        joined = replace(host, residents=[*host.residents, newest])
        if not self._is_worth(task, host, self.speed(joined)):
            return False
        site.host = joined
        return True

    def _left_share(self, host: Host, task: Task) -> HostTenant | None:
        """The largest share that fits and is about an even one; None where there is none."""
        held_percent = sum(seat.row.sm_percent for _, seat in host.residents)
        even_percent = (host.free_sm_percent + held_percent) / (len(host.residents) + 1)
        # Not beyond the even share: what is more belongs to all, and `divide` gives it to them.
        max_percent = even_percent + SM_PERCENT_TOLERANCE
        fitting = [
            seat
            for seat in self._seats.on(task, host)
            if REUSED * even_percent <= seat.row.sm_percent <= max_percent
            and host.fits(seat)
        ]
        return fitting[-1] if fitting else None

    def divide(
        self,
        site: MudiSite,
        new: Task | None = None,
        *,
        room: float = ROOM,
        at_most: float = float("inf"),
    ) -> bool:
        """Tune the site for all its tasks and the new one; whether that is possible, and good enough."""
        if len(self._tuner.searches) >= MAX_TUNINGS:
            return False
        host = site.host
        # Those that were swapped out are tuned for as well: a division is to bring them back.
        was = host.tasks
        tasks = [self._tasks[task.name] for task in was]
        if new is not None:
            tasks.append(new)
        tuned = self._tuner.tune(host, tasks, room=room)
        if tuned is None or tuned.slowness > at_most:
            return False
        if not self._is_worth(new, host, tuned.speed):
            return False
        site.host = self.tuned(host, tuned, tasks, was)
        site.is_uneven = False
        return True

    def tuned(
        self,
        host: Host,
        tuned: Tuned,
        tasks: Sequence[Task],
        was: Sequence[BoundTask],
    ) -> Host:
        """The host as tuned; tasks that keep their share go on."""
        before = {task.name: task for task in was}
        fresh = self.with_row(host, tuned.row)
        fresh.residents.clear()
        fresh.swapped.clear()
        for task, seat in zip(tasks, tuned.seats, strict=True):
            bound = bound_task(task, seat)
            old = before.get(task.name)
            # A share is set at a process's start: only an equal one spares the restart.
            if (
                old is not None
                and abs(old.sm_percent - seat.row.sm_percent) <= SM_PERCENT_TOLERANCE
            ):
                bound = replace(old, is_resident=True)
            fresh.residents.append((bound, seat))
        return fresh

    def with_row(self, host: Host, row: OperatingPoint) -> Host:
        """The host with its replica at that row: in place where share and memory allow it, else a new process."""
        # A new share needs a shadow instance ("Dynamic Resource Scaling"): no id means that binding starts a new
        # process.
        (replica,) = host.gpu.replicas
        in_place = (
            abs(replica.sm_percent - row.sm_percent) <= SM_PERCENT_TOLERANCE
            and row.memory_mib <= replica.memory_mib
        )
        following = replace(
            replica,
            id=replica.id if in_place else ReplicaId(""),
            sm_percent=row.sm_percent,
            batch=row.batch,
            memory_mib=replica.memory_mib if in_place else row.memory_mib,
        )
        fresh = make_host(
            self._problem, self.rows, replace(host.gpu, replicas=(following,))
        )
        fresh.residents.extend(host.residents)
        fresh.swapped.extend(host.swapped)
        return fresh

    def _is_worth(self, new: Task | None, host: Host, speed: float) -> bool:
        """Whether that speed of all is enough for a task to join those of the host; it is where none joins."""
        if new is None or new.waiting_s >= PATIENCE_S:
            return True
        # Each new task slows the others: where all together gain little, it had better wait for its turn.
        return speed >= self.speed(host) * (1.0 + GAIN)

    def speed(self, host: Host) -> float:
        """How fast its tasks get done together, each over its own speed on a whole GPU."""
        return sum(1.0 / each for each in self.slownesses(host))

    def slownesses(self, host: Host) -> list[float]:
        """The iteration time of each resident over its own on a whole GPU."""
        tasks = self.tasks_of(host.residents)
        return [
            self._tuner.iterations.slowness(task, host, at)
            for at, task in enumerate(tasks)
        ]

    def tasks_of(self, residents: Sequence[tuple[BoundTask, HostTenant]]) -> list[Task]:
        """The tasks of these residents."""
        return [self._tasks[task.name] for task, _ in residents]


def without_tasks(host: Host) -> Host:
    """The host with nothing but its replicas."""
    return Host(gpu=host.gpu, gpu_type=host.gpu_type, replicas=host.replicas)
