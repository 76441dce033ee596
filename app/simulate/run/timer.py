"""When what happens at even intervals is due."""

_SAME_S = 1e-6
"""Moments so near to each other are one: multiples of a period are rounded differently from those of another."""


class Timer:
    """Rings at even intervals, without adding up rounding. Its times are seconds since whatever its owner began at."""

    def __init__(self, period_s: float, *, first_s: float = 0.0) -> None:
        self._period_s, self._first_s = period_s, first_s
        self.rung = 0

    @property
    def due_s(self) -> float:
        """When it rings next."""
        # Multiplied, not added up: a thousand additions of 0.1 miss the hundredth second.
        return self._first_s + self.rung * self._period_s

    def rings(self, now_s: float) -> bool:
        """Whether it is due; if so, it has rung."""
        if now_s < self.due_s - _SAME_S:
            return False
        self.rung += 1
        return True
