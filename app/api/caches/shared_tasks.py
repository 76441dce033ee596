"""Tasks whose answer serves all who ask for the same: they outlive the request that began them, not the application."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from agents.base.waits import cancel

PREFIX = "plimsoll-shared-"
END_WITHIN_S = 5.0
"""One that ignores its cancellation, as a check of a part that hangs may, must not hang the end of the process."""

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Begin it; who waits for it shields it, so that it goes on for the others if one of them gives up."""
    return asyncio.create_task(work, name=PREFIX + name)


async def end_all() -> None:
    """End those of this event loop: one that went on would hold a connection of an engine that is closed."""
    tasks = asyncio.all_tasks()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_WITHIN_S):
            await cancel(
                *(task for task in tasks if task.get_name().startswith(PREFIX))
            )
