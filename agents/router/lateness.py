"""Whether a service's replicas cannot keep up; the rule knows no clock.

The service is late when what is ahead of a newcomer is more than its replicas do within the SLO, at the pace that is
planned for or of what was answered lately, whichever is faster, and more than the batches that run and those that wait
to run next. It is also late when a request waited in vain; and for CALM_S after the last of these signs.
"""

import math
from dataclasses import dataclass

RATE_WINDOW_S = 5.0
CALM_S = 2.0
"""A service stays late for so long after the last sign: turns by need keep further signs away."""


@dataclass(slots=True)
class _Rate:
    """Good answers per second: those of the current window and of the one before it."""

    start_s: float
    count: int = 0
    before: int = 0

    def note(self, answers: int, now_s: float) -> None:
        self._turn(now_s)
        self.count += answers

    def rps(self, now_s: float) -> float:
        self._turn(now_s)
        answers = self.before + self.count
        seconds = RATE_WINDOW_S + now_s - self.start_s
        return answers / seconds

    def _turn(self, now_s: float) -> None:
        windows = int((now_s - self.start_s) / RATE_WINDOW_S)
        if windows > 0:
            self.before = self.count if windows == 1 else 0
            self.start_s += windows * RATE_WINDOW_S
            self.count = 0


class Lateness:
    """The rule for one service on one node; times are seconds of its caller's clock."""

    def __init__(self, now_s: float) -> None:
        self._rate = _Rate(now_s)
        self._planned_rps = 0.0
        self._slo_ms = math.inf
        self._joinable = 0
        """Requests that are still ahead of one that joins the next batch of some replica."""
        self._until_s = -math.inf
        """Until then the service is late."""

    def expect(self, *, planned_rps: float, slo_ms: float, batch_sum: int) -> None:
        """What is planned for from now on; `batch_sum`: the batches of the replicas that take requests, summed."""
        self._planned_rps = planned_rps
        self._slo_ms = slo_ms
        # Each replica has a batch that runs and one that waits. A plan for a low rate promises little within the SLO,
        # but a request that joins the waiting batch is served as soon as in any plan.
        self._joinable = 2 * batch_sum

    def note_answers(self, answers: int, now_s: float) -> None:
        """Replicas answered this number of requests well."""
        self._rate.note(answers, now_s)

    def note_miss(self, now_s: float) -> None:
        """A request was turned away for want of room, or waited until its deadline had passed."""
        self._until_s = now_s + CALM_S

    def answered_rps(self, now_s: float) -> float:
        """Good answers per second, lately."""
        return self._rate.rps(now_s)

    def is_late(self, ahead: int, now_s: float) -> bool:
        """Whether replicas cannot keep up, or could not until just now; `ahead`: requests that wait or run."""
        # Asked for every request, so the sum comes first: mostly it settles the question.
        if ahead >= self._joinable and self._has_too_much(ahead, now_s):
            self._until_s = now_s + CALM_S
        return now_s < self._until_s

    def _has_too_much(self, ahead: int, now_s: float) -> bool:
        # By Little's law the one that comes now waits for what is ahead of it, at this pace.
        answered_rps = self._rate.rps(now_s)
        pace_rps = max(self._planned_rps, answered_rps)
        return 1000.0 * ahead > pace_rps * self._slo_ms
