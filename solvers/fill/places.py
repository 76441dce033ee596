"""What tasks need of a GPU whose replicas are set otherwise: nobody who has a place there, or could have one, loses it.

A higher clock or another batch may leave replicas their promises and still take the watts or the memory that a task
needs, or be one at which the task was never measured.
"""

from solvers.errors import InvalidInput
from solvers.fill.hosts import Host, make_host
from solvers.fill.problem import FillProblem
from solvers.fill.residents import Seats
from solvers.plan import BoundGpu, BoundTask
from solvers.rows import OperatingRows
from solvers.state import Task


class Places:
    """Places of one problem's tasks on GPUs with replicas."""

    def __init__(self, wanted: FillProblem) -> None:
        self._problem = wanted.problem
        self._rows, self._seats = OperatingRows(wanted.problem), Seats(wanted.points)
        self._tasks = {task.name: task for task in wanted.tasks}
        kinds = {(task.network, task.batch): task for task in sorted(wanted.tasks, key=lambda task: task.name)}
        self._kinds = [kinds[key] for key in sorted(kinds)]
        """One task of every network and batch: no other fits where it does not."""
        running = wanted.running.gpus if wanted.running else ()
        self._running = {gpu.id: tuple(task for task in gpu.tasks if task.is_resident) for gpu in running}

    def are_kept(self, gpu: BoundGpu, other: BoundGpu) -> bool:
        """Whether the GPU, set otherwise, obeys its limits and has a place for every task that it has one for now.

        Raises InvalidInput for a replica of `gpu` without a service or row.
        """
        before = make_host(self._problem, self._rows, gpu)
        try:
            after = make_host(self._problem, self._rows, other)
        except InvalidInput:
            return False  # Nobody measured its replicas so.
        if not after.holds():
            return False
        residents = self._running.get(gpu.id, ())
        if self._seat(before, residents) and before.holds():
            if not self._seat(after, residents) or not after.holds():
                return False
        else:
            before.residents.clear()
        return all(self._has_place(after, kind) for kind in self._kinds if self._has_place(before, kind))

    def _seat(self, host: Host, residents: tuple[BoundTask, ...]) -> bool:
        """Put what runs there on the host; whether all of it has a row."""
        for bound in residents:
            task = self._tasks.get(bound.name)
            seat = None if task is None else self._seats.of_share(task, host, bound.sm_percent)
            if task is not None and seat is None:
                return False
            if seat is not None:
                host.residents.append((bound, seat))
        return True

    def _has_place(self, host: Host, task: Task) -> bool:
        """Whether the smallest share fits; if it does not, no larger one does."""
        return any(host.fits(seat) for seat in self._seats.on(task, host)[:1])
