"""The task book: what is submitted, how far it has come, and what became of it; for stores in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from agents.protocol import Observation, TaskReading, TaskState
from app.errors import Conflict
from solvers.state import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task from its submission on."""

    task: Task
    """As submitted."""
    submitted_at: datetime
    deadline_at: datetime | None = None
    state: TaskState | None = None
    """As last reported; None = no node has it."""
    node: str = ""
    """That reported it."""
    done_iterations: float = 0.0
    first_ran_at: datetime | None = None
    last_ran_at: datetime | None = None
    finished_at: datetime | None = None
    ran_s: float = 0.0
    """Summed over the windows at whose end it ran or finished."""
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

    def take(self, observation: Observation, end: datetime) -> None:
        """Note what a node reports of a window that ended then. A task never falls back: a restart repeats work."""
        readings = {reading.name: reading for reading in observation.tasks}
        for name, record in self.records.items():
            if record.finished_at is None and name in readings:
                self.records[name] = _noted(record, readings[name], observation, end)
            elif record.finished_at is None and record.node == observation.node:
                self.records[name] = replace(record, state=None, node="")

    def unfinished(self, now: datetime) -> tuple[Task, ...]:
        """What is still to be done, by name, as it stands now."""
        return tuple(_as_of(record, now) for _, record in sorted(self.records.items()) if record.finished_at is None)

    def counts(self) -> Mapping[str, int]:
        """Unfinished tasks that run, wait and are swapped out."""
        states = [record.state for record in self.records.values() if record.finished_at is None]
        running, swapped = states.count("running"), states.count("swapped") + states.count("swapping")
        return {"running": running, "swapped": swapped, "waiting": len(states) - running - swapped}


def _noted(record: TaskRecord, reading: TaskReading, observation: Observation, end: datetime) -> TaskRecord:
    has_run = reading.state in ("running", "finished")
    is_new = record.state in (None, "failed") or record.node != observation.node
    return replace(
        record,
        state=reading.state,
        node=observation.node,
        done_iterations=max(record.done_iterations, reading.done_iterations),
        first_ran_at=record.first_ran_at or (end if has_run else None),
        last_ran_at=end if has_run else record.last_ran_at,
        finished_at=end if reading.state == "finished" else None,
        ran_s=record.ran_s + (observation.window_s if has_run else 0.0),
        starts=record.starts + (is_new and reading.state != "failed"),
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
