"""Parties of benchmarks in processes of their own."""

import multiprocessing
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any


def start_process(
    stack: ExitStack, run: Callable[..., None], *args: object
) -> tuple[Connection, Any, int]:
    """A process's pipe, what it says first, such as its ports, and its id; ended with the stack.

    run: it gets the pipe's other end before `args`.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=run, args=(theirs, *args), daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(process.terminate)
    return ours, ours.recv(), process.pid or 0
