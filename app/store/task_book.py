"""The task book: what is submitted, where it is meant to be, how far it has come.

What becomes of one task is said by pure functions of its record, which both stores call: `TaskBook` keeps the records
in memory, `app.db.workloads.task_progress` in PostgreSQL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from agents.base.protocol import Observation, TaskReading, TaskState
from app.base.errors import Conflict, NotFound
from solvers.types.plan import BoundPlan
from solvers.types.state import GpuId, Task, gpu_id

Place: TypeAlias = tuple[GpuId, float]
"""A GPU and a share of its SMs, as a target gives them to a task."""

TaskPhase: TypeAlias = Literal[
    "queued", "starting", "running", "swapped", "failed", "finished", "cancelled"
]
"""queued: it runs nowhere; starting, running, swapped, failed: as its node last reported, which starts a failed one
again; finished: all iterations are done; cancelled: it is not wanted any more."""

_PHASES: dict[TaskState, TaskPhase] = {
    "starting": "starting",
    "running": "running",
    "swapping": "swapped",
    "swapped": "swapped",
    "failed": "failed",
    "finished": "finished",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task from its submission on."""

    task: Task
    """As submitted."""
    submitted_at: datetime
    deadline_at: datetime | None = None
    place: Place | None = None
    """Where the target places it; None = nowhere."""
    state: TaskState | None = None
    """As last reported from there; None = not yet, or no more."""
    done_iterations: float = 0.0
    """As last reported from anywhere it was meant to be; of the batch with which it was submitted."""
    iteration_ms: float = 0.0
    """Mean of the newest window in which it made progress; 0 = it made none yet."""
    last_ran_at: datetime | None = None
    finished_at: datetime | None = None
    cancelled_at: datetime | None = None
    ran_s: float = 0.0
    """Summed over its iterations."""
    starts: int = 0
    swaps: int = 0
    """How often it was swapped out."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is still to be done."""
        return self.finished_at is not None or self.cancelled_at is not None

    @property
    def phase(self) -> TaskPhase:
        """How it stands."""
        if self.finished_at is not None:
            return "finished"
        if self.cancelled_at is not None:
            return "cancelled"
        return "queued" if self.state is None else _PHASES[self.state]


@dataclass(slots=True)
class TaskBook:
    """All tasks by name."""

    records: dict[str, TaskRecord] = field(default_factory=dict)

    def submit(self, tasks: Iterable[Task], at: datetime) -> None:
        """Enter tasks; their deadlines count from now. Raises Conflict for a name that is taken."""
        for task in tasks:
            if task.name in self.records:
                raise Conflict(
                    f"there is already a task {task.name!r}; choose another name"
                )
            self.records[task.name] = submitted(task, at)

    def cancel(self, name: str, at: datetime) -> None:
        """End a task that is not wanted any more. Raises NotFound; Conflict for one that has finished."""
        if name not in self.records:
            raise NotFound(f"no task is called {name!r}")
        self.records[name] = cancelled(self.records[name], at)

    def place(self, target: BoundPlan) -> None:
        """Note where a new target wants each task; one that is to be elsewhere runs no more from now on."""
        places = places_of(target)
        self.records = {
            name: placed(record, places.get(name))
            for name, record in self.records.items()
        }

    def take(
        self,
        observation: Observation,
        end: datetime,
        held: frozenset[str] = frozenset(),
    ) -> None:
        """Note what a node reports of a window that ended then. `held`: see `TaskReport`."""
        report = report_of(observation, end, held)
        self.records = {
            name: reported(record, report) for name, record in self.records.items()
        }

    def unfinished(self, now: datetime) -> tuple[Task, ...]:
        """What is still to be done, by name, as it stands now."""
        return tuple(
            as_of(record, now)
            for _, record in sorted(self.records.items())
            if not record.is_over
        )


def submitted(task: Task, at: datetime) -> TaskRecord:
    """The record of a task that begins now; its deadline counts from now."""
    # Kept as a moment: a duration would have to be counted down with every tick.
    deadline_at = (
        None if task.due_in_s is None else at + timedelta(seconds=task.due_in_s)
    )
    return TaskRecord(
        task=task,
        submitted_at=at,
        deadline_at=deadline_at,
        done_iterations=task.done_iterations,
    )


def cancelled(record: TaskRecord, at: datetime) -> TaskRecord:
    """The record once the task is not wanted any more. Raises Conflict for one that has finished."""
    if record.finished_at is not None:
        raise Conflict(
            f"task {record.task.name!r} has already finished; it cannot be cancelled"
        )
    if record.is_over:
        return record
    return replace(
        record,
        cancelled_at=at,
        place=None,
        state=None,
    )


def places_of(target: BoundPlan) -> dict[str, Place]:
    """Where a target wants each of its tasks, by name."""
    return {
        task.name: (gpu.id, task.sm_percent)
        for gpu in target.gpus
        for task in gpu.tasks
    }


def placed(record: TaskRecord, place: Place | None) -> TaskRecord:
    """The record under a target that wants the task there."""
    if record.is_over or record.place == place:
        return record
    # What its node last reported is of the place that it leaves.
    return replace(
        record,
        place=place,
        state=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What a node says of tasks in one observation."""

    node: str
    end: datetime
    """When the report's window ended."""
    readings: Mapping[str, TaskReading]
    """By task."""
    gpus: frozenset[GpuId]
    """All that it reports of."""
    held: frozenset[str]
    """Tasks that it says are finished where a target put them, now or not long before (`Admitted`)."""


def report_of(
    observation: Observation, end: datetime, held: frozenset[str]
) -> TaskReport:
    """What an observation says of tasks; its window ended then."""
    return TaskReport(
        node=observation.node,
        end=end,
        readings={each.name: each for each in observation.tasks},
        gpus=frozenset(gpu_id(observation.node, gpu.index) for gpu in observation.gpus),
        held=held,
    )


def reported(record: TaskRecord, report: TaskReport) -> TaskRecord:
    """The record after a report of the node where the target wants the task; of other nodes nothing counts.

    But for one race: a task may finish while a new target moves it away. What the node that it leaves says then counts
    until it is reported from its new place: the work would only be done twice, or wait in vain for a GPU. From then on
    the new place alone speaks for it, or a node that had a task once could end it for ever.
    """
    reading = report.readings.get(record.task.name)
    if record.is_over:
        return record
    if reading is not None and (
        _is_finished(record, reading, report)
        if reading.state == "finished"
        else _place(report.node, reading) == record.place
    ):
        return _noted(record, reading, report.end)
    # The node reports of the GPU, but not of the task: the task does not run there any more.
    is_gone = (
        record.state is not None
        and record.place is not None
        and record.place[0] in report.gpus
    )
    return replace(record, state=None) if is_gone else record


def as_of(record: TaskRecord, now: datetime) -> Task:
    """The task as it stands now."""
    return replace(
        record.task,
        done_iterations=record.done_iterations,
        waiting_s=waiting_s(record, now),
        due_in_s=None
        if record.deadline_at is None
        else (record.deadline_at - now).total_seconds(),
        iteration_ms=record.iteration_ms if record.state == "running" else 0.0,
    )


def waiting_s(record: TaskRecord, now: datetime) -> float:
    """Since it last ran, or was submitted; 0 while it runs, and when it is over."""
    if record.is_over or record.state == "running":
        return 0.0
    since = record.last_ran_at or record.submitted_at
    # A report may be newer than the moment that is asked for.
    return max(0.0, (now - since).total_seconds())


def waited_s(record: TaskRecord, now: datetime) -> float:
    """All the time since its submission in which it did not run."""
    until = record.finished_at or record.cancelled_at or now
    present_s = (until - record.submitted_at).total_seconds()
    # Both are rounded: a task that always ran must not have waited for less than nothing.
    return max(0.0, present_s - record.ran_s)


def remaining_s(record: TaskRecord) -> float | None:
    """Until it is done at its present pace; None where it does not run, or its pace is not known yet."""
    if record.is_over or record.state != "running" or record.iteration_ms <= 0.0:
        return None
    remaining = record.task.iterations - record.done_iterations
    return remaining * record.iteration_ms / 1000.0


def _place(node: str, reading: TaskReading) -> Place:
    return gpu_id(node, reading.gpu_index), reading.sm_percent


def _is_finished(record: TaskRecord, reading: TaskReading, report: TaskReport) -> bool:
    """Whether the task is done: all its iterations are, where it is wanted or where it was until it moves on."""
    gpu = gpu_id(report.node, reading.gpu_index)
    # The GPU alone: a new target may have changed the share under it.
    is_here = record.place is not None and record.place[0] == gpu
    is_leaving = record.state is None and record.task.name in report.held
    return (is_here or is_leaving) and _is_all_done(record, reading)


def _is_all_done(record: TaskRecord, reading: TaskReading) -> bool:
    done = reading.done_iterations * _factor(record, reading)
    # Batches of another size are converted, which may round.
    return done >= record.task.iterations * (1.0 - 1e-9)


def _factor(record: TaskRecord, reading: TaskReading) -> float:
    """Iterations as submitted in one as reported: a dispatcher may run a task with another batch."""
    return reading.batch / record.task.batch


def _noted(record: TaskRecord, reading: TaskReading, end: datetime) -> TaskRecord:
    is_started = record.state in (None, "failed") and reading.state != "failed"
    is_out = reading.state in ("swapping", "swapped")
    has_run = reading.state in ("running", "finished")
    factor = _factor(record, reading)
    done_iterations = min(
        reading.done_iterations * factor, float(record.task.iterations)
    )
    iteration_ms = reading.iteration_ms / factor
    # Progress is negative when a task starts over from its last checkpoint.
    progress = max(0.0, done_iterations - record.done_iterations)
    return replace(
        record,
        state=reading.state,
        done_iterations=done_iterations,
        iteration_ms=iteration_ms or record.iteration_ms,
        last_ran_at=end if has_run else record.last_ran_at,
        finished_at=end if reading.state == "finished" else None,
        ran_s=record.ran_s + progress * iteration_ms / 1000.0,
        starts=record.starts + is_started,
        # Counted on the way out only: a task that stays out is not swapped again with every report.
        swaps=record.swaps + (is_out and record.state == "running"),
    )
