"""A child process that ignores Ctrl-C and exits when its parent does."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def exit_with_parent() -> None:
    """In a process that computes: leave Ctrl-C to the parent, and end with it."""
    # A terminal sends Ctrl-C to both; the parent asks for what it still wants.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process, in the middle of a solve if need be, when the process that would take its answer is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    # A thread, since a solver's native code may never return to Python.
    wait([parent.sentinel])
    os._exit(1)
