"""Looks after an embedded PostgreSQL: one that is killed, as the system does for want of memory, is started again."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from agents.base.backoff import BackOff
from app.postgres.files import DataDirLayout, try_flock
from app.postgres.process import PostgresError

LOOK_S = 0.5
"""How often a server is looked at; to start it takes as long."""

log = structlog.get_logger(__name__)


@contextmanager
def looked_after(
    layout: DataDirLayout, start_again: Callable[[], object]
) -> Iterator[None]:
    """Have the server run until the end of the block; it runs now."""
    is_over = threading.Event()
    # A thread, since the process may be busy, or not have any event loop.
    keeper = threading.Thread(
        target=look_after,
        args=(layout, start_again, is_over.wait),
        name="postgres-keeper",
        daemon=True,
    )
    keeper.start()
    try:
        yield
    finally:
        is_over.set()
        # Otherwise it could start the server that is being stopped.
        keeper.join()


def look_after(
    layout: DataDirLayout,
    start_again: Callable[[], object],
    is_over: Callable[[float], bool],
) -> None:
    """Start the server again whenever it is gone; `is_over`: waits for some seconds and says whether that is all."""
    back_off, began_s = BackOff(), time.monotonic()
    while not is_over(LOOK_S):
        if _runs(layout):
            continue
        pause_s = back_off.after(time.monotonic() - began_s)
        log.warning("the embedded PostgreSQL ended", again_in_s=pause_s)
        if is_over(pause_s):
            return
        try:
            # Several processes may use it: all come here, and one starts it.
            start_again()
            log.warning("the embedded PostgreSQL was started again")
        except PostgresError as error:
            log.error("the embedded PostgreSQL did not start", error=str(error))
        began_s = time.monotonic()


def _runs(layout: DataDirLayout) -> bool:
    """Whether any process of the server is left: each holds the lock."""
    try:
        free = try_flock(layout.alive_lock)
    except OSError:
        return True
    if free is None:
        return True
    os.close(free)
    # Where the cluster itself was taken away, a start would make an empty one.
    return not layout.cluster.exists()
