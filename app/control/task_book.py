"""The task book: what is submitted, where it is meant to be, how far it has come; for stores in memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from agents.protocol import Observation, TaskReading, TaskState
from app.errors import Conflict
from solvers.plan import BoundPlan
from solvers.state import GpuId, Task, gpu_id

Place: TypeAlias = tuple[GpuId, float]
"""A GPU and a share of its SMs, as a target gives them to a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task from its submission on."""

    task: Task
    """As submitted."""
    submitted_at: datetime
    deadline_at: datetime | None = None
    place: Place | None = None
    """Where the target wants it; None = nowhere."""
    state: TaskState | None = None
    """As last reported from there; None = not yet, or no more."""
    done_iterations: float = 0.0
    """As last reported from anywhere it was meant to be."""
    last_ran_at: datetime | None = None
    finished_at: datetime | None = None
    ran_s: float = 0.0
    """Summed over its iterations."""
    starts: int = 0
    swaps: int = 0
    """How often it was swapped out."""


@dataclass(slots=True)
class TaskBook:
    """All tasks by name."""

    records: dict[str, TaskRecord] = field(default_factory=dict)

    def submit(self, tasks: Iterable[Task], at: datetime) -> None:
        """Enter tasks; their deadlines count from now. Raises Conflict for a name that is taken."""
        for task in tasks:
            if task.name in self.records:
                raise Conflict(f"there is a task {task.name!r} already; give this one another name")
            deadline_at = None if task.due_in_s is None else at + timedelta(seconds=task.due_in_s)
            self.records[task.name] = TaskRecord(
                task=task, submitted_at=at, deadline_at=deadline_at, done_iterations=task.done_iterations
            )

    def place(self, target: BoundPlan) -> None:
        """Note where a new target wants each task; one that is to be elsewhere runs no more from now on."""
        places = {task.name: (gpu.id, task.sm_percent) for gpu in target.gpus for task in gpu.tasks}
        for name, record in self.records.items():
            if record.finished_at is None and record.place != places.get(name):
                self.records[name] = replace(record, place=places.get(name), state=None)

    def take(self, observation: Observation, end: datetime) -> None:
        """Note what a node reports of a window that ended then; where a task is not wanted only that it is done."""
        gpus = {gpu_id(observation.node, gpu.index) for gpu in observation.gpus}
        readings = {each.name: each for each in observation.tasks}
        for name, record in self.records.items():
            reading = readings.get(name)
            if record.finished_at is not None:
                continue
            if reading is not None and (reading.state == "finished" or _place(observation, reading) == record.place):
                self.records[name] = _noted(record, reading, end)
            elif record.state is not None and record.place is not None and record.place[0] in gpus:
                self.records[name] = replace(record, state=None)

    def unfinished(self, now: datetime) -> tuple[Task, ...]:
        """What is still to be done, by name, as it stands now."""
        return tuple(_as_of(record, now) for _, record in sorted(self.records.items()) if record.finished_at is None)


def _place(observation: Observation, reading: TaskReading) -> Place:
    return gpu_id(observation.node, reading.gpu_index), reading.sm_percent


def _noted(record: TaskRecord, reading: TaskReading, end: datetime) -> TaskRecord:
    has_run = reading.state in ("running", "finished")
    progress = max(0.0, reading.done_iterations - record.done_iterations)
    return replace(
        record,
        state=reading.state,
        done_iterations=reading.done_iterations,
        last_ran_at=end if has_run else record.last_ran_at,
        finished_at=end if reading.state == "finished" else None,
        ran_s=record.ran_s + progress * reading.iteration_ms / 1000.0,
        starts=record.starts + (record.state in (None, "failed") and reading.state != "failed"),
        swaps=record.swaps + (reading.state in ("swapping", "swapped") and record.state == "running"),
    )


def _as_of(record: TaskRecord, now: datetime) -> Task:
    waits_since = record.last_ran_at or record.submitted_at
    return replace(
        record.task,
        done_iterations=record.done_iterations,
        waiting_s=0.0 if record.state == "running" else max(0.0, (now - waits_since).total_seconds()),
        due_in_s=None if record.deadline_at is None else (record.deadline_at - now).total_seconds(),
    )
