"""The audit's lines about tasks: what their nodes report of them, who waits for long, what the checker left out."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from app.control.report import ACTOR
from app.control.store import Event
from app.control.task_book import TaskRecord, waited_s

STARVED_AFTER_S = 900.0
"""A task that has not run for so long is told: for 600 s it waits by design before an idle GPU is paid for it."""

LOOK_PERIOD_S = 30.0
"""So often the leader looks who waits for long."""


def progress_event(name: str, before: TaskRecord, after: TaskRecord, *, node: str, at: datetime) -> Event | None:
    """What a node's report changed about a task; None where it only came on. `name`: as its team calls it."""
    found = _change(before, after)
    if found is None:
        return None
    kind, reason = found
    return Event(at=at, actor=f"node/{node}", kind=kind, subject=f"task/{name}", reason=reason)


def _change(before: TaskRecord, after: TaskRecord) -> tuple[str, str] | None:
    if before.phase == after.phase:
        return None
    done = f"{after.done_iterations:,.0f} of {after.task.iterations:,} iterations"
    match after.phase:
        case "finished":
            return "TaskFinished", _ending(after)
        case "running" if before.phase == "swapped":
            return "TaskSwappedIn", f"{_place(after)}, after {done}"
        case "running":
            return "TaskStarted", f"{_place(after)}, after {done}"
        case "swapped":
            return "TaskSwappedOut", f"its room on {_gpu(after)} is needed; {done} are done"
        case "failed":
            return "TaskFailed", f"on {_gpu(after)}, after {done}; its agent starts it again"
        case _:
            return None


def _ending(record: TaskRecord) -> str:
    assert record.finished_at is not None
    took_s = (record.finished_at - record.submitted_at).total_seconds()
    words = f"{record.task.iterations:,} iterations in {took_s:,.0f} s, of which it waited {_waited(record):,.0f} s"
    if record.deadline_at is None:
        return words
    late_s = (record.finished_at - record.deadline_at).total_seconds()
    return f"{words}; {abs(late_s):,.0f} s {'after' if late_s > 0.0 else 'before'} its deadline"


def _waited(record: TaskRecord) -> float:
    assert record.finished_at is not None
    return waited_s(record, record.finished_at)


def _place(record: TaskRecord) -> str:
    percent = f" with {record.place[1]:g} % of its SMs" if record.place else ""
    return f"on {_gpu(record)}{percent}"


def _gpu(record: TaskRecord) -> str:
    return record.place[0] if record.place else "a GPU where it is not wanted any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starved:
    """A task that has not run for STARVED_AFTER_S or longer."""

    name: str
    network: str
    batch: int
    waiting_s: float
    has_points: bool
    """Whether its network has operating points with its batch on a GPU type that is there."""


def starved_event(task: Starved, at: datetime) -> Event:
    """A task waits for long, and why."""
    why = "services leave no room for it; more GPUs, a higher priority or a smaller batch would help"
    if not task.has_points:
        why = (
            f"{task.network} has no operating points with batch {task.batch} on the GPU types that are here; "
            "send a profile, or add nodes of another type"
        )
    reason = f"it has not run for {task.waiting_s:,.0f} s: {why}"
    return Event(at=at, actor=ACTOR, kind="TaskStarved", subject=f"task/{task.name}", reason=reason)


def refused_events(refused: Iterable[tuple[str, str]], at: datetime) -> tuple[Event, ...]:
    """The checker left tasks out of a plan: (id, rule with its detail) of each."""
    return tuple(
        Event(
            at=at,
            actor=ACTOR,
            kind="TaskRefused",
            subject=f"task/{task.partition('.')[0]}",
            reason=f"the checker left it out of the plan: {detail}",
        )
        for task, detail in sorted(refused)
    )
