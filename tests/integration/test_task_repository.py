"""Tasks in PostgreSQL: submissions, places, reports, the audit, and what is forgotten."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agents.base.protocol import TaskReading, TaskState
from app.base.errors import Conflict, NotFound
from app.db.maintenance import Retention, maintain
from app.db.postgres_store import PostgresStore
from app.db.workloads import tasks
from app.db.workloads.task_progress import note_starved
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.state import GpuId, NodeId, Task
from tests.integration.fleet import (
    START,
    make_bound,
    make_gpu_reading,
    make_observation,
    make_record,
    on_fleet,
    rows,
)

pytestmark = pytest.mark.integration
Value = TypeVar("Value")
TASK = Task(
    name="nightly",
    kind="offline",
    network="resnet50",
    batch=8,
    iterations=1000,
    due_in_s=100.0,
)
BOUND = BoundTask(
    name="nightly",
    kind="offline",
    network="resnet50",
    batch=8,
    sm_percent=60.0,
    memory_mib=2048.0,
    iterations=1000,
)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def in_transaction(
    engine: AsyncEngine,
    act: Callable[..., Awaitable[Value]],
    *arguments: object,
    **named: object,
) -> Value:
    async with engine.begin() as connection:
        return await act(connection, *arguments, **named)


async def submit(
    engine: AsyncEngine, noun: Task = TASK, *, at: datetime = START, **more: Any
) -> int:
    return await in_transaction(
        engine,
        tasks.save,
        tasks.TaskSubmission(task=noun, **more),
        at=at,
        actor="token/ann",
    )


async def push(
    store: PostgresStore, at: datetime, *bound: BoundTask, gpu: str = "n1/gpu-0"
) -> None:
    """These tasks alone on a GPU become the target."""
    snapshot = await store.load_snapshot(at)
    plan = make_bound(snapshot.target.generation if snapshot.target else 0, {})
    host = BoundGpu(
        id=GpuId(gpu),
        node=NodeId("n1"),
        gpu_type="T4",
        clock_mhz=1000.0,
        power_cap_w=70.0,
        replicas=(),
        tasks=bound,
    )
    plan = replace(plan, gpus=(host,) if bound else ())
    plan_id = await store.record_plan(
        make_record(at, plan, snapshot.state.catalogue_revision)
    )
    assert await store.push_target(plan_id, plan, (), at)


async def report(
    store: PostgresStore,
    sequence: int,
    state: TaskState,
    done: float = 0.0,
    *,
    gpu_index: int = 0,
    name: str = "nightly",
) -> None:
    """What node n1 says of the task in the five seconds before `sequence` times five."""
    reading = TaskReading(
        name=name,
        gpu_index=gpu_index,
        state=state,
        sm_percent=60.0,
        batch=8,
        done_iterations=done,
        iteration_ms=50.0 if done else 0.0,
    )
    end = after(5.0 * sequence)
    seen = make_observation(
        sequence, end, gpus=[make_gpu_reading(0), make_gpu_reading(1)]
    )
    await store.ingest((msgspec.structs.replace(seen, tasks=(reading,)),), end)


async def audit(engine: AsyncEngine) -> list[tuple[str, str]]:
    async with engine.connect() as connection:
        found = await connection.execute(
            text(
                "SELECT kind, reason FROM event WHERE subject = 'task/nightly' ORDER BY id"
            )
        )
        return [(row.kind, row.reason) for row in found]


async def task(engine: AsyncEngine) -> tasks.TaskRow:
    """The one that most tests are about."""
    return await in_transaction(engine, tasks.get, "nightly")


@on_fleet()
async def test_a_task_goes_from_submission_to_its_end_and_the_audit_says_how(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    (open_task,) = (await store.load_snapshot(after(30.0))).state.tasks
    assert (open_task.waiting_s, open_task.due_in_s) == (30.0, 70.0)
    assert open_task.done_iterations == 0.0
    await push(store, START, BOUND)
    await report(store, 1, "starting")
    await report(store, 2, "running", 400.0)
    await push(store, after(11.0), replace(BOUND, is_resident=False))
    # Its place is the same: what was known of it still holds.
    assert (await task(engine)).record.state == "running"
    await report(store, 3, "swapping", 440.0)
    await push(store, after(16.0), BOUND)
    await report(store, 4, "running", 500.0)
    await report(store, 5, "finished", 1000.0)
    row = await task(engine)
    # 400 and 40 and 60 and 500 iterations of 50 ms: 50 s are more than the clock's 25, as only a test can.
    record = row.record
    assert (record.phase, record.starts, record.swaps) == ("finished", 1, 1)
    assert record.ran_s == 50.0
    assert (await store.load_snapshot(after(30.0))).state.tasks == ()
    assert await audit(engine) == [
        (
            "TaskStarted",
            "on n1/gpu-0 with 60 % of its SMs, after 400 of 1,000 iterations",
        ),
        (
            "TaskSwappedOut",
            "its room on n1/gpu-0 is needed; 440 of 1,000 iterations are done",
        ),
        (
            "TaskSwappedIn",
            "on n1/gpu-0 with 60 % of its SMs, after 500 of 1,000 iterations",
        ),
        (
            "TaskFinished",
            "1,000 iterations in 25 s, of which it waited 0 s; 75 s before its deadline",
        ),
    ]


@on_fleet()
async def test_a_target_elsewhere_ends_what_was_known_and_a_report_from_the_old_place_counts_no_more(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    await push(store, START, BOUND)
    await report(store, 1, "running", 400.0)
    await push(store, after(6.0), BOUND, gpu="n1/gpu-1")
    await report(store, 2, "running", 410.0)
    record = (await task(engine)).record
    assert record.place == ("n1/gpu-1", 60.0)
    assert (record.state, record.done_iterations) == (None, 400.0)
    await report(store, 3, "running", 420.0, gpu_index=1)
    assert (await task(engine)).record.done_iterations == 420.0


@on_fleet()
async def test_a_deleted_task_ends_and_its_name_is_given_to_another_run(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    await push(store, START, BOUND)
    await report(store, 1, "running", 400.0)
    await in_transaction(engine, tasks.remove, "nightly", at=after(6.0))
    with pytest.raises(NotFound):
        await in_transaction(engine, tasks.get, "nightly")
    await submit(engine, at=after(7.0))
    # The old process still runs, and even says that it is done: that is not this run.
    await report(store, 2, "finished", 1000.0)
    row = await task(engine)
    assert (row.name, row.record.phase) == ("nightly", "queued")
    assert row.record.task.name == "nightly.2"
    open_tasks = (await store.load_snapshot(after(9.0))).state.tasks
    assert [each.name for each in open_tasks] == ["nightly.2"]


@on_fleet({"default": ["chat"], "web": []})
async def test_tasks_are_listed_by_name_project_label_and_how_they_stand(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(
        engine,
        replace(TASK, name="b", project="web"),
        labels={"tier": "x", "team": "t"},
    )
    for name in ("a", "c", "d"):
        await submit(engine, replace(TASK, name=name))
    await push(store, START, replace(BOUND, name="a"), replace(BOUND, name="c"))
    await report(store, 1, "swapping", 1.0, name="a")
    await report(
        store, 2, "running", 1.0, name="c"
    )  # and nothing of a: it is gone from there
    await in_transaction(engine, tasks.cancel, "d", at=after(12.0))

    async def names(**wanted: Any) -> list[str]:
        return [
            row.name for row in await in_transaction(engine, tasks.list_rows, **wanted)
        ]

    assert await names() == ["a", "b", "c", "d"]
    assert await names(after="a", limit=2) == ["b", "c"]
    assert await names(projects=["web"]) == await names(labels={"tier": "x"}) == ["b"]
    assert await names(phases=["queued"]) == ["a", "b"]
    assert await names(phases=["running", "cancelled"]) == ["c", "d"]
    for row in await in_transaction(engine, tasks.list_rows):
        assert row.name in await names(phases=[row.record.phase])


@on_fleet()
async def test_no_more_tasks_are_taken_than_a_tick_can_look_at(
    engine: AsyncEngine,
) -> None:
    await submit(engine)

    async def many(connection: AsyncConnection) -> None:
        await connection.execute(
            text(
                "INSERT INTO task SELECT (jsonb_populate_record(one, jsonb_build_object("
                "'id', 'n' || number, 'name', 'n' || number))).* "
                "FROM task AS one, generate_series(2, :most) AS number"
            ),
            {"most": tasks.MAX_OPEN},
        )

    await in_transaction(engine, many)
    with pytest.raises(Conflict, match="2,000 tasks are already waiting or running"):
        await submit(engine, replace(TASK, name="late"))
    await in_transaction(engine, tasks.remove, "n2", at=START)
    assert await submit(engine, replace(TASK, name="late")) == 1


@on_fleet()
async def test_who_waits_for_long_is_told_once_until_it_runs_again(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    await submit(engine, replace(TASK, name="odd", batch=3))
    assert await in_transaction(engine, note_starved, after(899.0)) == 0
    assert await in_transaction(engine, note_starved, after(900.0)) == 2
    assert await in_transaction(engine, note_starved, after(5000.0)) == 0
    told = await rows(
        engine,
        "SELECT subject, reason FROM event WHERE kind = 'TaskStarved' ORDER BY subject",
    )
    assert [subject for subject, _ in told] == ["task/nightly", "task/odd"]
    assert told[0][1].startswith(
        "it has not run for 900 s: services leave no room for it"
    )
    assert (
        "resnet50 has no operating points with batch 3 on the available GPU types"
        in told[1][1]
    )
    await push(store, after(5000.0), BOUND)
    await report(store, 1001, "running", 1.0)
    await report(store, 1002, "failed", 1.0)
    assert await in_transaction(engine, note_starved, after(5904.0)) == 0
    assert await in_transaction(engine, note_starved, after(5905.0)) == 1


@on_fleet()
async def test_a_target_keeps_what_its_tasks_hold_as_rows(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    await push(
        store, START, BOUND, replace(BOUND, name="other", sm_percent=100 / 7, batch=4)
    )
    await push(store, after(5.0), replace(BOUND, is_resident=False))
    found = await rows(
        engine,
        "SELECT plan_id, task, project, sm_percent, power_w FROM plan_task ORDER BY 1, 2",
    )
    # The profile has 60 % and batch 8 at 30 W.
    assert [(*row[:3], float(row[3]), row[4]) for row in found] == [
        (1, "nightly", "default", 60.0, 30.0),
        (1, "other", "default", 100 / 7, 0.0),
    ]
    assert await rows(engine, "SELECT plan_id, gpu FROM plan_gpu") == [(1, "n1/gpu-0")]
    target = (await store.load_snapshot(after(6.0))).target
    assert target is not None
    assert target.gpus[0].tasks == (replace(BOUND, is_resident=False),)


@on_fleet()
async def test_tasks_that_are_over_are_forgotten_by_age_and_by_number(
    engine: AsyncEngine,
) -> None:
    for number in range(5):
        await submit(engine, replace(TASK, name=f"t{number}"))
        if number:
            await in_transaction(
                engine, tasks.cancel, f"t{number}", at=START + timedelta(days=number)
            )
    await maintain(engine, START + timedelta(days=91, hours=12), Retention(tasks=2))
    # t1 is older than 90 days; of t2, t3 and t4 the newest two stay; t0 is not over.
    left = await in_transaction(engine, tasks.list_rows)
    assert [row.name for row in left] == ["t0", "t3", "t4"]


@on_fleet()
async def test_a_node_that_lies_about_the_end_of_a_task_is_an_event_and_changes_nothing(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    await report(store, 1, "finished", 1000.0)
    await push(store, after(6.0), BOUND)
    await report(store, 2, "running", 1.0)
    for sequence in (3, 4):
        await report(store, sequence, "finished", 1.0)
    record = (await task(engine)).record
    assert (record.finished_at, record.done_iterations) == (None, 1.0)
    query = "SELECT subject, reason FROM event WHERE kind = 'TaskReportIgnored'"
    ((subject, reason),) = await rows(engine, query)
    assert subject == "node/n1"
    assert "says that task nightly is finished" in reason


@on_fleet()
async def test_a_task_that_finishes_where_a_newer_target_takes_it_away_is_done(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    await push(store, START, BOUND)
    await report(store, 1, "running", 990.0)
    await push(store, after(6.0), BOUND, gpu="n1/gpu-1")
    # Another process of the API, which has to read first what targets said.
    await report(PostgresStore(engine), 2, "finished", 1000.0)
    record = (await task(engine)).record
    assert record.finished_at == after(10.0)


@on_fleet()
async def test_a_cancelled_task_stays_in_the_list_and_a_finished_one_cannot_be(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine)
    assert await in_transaction(engine, tasks.cancel, "nightly", at=after(1.0))
    assert not await in_transaction(engine, tasks.cancel, "nightly", at=after(2.0))
    (row,) = await in_transaction(engine, tasks.list_rows)
    assert (row.record.phase, row.record.cancelled_at) == ("cancelled", after(1.0))
    assert (await store.load_snapshot(after(3.0))).state.tasks == ()
    await submit(engine, replace(TASK, name="quick"))
    await push(store, after(3.0), replace(BOUND, name="quick"))
    await report(store, 1, "finished", 1000.0, name="quick")
    with pytest.raises(Conflict, match="'quick' has already finished"):
        await in_transaction(engine, tasks.cancel, "quick", at=after(6.0))
