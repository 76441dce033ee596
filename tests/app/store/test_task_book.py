"""The task book: what nodes report of tasks, and what a task is from then on."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agents.base.protocol import GpuReading, Observation, TaskReading, TaskState
from app.base.errors import Conflict
from app.store.task_book import TaskBook
from solvers.types.plan import BoundGpu, BoundPlan
from solvers.types.state import GpuId, NodeId, Task
from tests.solvers.factories import bound_task

START = datetime(2026, 1, 1, tzinfo=UTC)
TASK = Task(
    name="nightly",
    kind="training",
    network="train",
    batch=64,
    iterations=1000,
    due_in_s=100.0,
)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def reported(*readings: TaskReading, node: str = "n1") -> Observation:
    gpus = tuple(
        GpuReading(
            index=index,
            gpu_type="fast",
            memory_mib=1.0,
            memory_used_mib=0.0,
            power_w=0.0,
            energy_j=0.0,
            clock_mhz=0.0,
            busy_percent=0.0,
        )
        for index in (0, 1)
    )
    return Observation(
        node=node,
        boot="b",
        sequence=1,
        window_start_s=0.0,
        window_s=5.0,
        generation=1,
        gpus=gpus,
        tasks=readings,
    )


def reading(
    state: TaskState, done_iterations: float = 0.0, **changes: float
) -> TaskReading:
    fields = {"gpu_index": 0, "sm_percent": 20.0, "batch": 64, **changes}
    return TaskReading(
        name="nightly", state=state, done_iterations=done_iterations, **fields
    )  # type: ignore[arg-type]


def a_target(gpu: str | None = "n1/gpu-0", sm_percent: float = 20.0) -> BoundPlan:
    """The task on this GPU, or nowhere."""
    gpus = (
        ()
        if gpu is None
        else (
            BoundGpu(**HOST, id=GpuId(gpu), tasks=(bound_task(sm_percent=sm_percent),)),
        )
    )
    return BoundPlan(generation=1, parent=0, policy="joint", gpus=gpus)


HOST: dict[str, Any] = {
    "node": NodeId("n1"),
    "gpu_type": "fast",
    "clock_mhz": 1000.0,
    "power_cap_w": 1.0,
    "replicas": (),
}


def a_book(target: BoundPlan | None = None) -> TaskBook:
    """With one task, meant to be on the first GPU of node n1 unless told otherwise."""
    book = TaskBook()
    book.submit([TASK], START)
    book.place(target or a_target())
    return book


@pytest.mark.parametrize(
    "target", [a_target("n1/gpu-1"), a_target("n2/gpu-0"), a_target(sm_percent=30.0)]
)
def test_a_task_that_is_moved_waits_until_it_runs_where_it_is_wanted(
    target: BoundPlan,
) -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    book.place(target)
    book.take(reported(reading("running", 45.0)), after(15.0))  # the old copy
    (task,) = book.unfinished(after(15.0))
    assert (task.waiting_s, task.done_iterations) == (5.0, 40.0)
    (gpu,) = target.gpus
    node, index, share = gpu.id[:2], int(gpu.id[-1]), gpu.tasks[0].sm_percent
    book.take(
        reported(
            reading("running", 42.0, gpu_index=index, sm_percent=share), node=node
        ),
        after(20.0),
    )
    assert book.unfinished(after(20.0))[0].done_iterations == 42.0
    assert book.records["nightly"].starts == 2


def test_what_its_node_reports_no_more_waits_again() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    book.take(reported(node="n2"), after(15.0))
    assert book.records["nightly"].state == "running"
    book.take(reported(), after(15.0))
    assert book.records["nightly"].state is None
    assert book.unfinished(after(15.0))[0].waiting_s == 5.0


def test_a_finished_task_is_done_for_good() -> None:
    book = a_book()
    # The share under it has just been changed; its GPU has not.
    book.take(reported(reading("finished", 1000.0, sm_percent=30.0)), after(50.0))
    book.take(reported(reading("running", 1.0)), after(55.0))
    book.place(a_target(None))
    record = book.records["nightly"]
    assert (record.finished_at, record.done_iterations) == (after(50.0), 1000.0)
    assert book.unfinished(after(60.0)) == ()


def test_a_node_that_never_had_a_task_cannot_finish_it() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    for elsewhere in (
        reported(reading("finished", 1000.0), node="n2"),
        reported(reading("finished", 1000.0, gpu_index=1)),
    ):
        book.take(elsewhere, after(15.0))
    (task,) = book.unfinished(after(15.0))
    assert task.done_iterations == 40.0


@pytest.mark.parametrize(("done", "batch"), [(999.0, 64), (1000.0, 63), (499.9, 128)])
def test_a_task_is_not_finished_before_all_its_iterations_are_done(
    done: float, batch: int
) -> None:
    book = a_book()
    book.take(reported(reading("finished", done, batch=batch)), after(10.0))
    record = book.records["nightly"]
    assert (record.finished_at, record.state) == (None, None)


def test_a_task_that_finishes_while_it_is_moved_is_done() -> None:
    book = a_book()
    book.take(reported(reading("running", 990.0)), after(10.0))
    book.place(a_target("n2/gpu-0"))
    end = reported(reading("finished", 1000.0))
    book.take(end, after(15.0), held=frozenset(["nightly"]))
    assert book.records["nightly"].finished_at == after(15.0)


def test_once_its_new_place_reports_a_task_no_other_node_can_finish_it() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    book.place(a_target("n2/gpu-0"))
    book.take(reported(reading("starting", 40.0), node="n2"), after(12.0))
    end = reported(reading("finished", 1000.0))
    book.take(end, after(15.0), held=frozenset(["nightly"]))
    assert book.records["nightly"].finished_at is None


def test_progress_in_another_batch_counts_in_that_of_the_submission() -> None:
    # 200 batches of 128 examples are 400 of the 64 that were submitted; one in 30 ms is two in 15 ms each.
    book = TaskBook()
    book.submit([TASK], START)
    book.place(a_target())
    book.take(
        reported(reading("running", 200.0, batch=128, iteration_ms=30.0)), after(10.0)
    )
    record = book.records["nightly"]
    assert (record.done_iterations, record.iteration_ms) == (400.0, 15.0)
    assert record.ran_s == pytest.approx(6.0)
    # 7.5 batches too many in the last, half-empty one are no more than all.
    book.take(
        reported(reading("finished", 503.75, batch=128, iteration_ms=30.0)), after(20.0)
    )
    assert book.records["nightly"].done_iterations == 1000.0


def test_a_name_is_given_once() -> None:
    with pytest.raises(Conflict, match="there is already a task 'nightly'"):
        a_book().submit([TASK], after(1.0))


def test_a_running_task_progresses_and_once_swapped_out_waits_since_it_ran() -> None:
    book = a_book()
    book.take(reported(reading("starting")), after(5.0))
    book.take(reported(reading("running", 40.0, iteration_ms=50.0)), after(10.0))
    (task,) = book.unfinished(after(12.0))
    assert (task.waiting_s, task.done_iterations) == (0.0, 40.0)
    record = book.records["nightly"]
    assert (record.starts, record.last_ran_at, record.ran_s) == (1, after(10.0), 2.0)
    for state in ("swapping", "swapped", "swapped"):
        book.take(reported(reading(state, 41.0)), after(15.0))
    (task,) = book.unfinished(after(40.0))
    assert (task.waiting_s, task.done_iterations) == (30.0, 41.0)
    assert book.records["nightly"].swaps == 1


def test_a_restart_begins_from_what_is_reported_of_it() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    book.take(reported(reading("failed", 40.0)), after(15.0))
    book.take(reported(reading("running", 35.0)), after(20.0))
    (task,) = book.unfinished(after(20.0))
    assert task.done_iterations == 35.0
    assert book.records["nightly"].starts == 2
