"""The control plane's clock: injected everywhere, so that one `speed` factor scales a whole demo."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Time as the control plane sees it. Latencies, periods, delays and SLOs are all in this clock's seconds."""

    speed: float
    """Seconds of this clock per second on the wall."""

    def now(self) -> datetime:
        """The present moment, in UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that many of this clock's seconds."""
        ...


class WallClock:
    """Real time, or real time run faster: `speed` seconds pass here for each second on the wall."""

    def __init__(self, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be above 0, not {speed:g}")
        self.speed = speed
        self._started_at = datetime.now(UTC)
        self._started_s = time.monotonic()

    def now(self) -> datetime:
        """Start time plus the scaled time since; monotonic, whatever happens to the machine's clock."""
        return self._started_at + timedelta(seconds=(time.monotonic() - self._started_s) * self.speed)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of this clock."""
        await asyncio.sleep(max(0.0, seconds) / self.speed)


class ManualClock:
    """Time that stands still until somebody moves it; for tests and simulations."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.speed = 1.0
        self._now = start

    def now(self) -> datetime:
        """The moment that was last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self._now += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Move time forward instead of waiting."""
        self.advance(seconds)
        await asyncio.sleep(0)
