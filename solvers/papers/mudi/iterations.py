"""How much slower a task's iterations are than alone: the laws' figure, corrected by what is seen of its network.

    slowness = t(laws) / t(alone on the whole GPU) · exp(w0 + w1 · ln(b) + w2 · Δ/100)

b and Δ are batch and SM percent of the replica next to it, so that the correction is what batch and share do to an
iteration beyond the laws. w is a ridge regression over ln(seen / laws) of all tasks of the same network and batch that
run now, each next to its own replica; with none it is 0. SPREAD keeps a few of them from claiming much.

Source: Mudi (EuroSys 2025), Iteration_j(b, Δ) of its formulation, which it fits online from progress.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from solvers.backfill.hosts import Host, HostTenant
from solvers.backfill.residents import Seats
from solvers.laws.operating_rows import OperatingRows
from solvers.predict.data.samples import Reals
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.problem import Problem
from solvers.types.state import Task

SPREAD = 0.3
"""Prior standard deviation of each weight: a whole turn of the share changes an iteration by about a third."""
NOISE = 0.1
"""Standard deviation of one reading, in its logarithm."""

Kind = tuple[str, int]
"""Network and batch of a task."""
Seen = tuple[Reals, float]
"""Features of the replica next to a task, and ln(seen / laws)."""


class Iterations:
    """What iterations of tasks take; `gpus`: those of the plan in force, next to whose replicas tasks run now."""

    def __init__(
        self,
        problem: Problem,
        seats: Seats,
        tasks: Iterable[Task],
        gpus: Iterable[BoundGpu],
    ) -> None:
        self._problem, self._seats = problem, seats
        self._tasks = {task.name: task for task in tasks if task.iteration_ms > 0.0}
        self._gpus = tuple(gpus)
        self._weights: dict[Kind, Reals] = {}

    def slowness(self, task: Task, host: Host, place: int) -> float:
        """The slowness of the resident at that place; 1 is alone on the whole GPU."""
        slowness = host.pace_ms(place) / self._seats.on(task, host)[-1].row.solo_ms
        kind = (task.network, task.batch)
        # The correction is by one replica's batch and share: with two, or none, it says nothing.
        if len(host.replicas) != 1 or kind not in self._seen:
            return slowness
        if kind not in self._weights:
            self._weights[kind] = learned(self._seen[kind])
        row = host.replicas[0].row
        return slowness * float(
            np.exp(self._weights[kind] @ _features(row.batch, row.sm_percent))
        )

    @cached_property
    def _seen(self) -> dict[Kind, list[Seen]]:
        """What runs now; worked out when it is first asked for."""
        rows = OperatingRows(self._problem)
        found: dict[Kind, list[Seen]] = {}
        for gpu in self._gpus if self._tasks else ():
            for task, seen in self._seen_on(gpu, rows):
                found.setdefault((task.network, task.batch), []).append(seen)
        return found

    def _seen_on(
        self,
        gpu: BoundGpu,
        rows: OperatingRows,
    ) -> Iterator[tuple[Task, Seen]]:
        """What is seen of the tasks next to one replica; nothing where the laws know the GPU only in part."""
        host = self._known_host(gpu, rows)
        if host is None:
            return
        row = host.replicas[0].row
        features = _features(row.batch, row.sm_percent)
        for at, (bound, _) in enumerate(host.residents):
            task = self._tasks[bound.name]
            ratio = task.iteration_ms / host.pace_ms(at)
            yield task, (features, float(np.log(ratio)))

    def _known_host(self, gpu: BoundGpu, rows: OperatingRows) -> Host | None:
        """The GPU as the laws know it; None without one replica and tasks, or where one of them has no row."""
        if len(gpu.replicas) != 1 or not gpu.tasks:
            return None
        (replica,) = gpu.replicas
        row = rows.find(
            replica.network,
            gpu.gpu_type,
            (replica.sm_percent, replica.batch, gpu.clock_mhz),
        )
        if row is None:
            return None
        host = Host(
            gpu=gpu,
            gpu_type=self._problem.gpu_type(gpu.gpu_type),
            replicas=(HostTenant(row=row, sensitivity=0.0),),
        )
        for bound in gpu.tasks:
            if bound.is_resident:
                seat = self._seat(bound, host)
                # All of them or none: one that is left out would count as slowness that the replica causes.
                if seat is None:
                    return None
                host.residents.append((bound, seat))
        return host

    def _seat(self, bound: BoundTask, host: Host) -> HostTenant | None:
        task = self._tasks.get(bound.name)
        if task is None:
            return None
        return self._seats.of_share(task, host, bound.sm_percent)


def learned(seen: Iterable[Seen]) -> Reals:
    """(3,) weights of 1, ln(batch) and share/100 that explain ln(seen / laws), and stay near 0."""
    pairs = list(seen)
    features = np.array([each for each, _ in pairs])
    targets = np.array([target for _, target in pairs])
    # The maximum of the posterior: noise and prior weigh the readings against the laws, which are right on average.
    precision = features.T @ features / NOISE**2 + np.eye(features.shape[1]) / SPREAD**2
    weights: Reals = np.linalg.solve(precision, features.T @ targets / NOISE**2)
    return weights


def _features(batch: int, sm_percent: float) -> Reals:
    return np.array([1.0, np.log(batch), sm_percent / 100.0])
