"""When to stop: seconds where time is measured, else a number of rounds that is the same on every machine."""

from collections.abc import Callable

from solvers.joint.patterns.tables import Tables
from solvers.types.outcome import Budget

_CANDIDATES_PER_WORK = 400_000
"""Candidates that cheap pricing looks at in one unit of work, about a second of a quiet core."""
_MAX_ROUNDS_PER_WORK = 200
"""However small the problem: a round of the search for integer plans takes milliseconds at least."""
_MIN_ROUNDS = 10
_USABLE = 0.95
"""The search has this share of the seconds; the rest is for what comes after it."""


def never() -> bool:
    """For callers without a limit."""
    return False


class Deadline:
    """The end of a budget, and of parts of it."""

    def __init__(self, budget: Budget, tables: Tables) -> None:
        candidates = max(1, sum(len(mode.service) for mode in tables.modes))
        per_work = min(_MAX_ROUNDS_PER_WORK, _CANDIDATES_PER_WORK / candidates)
        self._budget = budget
        self._seconds = _USABLE * budget.seconds
        self._rounds = max(_MIN_ROUNDS, int(min(1e9, budget.work * per_work)))
        self._asked = 0

    def elapsed_s(self) -> float:
        """Seconds since the plan was begun; 0 where no time passes."""
        return self._budget.elapsed()

    def is_late(self) -> bool:
        """Whether the seconds are used up; never where no time passes."""
        return self._budget.elapsed() > self._seconds

    def past(self, share: float) -> Callable[[], bool]:
        """Whether that share of the seconds that are left now is used up; never where no time passes."""
        begun_s = self._budget.elapsed()
        end_s = begun_s + share * max(0.0, self._seconds - begun_s)
        return lambda: self._budget.elapsed() > end_s

    def part(self, share: float) -> Callable[[], bool]:
        """Whether that share of what is left now is used up; each call is one round where no time passes."""
        # All parts draw on one count of rounds, as they do on one clock.
        begun_s, begun = self._budget.elapsed(), self._asked
        end_s = begun_s + share * max(0.0, self._seconds - begun_s)
        last = begun + share * max(0, self._rounds - begun)

        def is_over() -> bool:
            self._asked += 1
            elapsed_s = self._budget.elapsed()
            # A budget whose clock stands still counts rounds, so that plans are the same on every machine.
            return elapsed_s >= end_s if elapsed_s > 0.0 else self._asked >= last

        return is_over
