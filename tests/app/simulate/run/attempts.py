"""Runs that other processes do, or fail to do: what a seed says. In a module, so that those processes can import it."""

import os
import signal
from collections.abc import Callable

from app.simulate.run.run import SimulationRun
from app.simulate.run.runner import Outcome
from tests.app.runs import a_run

IGNORES_INTERRUPTS = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""When this was imported: in another process that is before it comes to its work."""


def done(job: SimulationRun, passed: Callable[[float], None]) -> Outcome:
    """At once, but for seed 2, whose process is killed, and seed 3, whose process leaves."""
    passed(60.0)
    if job.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.seed == 3:
        os._exit(7)
    return a_run(job.run.label, seed=job.seed)


def identified(job: SimulationRun, passed: Callable[[float], None]) -> Outcome:
    """At once, having told the id of its process in place of a time; that of seed 2 dies while it sends its result."""
    passed(float(os.getpid()))
    if job.seed == 2:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        return a_run("x" * 10_000_000, seed=2)
    return a_run(job.run.label, seed=job.seed)


def endless(job: SimulationRun, passed: Callable[[float], None]) -> Outcome:
    """Never ends. In place of times it tells whether its process has ignored interrupts since it began, and its id."""
    passed(float(IGNORES_INTERRUPTS))
    passed(float(os.getpid()))
    signal.pause()
    raise AssertionError("nothing wakes it")
