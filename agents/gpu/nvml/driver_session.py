"""A session with a driver's library that may go away underneath: begin it again and ask once more.

    session = DriverSession(start, stop)
    session.ask(act)          # what act returns; where the driver went away, after a new start once more
    with session.waiting(n):  # a long call of another thread, under which the library must not be stopped

`act` raises NoDriver or GpuLost when it needs a new start. Safe from several threads.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from agents.base.device import DeviceError, GpuLost, NoDriver

RESTART_PERIOD_S = 10.0
"""At most so often is the library started again: it takes up to a second, and a lost GPU stays lost."""

_Found = TypeVar("_Found")


class DriverSession:
    """Started when made."""

    def __init__(
        self,
        start: Callable[[], None],
        stop: Callable[[], None],
        *,
        now_s: Callable[[], float],
    ) -> None:
        """`start` and `stop` raise DeviceError; what `start` raises now comes out."""
        self._start, self._stop, self._now_s = start, stop, now_s
        self._starting = threading.Lock()
        self._waiting = threading.Lock()
        self._stop_asked = False
        self._is_closed = False
        self._restarted_s = -math.inf
        self.starts = 1
        """How often the library was started; what was made under another number is void."""
        start()

    def ask(self, act: Callable[[], _Found]) -> _Found:
        """What `act` returns, after one new start if that is needed and was not tried a moment ago."""
        # Read before the call: another thread may start the library again while it fails here.
        starts = self.starts
        try:
            return act()
        except (NoDriver, GpuLost):
            if not self._restart(starts):
                raise
        return act()

    @contextlib.contextmanager
    def waiting(self, starts: int) -> Iterator[None]:
        """Keep the library up for one call of at most a few seconds.

        `starts` as it was when the call's arguments were made; raises NoDriver when they are void.
        """
        with self._waiting:
            if self._stop_asked or starts != self.starts:
                raise NoDriver("the driver's library was started again; listen again")
            yield

    def close(self) -> None:
        """Stop the library for good, once nothing waits."""
        self._stop_asked = True
        # In the order in which a restart takes them, so that the two cannot block each other.
        with self._starting, self._waiting:
            self._is_closed = True
            self._stop()

    def _restart(self, starts: int) -> bool:
        """False = not now. Raises NoDriver when there is no driver yet."""
        with self._starting:
            if starts != self.starts:
                return True
            # A GPU that is lost raises on every call; without a pause the agent would restart the library all day.
            if self._is_closed or self._now_s() - self._restarted_s < RESTART_PERIOD_S:
                return False
            # Noted before the try, so that one that fails is not repeated at once.
            self._restarted_s = self._now_s()
            # Said before the lock is asked for: a thread that waits again and again would never release it.
            self._stop_asked = True
            try:
                self._start_again()
            finally:
                self._stop_asked = False
            return True

    def _start_again(self) -> None:
        """Stop and start the library while no call waits in it."""
        with self._waiting:
            # The driver is gone, so stopping may fail; what counts is the start.
            with contextlib.suppress(DeviceError):
                self._stop()
            self._start()
            self.starts += 1
