"""Runs on a Ray cluster, for scenarios with more runs than one machine can do.

Each node must have this version of Plimsoll with the extra `server`, and the scenario's folder, for its traces, at the
same path. Ray is imported here and when it is asked for, since it is an extra.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Protocol

from app.base.errors import InvalidRequest
from app.simulate.run.results import FailedRun
from app.simulate.run.run import SimulationRun
from app.simulate.run.runner import Outcome, Runner, attempt_run

MISSING = "runs on a Ray cluster need the package ray; install Plimsoll with its extra: plimsoll[server,ray]"


class Submits(Protocol):
    """What can take a run away and bring back what became of it: an executor."""

    def submit(
        self, attempt: Callable[[SimulationRun], Outcome], job: SimulationRun, /
    ) -> "Future[Outcome]":
        """Begin it, now or later."""
        ...


@contextmanager
def on_ray(address: str) -> Iterator[Runner]:
    """A runner on the cluster at that address, for as long as it is needed. Raises InvalidRequest."""
    try:
        # Imported here, since most installations have no Ray, and it takes seconds.
        ray = import_module("ray")
    except ModuleNotFoundError as error:
        raise InvalidRequest(MISSING) from error
    try:
        ray.init(address=address, log_to_driver=False)
    # Not only errors of certain types: where a local one takes longer than 30 s to start, Ray raises a bare Exception.
    except Exception as error:
        raise InvalidRequest(f"no Ray cluster answers at {address}: {error}") from error
    try:
        yield partial(run_with, executor=RayExecutor(ray))
    finally:
        # Runs that are under way end with it.
        ray.shutdown()


class RayExecutor:
    """Each run is a task with a core of its own, and is not repeated where its process dies."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray

    def submit(
        self, attempt: Callable[[SimulationRun], Outcome], job: SimulationRun, /
    ) -> "Future[Outcome]":
        """Begin it when a core is free."""
        # No retries: a run that kills its process, for want of memory perhaps, would do so again.
        begun: Future[Outcome] = (
            self._ray.remote(num_cpus=1, max_retries=0)(attempt).remote(job).future()
        )
        return begun


def run_with(
    jobs: Sequence[SimulationRun],
    passed: Callable[[int, float], None],  # noqa: ARG001  nothing there tells how far a run is
    *,
    executor: Submits,
) -> Iterator[tuple[int, Outcome]]:
    """All at once, as many at a time as there is room for. Whose process dies has failed."""
    begun = {
        executor.submit(attempt_alone, _placed(job)): place
        for place, job in enumerate(jobs)
    }
    for future in as_completed(begun):
        place = begun[future]
        try:
            outcome = future.result()
        except Exception as error:
            # The first line: Ray adds the remote traceback below it.
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            outcome = FailedRun(
                policy=jobs[place].run.label,
                seed=jobs[place].seed,
                reason=reason,
            )
        yield place, outcome


def attempt_alone(job: SimulationRun) -> Outcome:
    """One run, somewhere else."""
    return attempt_run(job, lambda _simulated_s: None)


def _placed(job: SimulationRun) -> SimulationRun:
    """The same, whatever folder a process of the cluster begins in."""
    return replace(job, folder=job.folder.resolve())
