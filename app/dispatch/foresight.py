"""Foresight: what the dispatcher predicts of jobs, learned online from those that are done.

The predictor is `solvers.predict.latency.factorisation_learner` (FM by FTRL-Proximal): every finished job is one row.
The evaluator (OLTunes, section 3.3) watches the error of what was predicted; above θ it trains anew on the latest rows,
since the learner itself forgets nothing. (When everything on a GPU takes three times as long from one row to the next,
the learner follows within 40 rows either way: to train anew is for what it cannot follow.)
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from solvers.predict.data.samples import Group, Reals
from solvers.predict.latency import factorisation_machine
from solvers.predict.latency.factorisation_features import ServedConditions
from solvers.predict.latency.factorisation_learner import FactorisationLearner

THETA = 0.25
"""θ: smoothed error of ln latency above which it trains anew; the paper names no value."""
LATEST = 1400
"""Rows that it is trained on then: as many as the paper's tables have."""
SMOOTHING = 0.05
"""Weight of the newest error."""
MIN_SEEN = 20
"""Errors before the first judgement, and after every training."""


@dataclass(slots=True)
class Foresight:
    """A learner with its evaluator. The same rows in the same order give the same predictions."""

    theta: float = THETA
    learner: FactorisationLearner = field(default_factory=FactorisationLearner)
    error: float = 0.0
    """Smoothed |ln(measured / predicted)|."""
    trainings: int = 0
    """How often it trained anew."""
    revision: int = 0
    """Grows with every row that is learned."""
    _seen: int = 0
    _latest: deque[tuple[ServedConditions, float]] = field(
        default_factory=lambda: deque(maxlen=LATEST)
    )

    def learn(self, rows: Iterable[tuple[ServedConditions, float]]) -> None:
        """Rows of a network's history: conditions, and milliseconds of a batch."""
        for conditions, latency_ms in rows:
            self._latest.append((conditions, latency_ms))
            self._update(conditions, latency_ms)

    def observe(self, conditions: ServedConditions, latency_ms: float) -> bool:
        """A measured batch; whether the error made it train anew."""
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
        self.learner = FactorisationLearner(settings=self.learner.settings)
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
