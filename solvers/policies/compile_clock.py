"""A clock that stands still while kernels are compiled."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event


@contextmanager
def clock_without_compiling() -> Iterator[Callable[[], float]]:
    """Seconds of a monotonic clock, less those in which numba compiled meanwhile.

    After an installation it compiles for a minute; none of a policy's seconds should go by for it. To run a policy for
    nothing first, as servers do (`warm_up`), would take longer than a single plan.
    """
    compiling = _Compiling()
    with event.install_listener("numba:compile", compiling):
        yield lambda: time.monotonic() - compiling.total_s


class _Compiling(event.Listener):  # type: ignore[misc]  # numba has no types
    """Adds up how long was compiled. Kernels that are loaded from disk make no such event."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._depth = 0
        self._began_s = 0.0

    def on_start(self, _: event.Event) -> None:
        # A kernel is compiled within another's compilation, which calls it.
        if self._depth == 0:
            self._began_s = time.monotonic()
        self._depth += 1

    def on_end(self, _: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.total_s += time.monotonic() - self._began_s
