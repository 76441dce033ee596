"""Ctrl-C goes to all processes of a terminal at once; those that begin just then must not end by it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """What is started meanwhile never hears of Ctrl-C; this process does, as soon as it has been started."""
    # Where the first child makes it start, it would let the signal through again.
    resource_tracker.ensure_running()
    # Blocked, not ignored: one that comes now would be lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
