"""What tasks cost and how far they came, against figures that were worked out by hand."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.maintenance import maintain
from app.db.postgres_store import PostgresStore
from app.db.reports import reports
from app.db.workloads import tasks
from solvers.types.plan import BoundGpu, BoundPlan, BoundTask
from solvers.types.state import GpuId, NodeId, Task
from tests.integration.fleet import (
    START,
    Share,
    make_bound,
    make_record,
    observe,
    on_fleet,
    rows,
)

pytestmark = pytest.mark.integration
HOUR = timedelta(hours=1)


def a_task(name: str, sm_percent: float, memory_mib: float = 1024.0) -> BoundTask:
    return BoundTask(
        name=name,
        kind="offline",
        network="resnet50",
        batch=8,
        sm_percent=sm_percent,
        memory_mib=memory_mib,
        iterations=1000,
    )


async def submit(engine: AsyncEngine, name: str, project: str = "default") -> None:
    noun = Task(
        name=name,
        project=project,
        kind="offline",
        network="resnet50",
        batch=8,
        iterations=1000,
        due_in_s=60.0,
    )
    async with engine.begin() as connection:
        await tasks.save(
            connection, tasks.TaskSubmission(task=noun), at=START, actor="test"
        )


async def push(
    store: PostgresStore,
    at: datetime,
    shares: list[Share],
    *on: BoundTask,
    alone: BoundTask,
) -> None:
    """Replicas and tasks on gpu-0, and one task alone on gpu-1."""
    snapshot = await store.load_snapshot(at)
    bound = make_bound(
        snapshot.target.generation if snapshot.target else 0, {"n1/gpu-0": shares}
    )
    host = replace(bound.gpus[0], tasks=on)
    idle = BoundGpu(
        id=GpuId("n1/gpu-1"),
        node=NodeId("n1"),
        gpu_type="T4",
        clock_mhz=1000.0,
        power_cap_w=70.0,
        replicas=(),
        tasks=(alone,),
    )
    plan: BoundPlan = replace(bound, gpus=(host, idle))
    plan_id = await store.record_plan(
        make_record(at, plan, snapshot.state.catalogue_revision)
    )
    assert await store.push_target(plan_id, plan, (), at)


async def an_hour(store: PostgresStore, engine: AsyncEngine) -> None:
    """One hour at 1.20 USD a GPU: chat has half of gpu-0, two tasks of web a fifth and a tenth; one of default is alone
    on gpu-1 with four fifths of it."""
    for name, project in (("big", "web"), ("small", "web"), ("alone", "default")):
        await submit(engine, name, project)
    on = (
        a_task("big", 20.0),
        a_task("small", 10.0),
        replace(a_task("away", 90.0), is_resident=False),
    )
    await push(store, START, [("chat", 50, 2048)], *on, alone=a_task("alone", 80.0))
    await observe(store, 1, START + HOUR)


@on_fleet({"default": ["chat"], "web": []})
async def test_tasks_pay_for_what_they_hold_beside_services(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await an_hour(store, engine)
    by_service = "SELECT service, project, gpu_hours, cost_usd FROM report.cost_by_service_hour ORDER BY 1, 2"
    assert await rows(engine, by_service) == [
        # 20 % of gpu-0 and 20 % of gpu-1.
        ("(idle)", "(idle)", Decimal("0.4"), Decimal("0.48")),
        ("(tasks)", "default", Decimal("0.8"), Decimal("0.96")),
        ("(tasks)", "web", Decimal("0.3"), Decimal("0.36")),
        ("chat", "default", Decimal("0.5"), Decimal("0.60")),
    ]
    by_task = (
        "SELECT project, task, gpu_hours, cost_usd, whole_gpu_cost_usd FROM "
        "report.cost_by_task_hour ORDER BY 2"
    )
    assert await rows(engine, by_task) == [
        # Alone on its GPU it pays for all of it where nothing may be idle; on gpu-0 80 % are used.
        ("default", "alone", Decimal("0.8"), Decimal("0.96"), Decimal("1.20")),
        ("web", "big", Decimal("0.2"), Decimal("0.24"), Decimal("0.30")),
        ("web", "small", Decimal("0.1"), Decimal("0.12"), Decimal("0.15")),
    ]
    by_project = "SELECT project, tasks, gpu_hours, cost_usd FROM report.tasks_by_project_hour ORDER BY 1"
    assert await rows(engine, by_project) == [
        ("default", 1, Decimal("0.8"), Decimal("0.96")),
        ("web", 2, Decimal("0.3"), Decimal("0.36")),
    ]


@on_fleet({"default": ["chat"], "web": []})
async def test_shares_that_no_decimal_can_write_add_up_to_the_bill_with_tasks(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    for name, project in (("a", "web"), ("b", "default"), ("c", "web")):
        await submit(engine, name, project)
    on = (a_task("a", 100 / 7), a_task("b", 100 / 3), a_task("c", 1 / 3))
    await push(
        store, START, [("chat", 100 / 7, 1000)], *on, alone=a_task("d", 100 / 13)
    )
    later = START + timedelta(seconds=7, microseconds=1)
    await push(
        store,
        later,
        [("chat", 10, 1000)],
        a_task("c", 200 / 7),
        alone=a_task("a", 100 / 9),
    )
    await observe(store, 1, START + 2 * HOUR)
    adding_up = (
        "SELECT b.cost_usd = sum(a.cost_usd), b.cost_usd = sum(a.whole_gpu_cost_usd), "
        "b.cost_usd = sum(a.memory_cost_usd) "
        "FROM report.allocation_hour a JOIN report.bill_hour b USING (hour, gpu) GROUP BY hour, gpu, b.cost_usd"
    )
    assert await rows(engine, adding_up) == [(True, True, True)] * 4
    divided = (
        "SELECT t.cost = s.cost, t.whole = s.whole FROM "
        "(SELECT hour, project, sum(cost_usd) AS cost, sum(whole_gpu_cost_usd) AS whole "
        " FROM report.cost_by_task_hour GROUP BY hour, project) AS t JOIN "
        "(SELECT hour, project, sum(cost_usd) AS cost, sum(whole_gpu_cost_usd) AS whole "
        " FROM report.cost_by_service_hour WHERE service = '(tasks)' GROUP BY hour, project) AS s "
        "USING (hour, project)"
    )
    found = await rows(engine, divided)
    assert set(found) == {(True, True)}
    assert len(found) == 3  # both projects in the first hour, web alone in the second


@on_fleet()
async def test_energy_is_divided_between_services_and_tasks(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await submit(engine, "nightly")
    # Of the profile: 60 % and batch 8 draw 30 W above the 10 W idle, for the service and for the task.
    await push(
        store,
        START,
        [("chat", 60, 2048)],
        a_task("nightly", 40.0),
        alone=a_task("other", 60.0),
    )
    await observe(store, 1, START + HOUR)
    weights = (
        "SELECT service, sum(power_w) FROM allocation_share s JOIN allocation a ON a.id = s.allocation "
        "WHERE gpu = 'n1/gpu-1' GROUP BY 1 ORDER BY 1"
    )
    assert await rows(engine, weights) == [
        ("(idle)", Decimal(10)),
        ("(tasks)", Decimal(30)),
    ]


@on_fleet({"default": ["chat"], "web": []})
async def test_progress_says_how_tasks_stand_and_whether_they_are_late(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await an_hour(store, engine)
    async with engine.begin() as connection:
        await tasks.cancel(connection, "small", at=START + timedelta(minutes=10))
        report = await reports.load(
            connection, "task_progress", since=START, until=START + HOUR
        )
        assert await reports.load(
            connection, "task_progress", since=START + HOUR
        ) == replace(report, rows=())
    picked = [
        report.columns.index(name)
        for name in ("task", "state", "is_late", "waited_s", "done_percent")
    ]
    assert [tuple(row[place] for place in picked) for row in report.rows] == [
        ("alone", "queued", True, 3600.0, 0.0),
        ("big", "queued", True, 3600.0, 0.0),
        ("small", "cancelled", None, 600.0, 0.0),
    ]


@on_fleet({"default": ["chat"], "web": []})
async def test_a_forgotten_tasks_id_is_not_given_to_another_projects_task(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await an_hour(store, engine)
    async with engine.begin() as connection:
        await tasks.remove(connection, "big", at=START + HOUR)
    # As retention does after 90 days; what it cost stays.
    await maintain(engine, START + timedelta(days=91))
    assert await rows(engine, "SELECT name FROM task WHERE name = 'big'") == []
    await submit(engine, "big", "default")
    assert await rows(engine, "SELECT id FROM task WHERE name = 'big'") == [("big.2",)]
