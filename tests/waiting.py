"""Waits of tests: for a condition, with an end so late that a busy machine never reaches it.

until(lambda: …, "what is missing")                    in a thread that may sleep
await eventually(lambda: …, "what is missing")         in an event loop; the condition may be a coroutine function
run(work())                                            `asyncio.run` that ends
@in_loop                                               the same for a test that is a coroutine function

No test measures how long something takes: that is a bench's.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

PATIENCE_S = 240.0
"""A test that needs it hangs: the slowest one takes a tenth of it on a machine that is busy with other work."""

T = TypeVar("T")
Given = ParamSpec("Given")


def until(is_so: Callable[[], T], what: str = "", *, limit_s: float = PATIENCE_S) -> T:
    """What the condition returns when it first holds. Fails after so long."""
    end_s = time.monotonic() + limit_s
    while not (found := is_so()):
        assert time.monotonic() < end_s, what or "the condition never held"
        time.sleep(0.02)
    return found


async def eventually(is_so: Callable[[], Any], what: str = "") -> Any:
    """The same in an event loop, which goes on meanwhile; a coroutine that the condition returns is awaited."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        found = is_so()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end_s, what or "the condition never held"
        await asyncio.sleep(0.01)


def run(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; a loop of its own runs it. Raises TimeoutError after PATIENCE_S."""

    async def limited() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    return asyncio.run(limited())


def in_loop(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """The test in an event loop of its own, as `run` does it."""

    @functools.wraps(test)
    def tested(*args: Given.args, **kwargs: Given.kwargs) -> None:
        run(test(*args, **kwargs))

    return tested
