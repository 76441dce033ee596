"""How much slower a task's iterations are than alone: the laws' figure, corrected by what was seen of its network.

    slowness = t(laws) / t(alone on the whole GPU) · exp(w0 + w1 · ln(b) + w2 · Δ/100)

b and Δ are batch and SM percent of the replica beside it, so that the correction is what batch and share do to an
iteration beyond the laws. w is a ridge regression over ln(seen / laws) of every pace that tasks of the same network and
batch reported; with none it is 0. SPREAD keeps a few paces from claiming much.

Source: Mudi (EuroSys 2025), Iteration_j(b, Δ) of its formulation, which it fits online from progress.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from solvers.fill.hosts import Host, Seat
from solvers.fill.residents import Seats, bound_task
from solvers.plan import BoundGpu
from solvers.predict.samples import Reals
from solvers.problem import Problem
from solvers.rows import OperatingRows
from solvers.state import GpuId, Pace, Task

SPREAD = 0.3
"""Prior standard deviation of each weight: a whole turn of the share changes an iteration by about a third."""
NOISE = 0.1
"""Standard deviation of one pace, in its logarithm."""


class Iterations:
    """What iterations of tasks take."""

    def __init__(self, problem: Problem, seats: Seats, gpus: Iterable[BoundGpu]) -> None:
        """`gpus`: those of the plan in force, whose types and clocks the paces are of."""
        self._problem, self._seats = problem, seats
        self._rows = OperatingRows(problem)
        self._gpus: Mapping[GpuId, BoundGpu] = {gpu.id: gpu for gpu in gpus}
        self._weights: dict[tuple[str, int, tuple[Pace, ...]], Reals] = {}

    def slowness(self, task: Task, host: Host, place: int) -> float:
        """Of the resident at that place; 1 is alone on the whole GPU."""
        pace_ms = host.pace_ms(place) / self._seats.on(task, host)[-1].row.solo_ms
        if not task.paces or len(host.replicas) != 1:
            return pace_ms
        row = host.replicas[0].row
        return pace_ms * float(np.exp(self._learned(task) @ _features(row.batch, row.sm_percent)))

    def _learned(self, task: Task) -> Reals:
        key = (task.network, task.batch, task.paces)
        if key not in self._weights:
            seen = [each for pace in task.paces if (each := self._seen(task, pace)) is not None]
            self._weights[key] = learned(seen)
        return self._weights[key]

    def _seen(self, task: Task, pace: Pace) -> tuple[Reals, float] | None:
        """The features of a pace, and ln(seen / laws); None where the laws say nothing of its surroundings."""
        gpu = self._gpus.get(pace.gpu)
        if gpu is None or len(pace.replicas) != 1 or pace.tasks or pace.iteration_ms <= 0.0:
            return None
        ((name, sm_percent, batch),) = pace.replicas
        service = next((each for each in self._problem.services if each.name == name), None)
        at = (sm_percent, batch, gpu.clock_mhz)
        row = None if service is None else self._rows.find(service.network, gpu.gpu_type, at)
        host = Host(gpu=gpu, gpu_type=self._problem.gpu_type(gpu.gpu_type), replicas=())
        seat = self._seats.of_share(task, host, pace.sm_percent)
        if row is None or seat is None:
            return None
        host = Host(
            gpu=gpu,
            gpu_type=host.gpu_type,
            replicas=(Seat(row=row, sensitivity=0.0),),
            residents=[(bound_task(task, seat), seat)],
        )
        return _features(batch, sm_percent), float(np.log(pace.iteration_ms / host.pace_ms(0)))


def learned(seen: Iterable[tuple[Reals, float]]) -> Reals:
    """(3,) weights of 1, ln(batch) and share/100 that explain ln(seen / laws), and stay near 0."""
    pairs = list(seen)
    if not pairs:
        return np.zeros(3)
    features, targets = np.array([each for each, _ in pairs]), np.array([target for _, target in pairs])
    precision = features.T @ features / NOISE**2 + np.eye(3) / SPREAD**2
    weights: Reals = np.linalg.solve(precision, features.T @ targets / NOISE**2)
    return weights


def _features(batch: int, sm_percent: float) -> Reals:
    return np.array([1.0, np.log(batch), sm_percent / 100.0])
