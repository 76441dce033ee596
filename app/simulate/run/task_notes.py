"""What became of tasks in a run: how each one went, from the book of tasks, and what that came to."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from app.simulate.run.results import TaskPhase, TaskResult
from app.store.task_book import TaskBook, TaskRecord

UNFINISHED: tuple[TaskPhase, ...] = ("running", "waiting", "swapped")


@dataclass(slots=True, kw_only=True)
class TaskNotes:
    """Notes on all tasks. Call `look` whenever agents may have reported."""

    book: TaskBook
    start: datetime
    """Second 0 of the simulated clock."""
    reference_ms: Mapping[tuple[str, int], float]
    """An iteration takes so long on the first GPU type that is known, by network and batch."""
    _courses: dict[str, list[tuple[float, TaskPhase]]] = field(default_factory=dict)
    _records: dict[str, TaskRecord] = field(default_factory=dict)
    """As they were last seen."""
    _done: dict[str, float] = field(default_factory=dict)
    """Iterations before the time that counts."""

    def look(self, at: datetime) -> None:
        """Note what has changed."""
        for name, record in self.book.records.items():
            before = self._records.get(name)
            # Records are replaced, never changed: the same object says that nothing happened.
            if record is before:
                continue
            self._records[name] = record
            course = self._courses.setdefault(
                name, [(self._s(record.submitted_at), "waiting")]
            )
            phase = phase_of(record)
            at_s = self._s(record.finished_at or at)
            unseen_s = record.ran_s - (before.ran_s if before else 0.0)
            if unseen_s > 0.0 and "running" not in (phase, course[-1][1]):
                # It began, and ended, between two reports; not before what is noted already.
                course.append((max(course[-1][0], at_s - unseen_s), "running"))
            if phase != course[-1][1]:
                course.append((at_s, phase))

    def begin(self) -> None:
        """From now on it counts."""
        self._done = {
            name: record.done_iterations for name, record in self.book.records.items()
        }

    def counts(self) -> Mapping[TaskPhase, int]:
        """Unfinished tasks, by how they stand."""
        found = Counter(phase_of(record) for record in self.book.records.values())
        return {phase: found[phase] for phase in UNFINISHED}

    def results(self, until: datetime) -> tuple[TaskResult, ...]:
        """What every task that was submitted came to by then."""
        self.look(until)
        records = sorted(
            self.book.records.values(),
            key=lambda record: (record.submitted_at, record.task.name),
        )
        return tuple(self._result(record, until) for record in records)

    def _result(self, record: TaskRecord, until: datetime) -> TaskResult:
        task = record.task
        course = self._courses[record.task.name]
        return TaskResult(
            task=task.name,
            kind=task.kind,
            network=task.network,
            batch=task.batch,
            iterations=task.iterations,
            done_iterations=record.done_iterations,
            done_before=self._done.get(task.name, 0.0),
            reference_ms=self.reference_ms[task.network, task.batch],
            submitted_s=self._s(record.submitted_at),
            first_ran_s=next(
                (begin_s for begin_s, phase in course if phase == "running"), None
            ),
            finished_s=self._s_or_none(record.finished_at),
            deadline_s=self._s_or_none(record.deadline_at),
            until_s=self._s(record.finished_at or until),
            ran_s=record.ran_s,
            starts=record.starts,
            swaps=record.swaps,
            course=course,
        )

    def _s_or_none(self, at: datetime | None) -> float | None:
        return None if at is None else self._s(at)

    def _s(self, at: datetime) -> float:
        return (at - self.start).total_seconds()


def phase_of(record: TaskRecord) -> TaskPhase:
    """How a task stands, by what its node last reported."""
    if record.finished_at is not None:
        return "finished"
    # A cancelled task has no state any more, and so waits; none is cancelled in a simulation.
    if record.state == "running":
        return "running"
    return "swapped" if record.state in ("swapping", "swapped") else "waiting"
