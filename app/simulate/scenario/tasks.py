"""The tasks of a scenario: those that it names, and those that it makes of job lists; and how they are submitted."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from app.base.errors import InvalidRequest
from app.simulate.scenario.checks import Path as FieldPath
from app.simulate.scenario.parts import SimulatedTask, TaskList, TaskWork
from app.simulate.scenario.scenario import ScenarioSpec
from app.simulate.traces.jobs import JobList, read_jobs
from app.store.memory_store import MemoryStore
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import Task, TaskKind, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTask:
    """One task, and when it is submitted."""

    at_s: float
    task: Task


class Submissions:
    """Enters tasks into a store when their time has come."""

    def __init__(
        self,
        submissions: Sequence[TimedTask],
        store: MemoryStore,
        start: datetime,
    ) -> None:
        # By name where several come at once, so that every run has the same order.
        self._due = deque(
            sorted(submissions, key=lambda each: (each.at_s, each.task.name))
        )
        self._store, self._start = store, start

    def enter(self, now_s: float) -> None:
        """Those that are submitted by now, with the time at which they were."""
        while self._due and self._due[0].at_s <= now_s:
            # At the moment of its submission, though it is entered with the next step: deadlines count from then.
            each = self._due.popleft()
            self._store.put_tasks(
                [each.task], at=self._start + timedelta(seconds=each.at_s)
            )


def make_submissions(
    spec: ScenarioSpec,
    points: Sequence[OperatingPoints],
    folder: Path,
) -> tuple[TimedTask, ...]:
    """All tasks of a scenario. Raises InvalidRequest for a job list that cannot be read, or has not enough jobs."""
    named = (TimedTask(at_s=task.submit_s, task=_task(task)) for task in spec.tasks)
    listed = (
        each
        for entry in spec.task_lists
        for each in _of_list(entry, spec, points, folder)
    )
    return (*named, *listed)


def works_of(spec: ScenarioSpec) -> Iterator[tuple[FieldPath, TaskWork, TaskKind]]:
    """What tasks iterate, with the path of the field below `spec`."""
    for place, task in enumerate(spec.tasks):
        yield ("tasks", place), task, task.kind
        for each in task.variants:
            yield (
                ("tasks", place, "variants"),
                TaskWork(network=each.network, batch=task.batch),
                task.kind,
            )
    for place, entry in enumerate(spec.task_lists):
        for number, work in enumerate(entry.networks):
            yield ("task_lists", place, "networks", number), work, entry.kind


def _task(task: SimulatedTask) -> Task:
    return Task(
        name=task.name,
        project=task.project,
        kind=task.kind,
        network=task.network,
        batch=task.batch,
        iterations=task.iterations,
        due_in_s=None if task.deadline_s is None else task.deadline_s - task.submit_s,
        priority=task.priority,
        weight=task.weight,
        variants=tuple(
            Variant(network=each.network, accuracy=each.accuracy)
            for each in task.variants
        ),
        accuracy_floor=task.accuracy_floor,
    )


def _of_list(
    entry: TaskList,
    spec: ScenarioSpec,
    points: Sequence[OperatingPoints],
    folder: Path,
) -> Iterator[TimedTask]:
    # Raises where the list is shorter than `first`.
    jobs_in(entry, folder)
    jobs = _read(folder / entry.file)
    reference_type = entry.gpu_type or spec.fleet[0].gpu_type
    first = entry.first - 1
    begin_s = float(jobs.submit_s[first])
    for number in range(first, min(first + entry.most, len(jobs))):
        at_s = (
            entry.start_s + (float(jobs.submit_s[number]) - begin_s) / entry.time_scale
        )
        # Jobs are sorted by submission, so all that follow are too late as well.
        if at_s >= spec.duration_s:
            return
        task = _job_task(entry, jobs, number, reference_type, points)
        yield TimedTask(at_s=at_s, task=task)


def _job_task(
    entry: TaskList,
    jobs: JobList,
    number: int,
    reference_type: str,
    points: Sequence[OperatingPoints],
) -> Task:
    """The task that a job of the list becomes; `number`: its place in the file, from 0."""
    place = number - (entry.first - 1)
    work = entry.networks[place % len(entry.networks)]
    work_ms = iteration_ms(work, reference_type, points)
    duration_s = float(jobs.duration_s[number]) / entry.time_scale
    # A task uses one GPU here, so more of them count as one.
    gpu_s = duration_s * min(1.0, float(jobs.gpus[number]))
    return Task(
        name=f"{entry.name}-{place + 1}",
        project=entry.project,
        kind=entry.kind,
        network=work.network,
        batch=work.batch,
        iterations=max(1, round(1000.0 * gpu_s / work_ms)),
        due_in_s=None
        if entry.deadline_factor is None
        else entry.deadline_factor * duration_s,
        priority=entry.priority,
    )


def reference_times_ms(
    spec: ScenarioSpec, points: Sequence[OperatingPoints]
) -> dict[tuple[str, int], float]:
    """By network and batch of the tasks: `iteration_ms` on the fleet's first GPU type for which it is known.

    Raises InvalidRequest where it is known for none.
    """
    types = tuple(dict.fromkeys(pool.gpu_type for pool in spec.fleet))
    works = {(work.network, work.batch): work for _, work, _ in works_of(spec)}
    # The first type as the last resort: `iteration_ms` then says what is not known there.
    first = {
        key: next((each for each in types if _rows(work, each, points)), types[0])
        for key, work in works.items()
    }
    return {key: iteration_ms(work, first[key], points) for key, work in works.items()}


def jobs_in(entry: TaskList, folder: Path) -> int:
    """How many jobs a list has. Raises InvalidRequest where it cannot be read, or has none that is to be the first."""
    jobs = len(_read(folder / entry.file))
    if entry.first > jobs:
        raise InvalidRequest(
            f"{entry.file} has {jobs:,} jobs; there is no number {entry.first:,}"
        )
    return jobs


def iteration_ms(
    work: TaskWork,
    gpu_type: str,
    points: Sequence[OperatingPoints],
) -> float:
    """The planned time of an iteration alone on a whole GPU at its highest clock. Raises InvalidRequest."""
    rows = _rows(work, gpu_type, points)
    if not rows:
        raise InvalidRequest(
            f"{work.network} was not profiled with batch {work.batch} on {gpu_type}"
        )
    return max(rows, key=lambda row: (row.sm_percent, row.clock_mhz)).solo_ms


def _rows(
    work: TaskWork,
    gpu_type: str,
    points: Sequence[OperatingPoints],
) -> list[OperatingPoint]:
    return [
        row
        for entry in points
        if (entry.network, entry.gpu_type) == (work.network, gpu_type)
        for row in entry.rows
        if row.batch == work.batch
    ]


# Every policy and seed reads the same files.
@lru_cache(maxsize=16)
def _read(file: Path) -> JobList:
    return read_jobs(file)
