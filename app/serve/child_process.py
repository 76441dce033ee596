"""The controller in a process of its own, so that a tick on a large fleet never keeps the API's callers waiting.

A pipe ties the two together: the outcome of each tick comes up it, and when either side closes it, however it ended,
the other one knows.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

from app.base.errors import PlimsollError
from app.loop.tick import TickOutcome

STOP_S = 10.0
"""A controller that is told to end gives back the lead and ends its solver within this time, or is killed."""

Note = Callable[[TickOutcome], None]

ProcessBody = Callable[[Connection], None]
"""What runs in the other process; must be picklable."""


class ControllerEnded(PlimsollError):
    """The controller's process ended by itself."""


@asynccontextmanager
async def controller_process(
    run: ProcessBody, note: Note
) -> AsyncIterator["asyncio.Future[None]"]:
    """Start the controller; yields a future that fails with ControllerEnded when it ends by itself."""
    # Not fork: the parent has threads and an event loop, of which a forked child would inherit halves.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(theirs,), name="plimsoll-controller")
    # Inherited: a Ctrl-C goes to both processes, and one that still imports would end with a traceback. It is told by
    # the pipe; once it runs it has handlers of its own.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()
    ended = follow(ours, note)
    try:
        yield ended
    finally:
        asyncio.get_running_loop().remove_reader(ours.fileno())
        ours.close()
        await asyncio.to_thread(process.join, STOP_S)
        if process.is_alive():
            process.kill()
        ended.cancel()


def follow(pipe: Connection, note: Note) -> "asyncio.Future[None]":
    """Note every outcome that comes up the pipe; the future fails when the other side is gone."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        try:
            # Several outcomes may have come since the loop looked last; the reader is called once for all of them.
            while pipe.poll():
                note(pipe.recv())
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            if not ended.done():
                ended.set_exception(
                    ControllerEnded(
                        "the controller's process ended; start again, and see the log above for why (nothing there: "
                        "it was killed)"
                    )
                )

    loop.add_reader(pipe.fileno(), read)
    return ended


def stop_when_closed(pipe: Connection, stop: Callable[[], None]) -> None:
    """Call `stop` when the other side of the pipe is gone; in the controller's process, which reads nothing else."""
    asyncio.get_running_loop().add_reader(pipe.fileno(), stop)


def report_tick(pipe: Connection, outcome: TickOutcome) -> None:
    """Send an outcome up the pipe, if anybody listens."""
    with contextlib.suppress(OSError):
        pipe.send(outcome)
