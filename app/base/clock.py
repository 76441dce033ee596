"""The control plane's clock: the agents' clock with dates, injected everywhere, so that one `speed` scales a demo."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from agents.base import clock as agent_clock


class ControlClock(agent_clock.Clock, Protocol):
    """Time as the control plane sees it. Latencies, periods, delays and SLOs are all in this clock's seconds."""

    speed: float
    """Seconds of this clock per second on the wall."""

    def now(self) -> datetime:
        """The present moment, in UTC."""
        ...


class WallClock(agent_clock.ScaledClock):
    """Real time, or real time run faster: `speed` seconds pass here for each second on the wall."""

    def now(self) -> datetime:
        """The present moment, in UTC; never falls, whatever happens to the machine's clock."""
        return datetime.fromtimestamp(self.now_s(), UTC)


class ManualControlClock(agent_clock.ManualClock):
    """Time that stands still until somebody moves it; for tests and simulations."""

    # Whoever moves it by hand sets its pace.
    speed = 1.0

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        super().__init__(start.timestamp())

    def now(self) -> datetime:
        """The moment that was last set."""
        return datetime.fromtimestamp(self.now_s(), UTC)


class Stopwatch:
    """Laps of one piece of work, on the clock that it is given."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began = self._last = now_s()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """What was done since the last lap took until now."""
        now = self._now_s()
        self._laps[name] = now - self._last
        self._last = now

    def done(self) -> dict[str, float]:
        """Seconds of all laps, by name, and in `total`."""
        return {**self._laps, "total": self._now_s() - self._began}
