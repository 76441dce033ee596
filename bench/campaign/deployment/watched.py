"""The API as `uvicorn` serves it, with a stopwatch around every step of its event loop.

    python -m uvicorn --factory bench.campaign.deployment.watched:watched_app --loop asyncio

Each step that held the loop for longer than SLOW_MS is one line of JSON in the file that HOLDS_FILE names. On a machine
whose cores others want, too, a step's time on the wall says little of a step that computes: that of its thread counts.
Of a step that waited, for a lock or a file, the wall's time counts: the thread gave its core away of itself.
"""

import asyncio
import os
import resource
import time
from asyncio import events
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI

from app.serve.api_process import app_from_environment

HOLDS_FILE = "CAMPAIGN_HOLDS"
WATCHED_API = (
    "-m",
    "uvicorn",
    "--factory",
    "bench.campaign.deployment.watched:watched_app",
    # uvloop's steps cannot be watched; `plimsoll serve` has this loop, too.
    "--loop",
    "asyncio",
)
SLOW_MS = 50.0


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """One step that held the event loop."""

    wall_ms: float
    cpu_ms: float
    """Of the loop's thread: what others on the same cores took is not in it."""
    waits: int = 0
    """How often the thread gave its core away of itself."""
    what: str
    """The request, else the task."""

    @property
    def held_ms(self) -> float:
        """What the step is to blame for."""
        return self.wall_ms if self.waits else self.cpu_ms


def watched_app() -> FastAPI:
    """The API, watched from now on. The process must not have a loop that runs yet."""
    file = os.open(os.environ[HOLDS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run: Callable[[events.Handle], None] = events.Handle._run

    def timed(handle: events.Handle) -> None:
        what = _of(handle)
        waited = _waits()
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        run(handle)
        wall_ms = 1000.0 * (time.perf_counter() - began_s)
        if wall_ms > SLOW_MS:
            cpu_ms = 1000.0 * (time.thread_time() - began_cpu_s)
            hold = Hold(
                wall_ms=wall_ms,
                cpu_ms=cpu_ms,
                waits=_waits() - waited,
                what=_words(what),
            )
            os.write(file, msgspec.json.encode(hold) + b"\n")

    events.Handle._run = timed  # type: ignore[method-assign, assignment]
    return app_from_environment()


def _waits() -> int:
    """Of this thread, since it began."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def forget_holds(path: Path) -> None:
    """What was written so far is not read later."""
    # Not removed: the API goes on writing to the file that it has open.
    path.write_bytes(b"")


def read_holds(path: Path) -> tuple[Hold, ...]:
    """What was written since then, from the longest."""
    holds: Iterable[Hold] = msgspec.json.Decoder(Hold).decode_lines(path.read_bytes())
    return tuple(sorted(holds, key=lambda hold: -hold.held_ms))


def _of(handle: Any) -> Any:
    """Whose step it is: a request's scope, else the task or what else is called.

    Asked before the step, since nothing is left of a task that has ended. None of this is an interface of asyncio or
    uvicorn: what is not found is left out.
    """
    task = getattr(handle._callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return handle._callback
    coroutine: Any = task.get_coro()
    if coroutine.__name__ != "run_asgi" or coroutine.cr_frame is None:
        return coroutine
    return coroutine.cr_frame.f_locals["self"].scope


def _words(what: Any) -> str:
    if isinstance(what, dict):
        # The template, where a route was found: names are the fuzzer's own.
        route = getattr(what.get("route"), "path", what["path"])
        return f"{what['method']} {route}"
    return str(getattr(what, "__qualname__", repr(what)))[:120]
