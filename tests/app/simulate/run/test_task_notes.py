"""Courses of tasks: what agents report of a window is all that is known of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from app.simulate.run.results import TaskResult
from app.simulate.run.task_notes import TaskNotes
from app.store.task_book import TaskBook
from solvers.types.state import Task

START = datetime(2026, 1, 1, tzinfo=UTC)
TASK = Task(name="t", kind="training", network="net", batch=8, iterations=40)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def noted(*changes: tuple[float, dict[str, object]]) -> TaskResult:
    """A task that is submitted at 10 s, and how its record changes from then on."""
    book = TaskBook()
    notes = TaskNotes(book=book, start=START, reference_ms={("net", 8): 50.0})
    book.submit([TASK], at(10.0))
    for second, change in changes:
        notes.look(at(second))
        book.records["t"] = replace(book.records["t"], **change)  # type: ignore[arg-type]
    return notes.results(at(100.0))[0]


def test_a_task_that_ran_within_one_window_has_run() -> None:
    # 40 iterations that took 2 s in all, in the window that ended at 15 s, in which it ended, too.
    done = noted(
        (
            10.0,
            {
                "state": "finished",
                "finished_at": at(15.0),
                "done_iterations": 40.0,
                "ran_s": 2.0,
            },
        )
    )
    assert done.course == [(10.0, "waiting"), (13.0, "running"), (15.0, "finished")]
    assert done.first_ran_s == 13.0 and done.waited_s == 3.0
