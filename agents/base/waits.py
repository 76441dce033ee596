"""Waits that asyncio has no function for.

await first(wait, wait, …, limit_s=…)          -> what the first of them says; the others are cancelled
await together(wait, wait, …)                  -> what each says; where one raises the others are cancelled
await cancel(task, …)                          returns when they have ended
"""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def first(
    *waits: Coroutine[None, None, str], limit_s: float | None = None
) -> str | None:
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
