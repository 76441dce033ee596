"""A child process next to the API, such as the controller: a long tick never keeps the API's callers waiting.

A pipe ties the two together: the child's messages come up it, such as the outcome of each tick, and when either side
closes it, however it ended, the other one knows.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

from app.base.errors import PlimsollError

STOP_S = 10.0
"""A child that is asked to end does so within this time, or is killed: a controller gives back the lead before."""

Message = TypeVar("Message")

ProcessBody = Callable[[Connection], None]
"""What runs in the other process; must be picklable."""


class ChildEnded(PlimsollError):
    """The child process ended by itself."""


@asynccontextmanager
async def child_process(
    run: ProcessBody, note: Callable[[Message], None], *, what: str
) -> AsyncIterator["asyncio.Future[None]"]:
    """Start a child, which is called `what`; yields a future that fails with ChildEnded when it ends by itself.

    `note` hears each of its messages.
    """
    # Not fork: the parent has threads and an event loop, of which a forked child would inherit halves.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(theirs,), name=f"plimsoll-{what}")
    # Inherited: a Ctrl-C goes to both processes, and one that still imports would end with a traceback. It is told by
    # the pipe; once it runs it has handlers of its own.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()
    ended = follow(ours, note, what=what)
    try:
        yield ended
    finally:
        asyncio.get_running_loop().remove_reader(ours.fileno())
        ours.close()
        # While it still imports it reads no pipe; this ends it at once. Later it means the same as the pipe's end.
        process.terminate()
        await asyncio.to_thread(process.join, STOP_S)
        if process.is_alive():
            process.kill()
        # A caller that waits for something else has not looked at it, and asyncio would log that.
        if not ended.cancel() and not ended.cancelled():
            ended.exception()


def follow(
    pipe: Connection, note: Callable[[Message], None], *, what: str
) -> "asyncio.Future[None]":
    """Note every message that comes up the pipe; the future fails when the other side is gone."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        try:
            # Several messages may have come since the loop looked last; the reader is called once for all of them.
            while pipe.poll():
                note(pipe.recv())
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            if not ended.done():
                ended.set_exception(
                    ChildEnded(
                        f"the {what}'s process ended; start again, and see the log above for why (nothing there: it "
                        "was killed)"
                    )
                )

    loop.add_reader(pipe.fileno(), read)
    return ended


def stop_when_closed(pipe: Connection, stop: Callable[[], None]) -> None:
    """Call `stop` when the other side of the pipe is gone; in the child, which reads nothing else."""
    asyncio.get_running_loop().add_reader(pipe.fileno(), stop)


def send(pipe: Connection, message: object) -> None:
    """Send a message up the pipe, if anybody listens."""
    with contextlib.suppress(OSError):
        pipe.send(message)
