"""When to stop: seconds where time is measured, else a number of rounds that is the same on every machine."""

from collections.abc import Callable

from solvers.joint.tables import Tables
from solvers.outcome import Budget

_CANDIDATES_PER_WORK = 400_000
"""Candidates that cheap pricing looks at in one unit of work, about a second of a quiet core."""
_MOST_ROUNDS_PER_WORK = 200
"""However small the problem: a round of the search for whole plans takes milliseconds at least."""
_LEAST_ROUNDS = 10


class Deadline:
    """The end of a budget, and of shares of it."""

    def __init__(self, budget: Budget, tables: Tables) -> None:
        candidates = max(1, sum(len(mode.service) for mode in tables.modes))
        self._budget = budget
        per_work = min(_MOST_ROUNDS_PER_WORK, _CANDIDATES_PER_WORK / candidates)
        self._rounds = max(_LEAST_ROUNDS, int(min(1e9, budget.work * per_work)))
        self._asked = 0
        self.was_reached = False
        """Whether anybody was told that it is over."""

    def at(self, share: float) -> Callable[[], bool]:
        """Whether that share of the budget is used up; each call counts as one round where no time passes."""

        def is_over() -> bool:
            self._asked += 1
            elapsed_s = self._budget.elapsed()
            over = elapsed_s >= share * self._budget.seconds if elapsed_s > 0.0 else self._asked >= share * self._rounds
            self.was_reached |= over
            return over

        return is_over
