"""Waiting for the first of several things, and for the end of what was cancelled."""

import asyncio
from collections.abc import Coroutine


async def first(*waits: Coroutine[None, None, str], limit_s: float | None = None) -> str | None:
    """What the first of them returns, the others are cancelled; None = none within the limit."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        return next((each.result() for each in tasks if each.done()), None)
    finally:
        await asyncio.gather(*map(cancelled, tasks))


async def cancelled(task: "asyncio.Task[None] | asyncio.Task[str] | None") -> None:
    """Cancel a task and wait until it is over."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
