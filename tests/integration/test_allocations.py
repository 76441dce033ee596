"""What targets give to GPUs, as rows that last, and plans, as differences from their parents: every plan comes back."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.decisions import plans
from app.db.decisions.bindings import FULL_EVERY
from app.db.fleet import gpu_types
from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from solvers.types.plan import BoundGpu, BoundPlan, BoundTask
from solvers.types.state import GpuId, ReplicaId
from tests.conftest import copied_database
from tests.integration.fault_harness import rows, with_store
from tests.integration.fleet import (
    START,
    make_bound,
    make_gpu_type,
    make_record,
    with_fleet,
)

pytestmark = pytest.mark.integration

TARGETS = 2 * FULL_EVERY + 6
"""Two plans in between are stored whole."""
GPUS = 12
GPU = make_bound(0, {"n1/gpu-0": [("chat", 60.0, 2048.0)]}).gpus[0]
TASK = BoundTask(
    name="nightly",
    kind="offline",
    network="resnet50",
    batch=8,
    sm_percent=10.0,
    memory_mib=1024.0,
    iterations=1000,
)
PLANNED = {
    "plan_gpu": "gpu",
    "plan_replica": "gpu, replica",
    "plan_task": "gpu, task",
}
"""Views, and what their rows of a plan are told apart by."""


def changed(gpu: BoundGpu | None, draw: Random, number: int) -> BoundGpu | None:
    """The GPU with something else: another replica, rate, task or clock, or nothing at all."""
    before = gpu or replace(
        GPU, id=GpuId(f"n1/gpu-{draw.randrange(GPUS)}"), replicas=()
    )
    replica = replace(GPU.replicas[0], id=ReplicaId(f"chat-{number}-1"))
    rated = replace(replica, arrival_rate_rps=draw.uniform(0.0, 99.0))
    return draw.choice(
        [
            None if draw.random() < 0.3 else before,
            replace(before, replicas=(replica,)),
            replace(before, replicas=(*before.replicas[:2], rated)),
            replace(
                before,
                replicas=tuple(
                    replace(each, arrival_rate_rps=draw.uniform(0.0, 99.0))
                    for each in before.replicas
                ),
            ),
            replace(before, tasks=(TASK,)),
            replace(before, tasks=(replace(TASK, done_iterations=float(number)),)),
            replace(before, tasks=(replace(TASK, is_resident=False),)),
            replace(before, clock_mhz=draw.choice([500.0, 1000.0])),
        ]
    )


async def push(
    store: PostgresStore, number: int, gpus: Mapping[GpuId, BoundGpu]
) -> BoundPlan:
    """Make these GPUs the target; each is in force for a minute."""
    at = START + timedelta(minutes=number)
    snapshot = await store.load_snapshot(at)
    parent = snapshot.target.generation if snapshot.target else 0
    used = tuple(gpus[name] for name in sorted(gpus))
    bound = BoundPlan(generation=parent + 1, parent=parent, policy="hetsev", gpus=used)
    record = make_record(at, bound, snapshot.state.catalogue_revision)
    plan_id = await store.record_plan(record)
    assert await store.push_target(plan_id, bound, (), at)
    return bound


async def push_many(store: PostgresStore) -> list[BoundPlan]:
    """Targets of which each has one or two GPUs otherwise than the one before it, now and then all."""
    draw = Random(8)
    gpus = {
        GpuId(name): replace(GPU, id=GpuId(name))
        for name in (f"n1/gpu-{index}" for index in range(GPUS))
    }
    pushed = []
    for number in range(1, TARGETS + 1):
        some = draw.choice([1, 1, 1, 2, GPUS])
        for name in draw.sample(sorted(gpus), min(some, len(gpus))) or [GPU.id]:
            other = changed(gpus.pop(name, None), draw, number)
            if other is not None:
                gpus[other.id] = other
        pushed.append(await push(store, number, gpus))
    return pushed


def planned(url: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows that plans have, rates apart from the target in force left out: old ones are not kept."""
    made = {}
    for name, order in PLANNED.items():
        columns = "*"
        if name == "plan_replica":
            columns = (
                "plan_id, gpu, replica, service, project, network, sm_percent, batch, memory_mib, power_w, "
                "CASE WHEN plan_id = (SELECT plan_id FROM target WHERE upper_inf(valid)) THEN arrival_rate_rps END"
            )
        made[name] = rows(
            url, f"SELECT {columns} FROM {name} ORDER BY plan_id, {order}"
        )
    return made


@pytest.fixture(scope="module")
def many(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[tuple[str, list[BoundPlan]]]:
    """A database with many targets, and their plans."""
    with copied_database(postgres_server, template=migrated_template) as url:
        yield url, with_fleet(url, lambda store, _: push_many(store))


def test_every_plan_is_given_back_as_it_was_pushed(
    many: tuple[str, list[BoundPlan]],
) -> None:
    database, pushed = many

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            for number, bound in enumerate(pushed, start=1):
                assert (await plans.get(connection, number)).bound == bound
        # A process that has read nothing before has the same target.
        assert (await store.load_snapshot(START)).target == pushed[-1]

    with_store(database, work)
    wholes = rows(
        database, "SELECT id FROM plan WHERE dropped_gpus IS NULL ORDER BY id"
    )
    # Others change too much of their parents.
    assert {(FULL_EVERY,), (2 * FULL_EVERY,)} < set(wholes)
    assert len(wholes) < TARGETS / 2
    found = planned(database)
    assert sorted(row[:3] for row in found["plan_replica"]) == sorted(
        (number, gpu.id, each.id)
        for number, bound in enumerate(pushed, start=1)
        for gpu in bound.gpus
        for each in gpu.replicas
    )
    assert [row[:3] for row in found["plan_gpu"]] == [
        (number, gpu.id, gpu.node)
        for number, bound in enumerate(pushed, start=1)
        for gpu in bound.gpus
        if gpu.replicas or any(task.is_resident for task in gpu.tasks)
    ]
    assert [row[:3] for row in found["plan_task"]] == [
        (number, gpu.id, task.name)
        for number, bound in enumerate(pushed, start=1)
        for gpu in bound.gpus
        for task in gpu.tasks
        if task.is_resident
    ]
    rates = rows(
        database,
        "SELECT gpu, replica, arrival_rate_rps FROM plan_replica JOIN target USING (plan_id) "
        "WHERE upper_inf(valid) ORDER BY gpu, replica",
    )
    assert rates == sorted(
        (gpu.id, each.id, each.arrival_rate_rps)
        for gpu in pushed[-1].gpus
        for each in gpu.replicas
    )


def test_rows_of_a_gpu_stay_while_it_carries_the_same(database: str) -> None:
    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        other = replace(GPU, id=GpuId("n1/gpu-1"))
        (replica,) = GPU.replicas
        faster = replace(replica, arrival_rate_rps=77.0)
        steps = [
            GPU,
            replace(GPU, replicas=(faster,)),
            replace(GPU, replicas=(faster,), tasks=(replace(TASK, is_resident=False),)),
        ]
        for number, gpu in enumerate(steps, start=1):
            await push(store, number, {gpu.id: gpu, other.id: other})

    with_fleet(database, work)
    shown = (
        "SELECT gpu, generations::text, arrival_rate_rps FROM allocation "
        "JOIN allocation_replica ON allocation = id ORDER BY gpu"
    )
    assert rows(database, shown) == [
        ("n1/gpu-0", "[1,)", 77.0),
        ("n1/gpu-1", "[1,)", 10.0),
    ]


def test_a_corrected_capacity_counts_from_the_next_target_on(database: str) -> None:
    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        await push(store, 1, {GPU.id: GPU})
        async with engine.begin() as connection:
            corrected = replace(make_gpu_type(), memory_mib=15000.0)
            await gpu_types.save(connection, corrected, at=START)
        await push(store, 2, {GPU.id: GPU})
        await push(store, 3, {GPU.id: GPU})

    with_fleet(database, work)
    shown = "SELECT generations::text, memory_mib FROM allocation ORDER BY id"
    assert rows(database, shown) == [
        ("[1,2)", 16384.0),
        ("[2,)", 15000.0),
    ]
