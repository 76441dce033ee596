"""The task book: what nodes report of tasks, and what a task is from then on."""

from datetime import UTC, datetime, timedelta

import pytest

from agents.protocol import Observation, TaskReading, TaskState
from app.control.task_book import TaskBook
from app.errors import Conflict
from solvers.state import Task

START = datetime(2026, 1, 1, tzinfo=UTC)
TASK = Task(name="nightly", kind="training", network="train", batch=64, iterations=1000, due_in_s=100.0)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def reported(*readings: TaskReading, node: str = "n1") -> Observation:
    return Observation(
        node=node, boot="b", sequence=1, window_start_s=0.0, window_s=5.0, generation=1, tasks=tuple(readings)
    )


def reading(state: TaskState, done_iterations: float = 0.0) -> TaskReading:
    return TaskReading(
        name="nightly", gpu_index=0, state=state, sm_percent=20.0, batch=64, done_iterations=done_iterations
    )


def a_book() -> TaskBook:
    book = TaskBook()
    book.submit([TASK], START)
    return book


def test_a_submitted_task_waits_and_its_deadline_comes_nearer() -> None:
    (task,) = a_book().unfinished(after(30.0))
    assert (task.waiting_s, task.due_in_s, task.done_iterations) == (30.0, 70.0, 0.0)
    assert a_book().counts() == {"running": 0, "swapped": 0, "waiting": 1}


def test_a_name_is_given_once() -> None:
    with pytest.raises(Conflict, match="there is a task 'nightly' already"):
        a_book().submit([TASK], after(1.0))


def test_a_running_task_waits_no_more_and_progresses() -> None:
    book = a_book()
    book.take(reported(reading("starting")), after(5.0))
    book.take(reported(reading("running", 40.0)), after(10.0))
    (task,) = book.unfinished(after(12.0))
    assert (task.waiting_s, task.done_iterations) == (0.0, 40.0)
    record = book.records["nightly"]
    assert (record.starts, record.first_ran_at, record.ran_s) == (1, after(10.0), 5.0)


def test_a_task_that_is_swapped_out_waits_since_it_last_ran() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    for state in ("swapping", "swapped", "swapped"):
        book.take(reported(reading(state, 41.0)), after(15.0))
    (task,) = book.unfinished(after(40.0))
    assert (task.waiting_s, task.done_iterations) == (30.0, 41.0)
    assert book.records["nightly"].swaps == 1
    assert book.counts() == {"running": 0, "swapped": 1, "waiting": 0}


def test_a_restart_repeats_work_but_counts_none_of_it_twice() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    book.take(reported(reading("failed")), after(15.0))
    book.take(reported(reading("running", 35.0), node="n2"), after(20.0))
    (task,) = book.unfinished(after(20.0))
    assert task.done_iterations == 40.0
    assert book.records["nightly"].starts == 2


def test_what_its_node_reports_no_more_waits_again() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    book.take(reported(node="n2"), after(15.0))
    assert book.counts()["running"] == 1
    book.take(reported(), after(15.0))
    assert book.counts() == {"running": 0, "swapped": 0, "waiting": 1}
    assert book.unfinished(after(15.0))[0].waiting_s == 5.0


def test_a_finished_task_is_done_for_good() -> None:
    book = a_book()
    book.take(reported(reading("finished", 1000.0)), after(50.0))
    book.take(reported(reading("running", 1.0)), after(55.0))
    book.take(reported(), after(60.0))
    record = book.records["nightly"]
    assert (record.finished_at, record.done_iterations) == (after(50.0), 1000.0)
    assert book.unfinished(after(60.0)) == ()
    assert sum(book.counts().values()) == 0


def test_what_nobody_submitted_is_nobodys() -> None:
    book = TaskBook()
    book.take(reported(reading("running", 1.0)), after(5.0))
    assert book.records == {}
