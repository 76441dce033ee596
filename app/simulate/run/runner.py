"""Many runs: here one after the other, or several at a time in processes of their own.

A run that fails, or whose process is killed, loses no other run's results: it becomes a FailedRun, which says why.
Processes are spawned, not forked, ignore Ctrl-C, and are ended with the process that started them.
"""

import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import current_thread, main_thread
from typing import Protocol, TypeAlias

from app.base.errors import PlimsollError
from app.simulate.run.results import FailedRun, RunResult
from app.simulate.run.run import SimulationRun, simulate

Outcome: TypeAlias = RunResult | FailedRun
Attempt: TypeAlias = Callable[[SimulationRun, Callable[[float], None]], Outcome]
"""Does one run, and meanwhile tells how many seconds it has simulated."""

MESSAGES = 200
"""With which a run tells at most how far it is."""


class RunWatcher(Protocol):
    """The caller that wants to know how far runs are; `place`: which of the jobs."""

    def passed(self, place: int, simulated_s: float) -> None:
        """So much has been simulated of a run."""

    def ended(self, place: int, outcome: Outcome) -> None:
        """A run is over."""


class Runner(Protocol):
    """Somewhere to do runs."""

    def __call__(
        self,
        jobs: Sequence[SimulationRun],
        passed: Callable[[int, float], None],
    ) -> Iterator[tuple[int, Outcome]]:
        """Do them all; each with its place among the jobs, in whatever order they end. Calls `passed` meanwhile."""
        ...


class Unwatched:
    """A watcher that ignores how far runs are."""

    def passed(self, place: int, simulated_s: float) -> None:
        """It is not told."""

    def ended(self, place: int, outcome: Outcome) -> None:
        """It is not told."""


def attempt_run(job: SimulationRun, passed: Callable[[float], None]) -> Outcome:
    """Do one run, and put into words why it failed. Interrupts go on as they are."""
    try:
        return simulate(job, passed=passed)
    except Exception as error:
        return FailedRun(
            policy=job.run.label,
            seed=job.seed,
            reason=_reason(error),
        )


def simulate_all(
    jobs: Sequence[SimulationRun],
    runner: Runner,
    watch: RunWatcher | None = None,
) -> tuple[Outcome, ...]:
    """Do many runs; what became of each, in the order of the jobs."""
    watch = watch or Unwatched()
    outcomes: dict[int, Outcome] = {}
    for place, outcome in runner(jobs, watch.passed):
        outcomes[place] = outcome
        watch.ended(place, outcome)
    # Runs end in any order; the report is the same whatever the number of processes.
    return tuple(outcomes[place] for place in range(len(jobs)))


def make_runner(processes: int) -> Runner:
    """Runs here one after the other, or that number at a time in other processes."""
    return (
        run_here if processes <= 1 else partial(run_in_processes, processes=processes)
    )


def run_here(
    jobs: Sequence[SimulationRun],
    passed: Callable[[int, float], None],
    *,
    attempt: Attempt = attempt_run,
) -> Iterator[tuple[int, Outcome]]:
    """One after the other, in this process."""
    for place, job in enumerate(jobs):
        yield place, attempt(job, partial(passed, place))


def run_in_processes(
    jobs: Sequence[SimulationRun],
    passed: Callable[[int, float], None],
    *,
    processes: int,
    attempt: Attempt = attempt_run,
) -> Iterator[tuple[int, Outcome]]:
    """Several at a time. A process that dies fails the run that it was doing, and another one takes its place."""
    todo = deque(enumerate(jobs))
    workers: dict[Connection, _Worker] = {}
    try:
        while todo or workers:
            while todo and len(workers) < processes:
                worker = _Worker(attempt)
                workers[worker.pipe] = worker
                worker.give(*todo.popleft())
            yield from _receive(workers, todo, passed)
    # Also where the caller stops listening: no process computes on without a reader.
    finally:
        for worker in workers.values():
            worker.end()


def _receive(
    workers: "dict[Connection, _Worker]",
    todo: deque[tuple[int, SimulationRun]],
    passed: Callable[[int, float], None],
) -> Iterator[tuple[int, Outcome]]:
    """What workers report next; one whose run is over gets another job, or ends where it is dead or none is left."""
    for pipe in wait(list(workers)):
        worker = workers[pipe]  # type: ignore[index]
        message = worker.receive()
        if isinstance(message, float):
            passed(worker.place, message)
            continue
        place = worker.place
        if todo and worker.process.is_alive():
            worker.give(*todo.popleft())
        else:
            workers.pop(worker.pipe).end()
        yield place, message


class _Worker:
    """A process that does one run after the other."""

    def __init__(self, attempt: Attempt) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_work,
            args=(theirs, attempt),
            daemon=True,
        )
        with _deaf():
            self.process.start()
        # Our copy of its end: with it open, the pipe would not close when the process dies.
        theirs.close()

    def give(self, place: int, job: SimulationRun) -> None:
        """Let it do that job; of a process that is dead by now `receive` tells."""
        self.place, self.job = place, job
        with suppress(OSError):
            self.pipe.send(job)

    def receive(self) -> float | Outcome:
        """How far it is, or what became of the run; waits for it."""
        try:
            message: float | Outcome = self.pipe.recv()
        # Nothing more comes, or no more of a message that had begun.
        except (EOFError, OSError):
            self.process.join()
            reason = _death(self.process.exitcode or 0)
            return FailedRun(
                policy=self.job.run.label,
                seed=self.job.seed,
                reason=reason,
            )
        return message

    def end(self) -> None:
        """Nothing is left of it afterwards."""
        self.process.terminate()
        self.process.join()
        self.pipe.close()


@contextmanager
def _deaf() -> Iterator[None]:
    """What starts meanwhile ignores Ctrl-C from its first moment on, long before it comes to its own code."""
    # Only the main thread may change signals; it is the one that Ctrl-C interrupts.
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(pipe: Connection, attempt: Attempt) -> None:
    """Do the jobs that come, until none is sent any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            job: SimulationRun = pipe.recv()
            apart_s = job.scenario.spec.duration_s / MESSAGES
            pipe.send(attempt(job, _seldom(pipe.send, apart_s)))
    except (EOFError, BrokenPipeError):
        return


def _seldom(report: Callable[[float], None], apart_s: float) -> Callable[[float], None]:
    """Reports a time only when so much has passed since it reported one."""
    reported_s = 0.0

    def passed(simulated_s: float) -> None:
        nonlocal reported_s
        if simulated_s - reported_s >= apart_s:
            reported_s = simulated_s
            # A float of Python's own: the other side tells progress from outcomes by the type.
            report(float(simulated_s))

    return passed


def _reason(error: Exception) -> str:
    """Why a run failed; of what was not foreseen also where."""
    if isinstance(error, PlimsollError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


def _death(exit_code: int) -> str:
    """How a process ended."""
    if exit_code == -signal.SIGKILL:
        return "its process was killed; perhaps there was too little memory for that number of runs at a time (-j)"
    if exit_code < 0:
        return f"its process was ended by {signal.Signals(-exit_code).name}"
    return f"its process ended by itself with exit code {exit_code}"
