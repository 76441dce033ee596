"""The control plane's clock: the agents' clock with dates, injected everywhere, so that one `speed` scales a demo."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing import get_context
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

    # The caller that moves it by hand sets its pace.
    speed = 1.0

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        super().__init__(start.timestamp())

    def now(self) -> datetime:
        """The moment that was last set."""
        return datetime.fromtimestamp(self.now_s(), UTC)


class CatchingUpClock(ManualControlClock):
    """Time that jumps as a simulation's, but never ahead of the machine's: from there on it is real.

    The process that moves it is a child of the one that made it; both read the same time.
    """

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        # Read once: a step of the machine's clock moves nothing. All processes of a machine read its monotonic clock
        # alike.
        self._wall_offset_s = time.time() - time.monotonic()
        self._shared_s = get_context("spawn").Value("d", start.timestamp())

    def now_s(self) -> float:
        """Where the simulation stands."""
        return float(self._shared_s.value)

    def advance(self, seconds: float) -> None:
        """Move the time on; a negative step raises ValueError."""
        super().advance(seconds)
        self._shared_s.value = self._now_s

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass: at once, while the machine's clock is ahead."""
        await asyncio.sleep(max(0.0, seconds - self._behind_s()))
        self.advance(seconds)

    def _behind_s(self) -> float:
        """How far the machine's clock is ahead."""
        return self._wall_offset_s + time.monotonic() - self._now_s


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
