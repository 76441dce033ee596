"""Time as an argument: one clock that every wait and every time stamp of an agent goes through.

A `speed` above 1 makes trace time run faster than the wall: periods, launch delays and back-off shrink alike, while
latencies stay in trace time because they are computed, not slept.
"""

import asyncio
import math
import time
from typing import Protocol


class Clock(Protocol):
    """What a component needs of time."""

    def now_s(self) -> float:
        """Unix seconds of this clock; never falls."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds of this clock."""
        ...


class ScaledClock:
    """The machine's clock, `speed` times as fast: now = anchor + (wall - anchor) · speed.

    Processes that are given the same anchor and speed agree on the time. Steps of the machine's clock after the start
    are not followed: a time stamp must never fall.
    """

    def __init__(self, *, speed: float = 1.0, anchor_s: float | None = None) -> None:
        if not (math.isfinite(speed) and speed > 0.0):
            raise ValueError(f"speed {speed} must be a finite number above 0")
        # Read once: everything after this follows the monotonic clock.
        wall_s = time.time()
        self.speed = speed
        self.anchor_s = wall_s if anchor_s is None else anchor_s
        self._start_s = self.anchor_s + (wall_s - self.anchor_s) * speed
        # The monotonic clock goes on from here, so that a step of the wall clock moves nothing.
        self._origin_s = time.monotonic()

    def now_s(self) -> float:
        return self._start_s + (time.monotonic() - self._origin_s) * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)


class ManualClock:
    """A clock that stands still until somebody moves it; `sleep` moves it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        # Other tasks get their turn, as they would during a real sleep.
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Move the time on; a negative step raises ValueError."""
        if seconds < 0.0:
            raise ValueError(
                f"cannot move a clock by {seconds} s: time never goes backwards"
            )
        self._now_s += seconds
