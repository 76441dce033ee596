"""Foresight: what the dispatcher predicts of jobs, learned online from those that run and from those that are done.

The live dispatcher has profiles, and learns how many times as long jobs take as they say (`JobForesight`); the bench's
has none, and learns milliseconds.

The predictor is `solvers.predict.latency.factorisation_learner` (FM by FTRL-Proximal): every finished job is one row.
The evaluator (OLTunes, section 3.3) watches the error of what was predicted; above θ it retrains on the latest rows,
since the learner itself forgets nothing. (When everything on a GPU takes three times as long from one row to the next,
the learner follows within 40 rows either way: to retrain is for what it cannot follow.)
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from solvers.predict.data.samples import Group, Reals
from solvers.predict.latency import factorisation_machine
from solvers.predict.latency.factorisation_features import ServedConditions
from solvers.predict.latency.factorisation_learner import START_MS, FactorisationLearner
from solvers.types.jobs import JobOption
from solvers.types.plan import BoundGpu, BoundPlan, BoundTask
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import Task

THETA = 0.25
"""θ: smoothed error of ln latency above which it retrains; the paper names no value."""
LATEST = 1400
"""Rows that it is trained on then: as many as the paper's tables have."""
SMOOTHING = 0.05
"""Weight of the newest error."""
MIN_SEEN = 20
"""Errors before the first judgement, and after every training."""
MAX_FACTOR = 4.0
"""What is learned and foreseen is at most this multiple of the profile's time, and at least that part of it: nodes that
report nonsense spoil no jobs beyond that."""
REFRESH_ROWS = 20
"""Rows that are learned before what is foreseen counts, and then before the settings of waiting jobs are renewed."""


@dataclass(slots=True)
class Foresight:
    """A learner with its evaluator. The same rows in the same order give the same predictions."""

    theta: float = THETA
    start_ms: float = START_MS
    """What is foreseen before the first row, in the rows' unit."""
    learner: FactorisationLearner = field(init=False)
    error: float = 0.0
    """Smoothed |ln(measured / predicted)|."""
    trainings: int = 0
    """How often it retrained."""
    revision: int = 0
    """Grows with every row that is learned."""
    _seen: int = 0
    _latest: deque[tuple[ServedConditions, float]] = field(
        default_factory=lambda: deque(maxlen=LATEST)
    )

    def __post_init__(self) -> None:
        """Begin with nothing learned."""
        self.learner = FactorisationLearner(start_ms=self.start_ms)

    def learn(self, rows: Iterable[tuple[ServedConditions, float]]) -> None:
        """Rows of a network's history: conditions, and milliseconds of a batch."""
        for conditions, latency_ms in rows:
            self._latest.append((conditions, latency_ms))
            self._update(conditions, latency_ms)

    def observe(self, conditions: ServedConditions, latency_ms: float) -> bool:
        """A measured batch; whether the error made it retrain."""
        predicted_ms = float(self.predict_ms([conditions])[0])
        error = abs(math.log(latency_ms / predicted_ms))
        self.error = (
            error if self._seen == 0 else self.error + SMOOTHING * (error - self.error)
        )
        self._seen += 1
        self.learn([(conditions, latency_ms)])
        if self._seen < MIN_SEEN or self.error <= self.theta:
            return False
        self.train_anew()
        return True

    def train_anew(self) -> None:
        """Forget everything but the latest rows."""
        self.learner = FactorisationLearner(start_ms=self.start_ms)
        for conditions, latency_ms in self._latest:
            self._update(conditions, latency_ms)
        self._seen, self.error = 0, 0.0
        self.trainings += 1

    def predict_ms(self, rows: Sequence[ServedConditions]) -> Reals:
        """(N,) milliseconds of a batch, for rows of one network on one GPU type."""
        coefficients = self.learner.group_coefficients(
            Group(rows[0].network, rows[0].gpu_type)
        )
        return factorisation_machine.predict_targets(coefficients, rows)[0]

    def _update(self, conditions: ServedConditions, latency_ms: float) -> None:
        throughput_rps = 1000.0 * conditions.batch / latency_ms
        self.learner.update(
            conditions, latency_ms=latency_ms, throughput_rps=throughput_rps
        )
        self.revision += 1


@dataclass(slots=True)
class JobForesight:
    """How many times as long jobs take as their profiles say, from the paces that running ones report."""

    foresight: Foresight = field(default_factory=lambda: Foresight(start_ms=1.0))
    _paces_ms: dict[str, float] = field(default_factory=dict)
    """The pace that each running job had when it was last looked at."""
    _used: int = 0
    """The foresight's revision when settings were last found."""

    def observe(
        self, jobs: Iterable[Task], target: BoundPlan, points: Iterable[OperatingPoints]
    ) -> None:
        """Learn from the jobs of the target that run, once for each pace that they report."""
        running = {job.name: job for job in jobs if job.iteration_ms > 0.0}
        known = {(entry.network, entry.gpu_type): entry for entry in points}
        for gpu, task in _places(target, running):
            job = running[task.name]
            row = _row(known, gpu, task)
            if row is None or self._paces_ms.get(job.name) == job.iteration_ms:
                continue
            # An iteration as it was submitted may be a part of a batch as it runs.
            factor = job.iteration_ms * task.batch / job.batch / row.solo_ms
            # The smallest paces that a node may report are 0 when divided, which has no logarithm.
            bounded = min(max(factor, 1.0 / MAX_FACTOR), MAX_FACTOR)
            self.foresight.observe(_conditions(task, gpu.gpu_type), bounded)
        self._paces_ms = {name: job.iteration_ms for name, job in running.items()}

    def catch_up(self) -> bool:
        """Let what is known now count; whether that is enough more than before to renew settings."""
        if self.foresight.revision - self._used < REFRESH_ROWS:
            return False
        self._used = self.foresight.revision
        return True

    def foretold(self, options: Sequence[JobOption]) -> list[JobOption]:
        """The options with the times that are foreseen; unchanged until enough was learned."""
        if self._used == 0:
            return list(options)
        by_group: dict[Group, list[int]] = defaultdict(list)
        for at, option in enumerate(options):
            by_group[Group(option.network, option.gpu_type)].append(at)
        found = list(options)
        for positions in by_group.values():
            rows = [_conditions(options[at], options[at].gpu_type) for at in positions]
            factors = self.foresight.predict_ms(rows).clip(1.0 / MAX_FACTOR, MAX_FACTOR)
            for at, factor in zip(positions, factors.tolist(), strict=True):
                time_ms = options[at].iteration_ms * factor
                found[at] = options[at]._replace(iteration_ms=time_ms)
        return found


def _places(
    target: BoundPlan, names: Mapping[str, Task]
) -> Iterator[tuple[BoundGpu, BoundTask]]:
    for gpu in target.gpus:
        for task in gpu.tasks:
            if task.name in names and task.is_resident:
                yield gpu, task


def _row(
    known: Mapping[tuple[str, str], OperatingPoints], gpu: BoundGpu, task: BoundTask
) -> OperatingPoint | None:
    """The operating point that a job runs at; None where its profile has none."""
    entry = known.get((task.network, gpu.gpu_type))
    place = (task.sm_percent, task.batch, gpu.clock_mhz)
    rows = entry.rows if entry else ()
    return next((row for row in rows if row[:3] == place), None)


def _conditions(one: BoundTask | JobOption, gpu_type: str) -> ServedConditions:
    return ServedConditions(one.network, gpu_type, float(one.batch), one.sm_percent)
