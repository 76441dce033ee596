"""The solver worker's own side: it prepares the policies that it is told to, and answers requests."""

import contextlib
import gc
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from app.solver.findings import Findings, Inquiry
from app.solver.llm_rows import MakeRows, RowsRequest
from app.solver.parent import exit_with_parent
from app.solver.shared_points import ReceivedPoints

Prepare: TypeAlias = Callable[[str, Callable[[], None]], None]
"""Gets a policy ready, by its name; calls the other one before each kernel that it compiles."""

COMPILING, READY = "compiling", "ready"
"""What the worker says while it prepares a policy, and when it has."""


def run_inquiry(inquiry: Inquiry) -> Findings:
    """Find out more about a plan here and now."""
    from app.solver.analyse import find_out

    return find_out(inquiry)


def serve(
    pipe: Connection,
    prepare: Prepare,
    run: Callable[[Any], object],
    make_rows: MakeRows,
    niceness: int,
) -> None:
    """The worker's main: a policy's name is prepared, a request answered, until the other side is gone."""
    exit_with_parent()
    # The parent's is inherited, and may have grown since another child was started.
    os.nice(max(0, niceness - os.nice(0)))
    # A large problem is some hundred thousand tuples: to walk through them costs tenths of a second, so between plans.
    gc.disable()
    points = ReceivedPoints()
    # The process that started it has ended meanwhile.
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = pipe.recv()
            if isinstance(message, str):
                _prepare(message, prepare, partial(pipe.send, COMPILING))
                pipe.send(READY)
                continue
            is_model = isinstance(message, RowsRequest)
            pipe.send(
                _rows(message, make_rows) if is_model else _answer(message, points, run)
            )
            # Otherwise it would stay in memory while the next request is waited for.
            del message
            gc.collect()


def _prepare(policy: str, prepare: Prepare, on_compile: Callable[[], None]) -> None:
    # What is wrong with the policy its plan tells.
    with contextlib.suppress(Exception):
        prepare(policy, on_compile)
    # What was imported stays for ever, and need not be walked through after each plan.
    gc.freeze()


def _rows(
    request: RowsRequest,
    make_rows: MakeRows,
) -> object:
    """How the language model may run, or in words why that could not be found out."""
    try:
        return make_rows(request)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _answer(
    message: Any, points: ReceivedPoints, run: Callable[[Any], object]
) -> object:
    """What the request asks for, or in words why not; `message` is the request and its points, packed apart."""
    request, packed = message
    request = replace(
        request, problem=replace(request.problem, points=points.unpack(packed))
    )
    try:
        return run_inquiry(request) if isinstance(request, Inquiry) else run(request)
    except (
        Exception
    ) as error:  # the one place where a policy's fault becomes a message to the loop
        return f"{type(error).__name__}: {error}"
