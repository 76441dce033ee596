"""Waits that asyncio has no function for.

await first(wait, wait, …, limit_s=…)          -> what the first of them says; the others are cancelled
await together(wait, wait, …)                  -> what each says; where one raises the others are cancelled
await cancel(task, …)                          returns when they have ended
async with stop_event(parent) as stop          -> is set when this process must end
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from typing import TypeVar

PARENT_LOOK_S = 0.5

log = logging.getLogger(__name__)

T = TypeVar("T")


async def first(
    *waits: Coroutine[None, None, T], limit_s: float | None = None
) -> T | None:
    """What the first of them returns, the others are cancelled; None = none within the limit."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        # In the order of the arguments where several are done at once, so that the result is the same each time.
        return next((each.result() for each in tasks if each.done()), None)
    finally:
        await cancel(*tasks)


async def together(*waits: Coroutine[None, None, T]) -> list[T]:
    """What all of them return, in order; an error of one is raised when the others have been cancelled and ended."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        # Alone it would leave the others running behind the error; a TaskGroup would wrap the error in a group.
        return await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


async def cancel(*tasks: "asyncio.Task[object] | None") -> None:
    """Cancel tasks and wait until they have ended; an error of one is logged by asyncio."""
    begun = [each for each in tasks if each is not None]
    for each in begun:
        each.cancel()
    if begun:
        await asyncio.wait(begun)


@contextlib.asynccontextmanager
async def stop_event(parent: int) -> AsyncIterator[asyncio.Event]:
    """Set when this process must end: by a signal, or because process `parent` has ended (0: of none)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Both end it in good order.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    orphaned = asyncio.create_task(_stop_without(parent, stop)) if parent else None
    try:
        yield stop
    finally:
        if orphaned is not None:
            orphaned.cancel()


async def _stop_without(parent: int, stop: asyncio.Event) -> None:
    """Stop when the process that started this one has ended, however that happened."""
    while os.getppid() == parent:  # noqa: ASYNC110  the kernel has no portable notice of it
        await asyncio.sleep(PARENT_LOOK_S)
    log.warning("process %d, which started this one, has ended", parent)
    stop.set()
