"""What a node may not report of is left out of what it reports, and counted: the rest is written."""

from datetime import timedelta

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import ReplicaReading, UseReading
from app.db.fleet import nodes
from app.db.operations.incarnations import begin_anew
from app.db.postgres_store import PostgresStore
from app.db.workloads import services
from app.store.event_limits import MAX_PER_HOUR
from tests.integration.fleet import (
    START,
    make_gpu_reading,
    make_observation,
    make_service_reading,
    observe,
    on_fleet,
    push,
    scalar,
)

pytestmark = pytest.mark.integration


def make_replica_reading(name: str) -> ReplicaReading:
    return ReplicaReading(
        id=name,
        service="chat",
        gpu_index=0,
        state="ready",
        sm_percent=60.0,
        batch=8,
        memory_mib=2048.0,
    )


@on_fleet({"default": ["chat", "gone"]})
async def test_no_rows_are_written_under_names_of_services_that_never_existed_or_are_gone(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    async with engine.begin() as connection:
        await services.remove(connection, "gone", at=START)
    names = [f"never-{number}" for number in range(200)]
    readings = [make_service_reading(name) for name in ("chat", "gone", *names)]
    # 38 KB of these once were 120,000 rows.
    seen = make_observation(1, START, window_s=600.0, services=readings)
    taken = await store.ingest((seen,), START)
    assert taken.dropped == {"services": 201}
    for table in ("observation", "window", "step", "hour"):
        rows = f"SELECT string_agg(DISTINCT service, ' ') FROM service_{table}"
        assert await scalar(engine, rows) == "chat"
    # A repetition changes nothing, and is not counted again.
    assert not (await store.ingest((seen,), START)).dropped


@on_fleet()
async def test_a_service_that_comes_back_is_counted_again(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    chat = (await store.load_snapshot(START)).state.services[0]
    for sequence, is_there in enumerate((True, False, True), 1):
        async with engine.begin() as connection:
            if is_there:
                await services.save(connection, chat, at=START, actor="test")
            else:
                await services.remove(connection, "chat", at=START)
        end = START + timedelta(seconds=2 * sequence)
        seen = make_observation(sequence, end, services=[make_service_reading()])
        await store.ingest((seen,), end)
    assert await scalar(engine, "SELECT sum(arrivals) FROM service_hour") == 20


@on_fleet()
async def test_readings_of_gpus_and_replicas_of_other_nodes_are_left_out(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    async with engine.begin() as connection:
        await nodes.save(connection, "n2", {0: "T4"}, at=START)
    await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
    replica = make_replica_reading("chat-0")
    use = UseReading(
        kind="replica", name="chat-0", service="chat", gpu_index=0, energy_j=1.0
    )
    seen = msgspec.structs.replace(
        make_observation(1, START, gpus=[make_gpu_reading(0), make_gpu_reading(7)]),
        replicas=(replica, make_replica_reading("chat-9")),
        uses=(use, msgspec.structs.replace(use, kind="others", name="chat-0")),
    )
    own = await store.ingest((seen,), START)
    assert own.dropped == {"gpus": 1, "replicas": 1, "uses": 1}
    other = msgspec.structs.replace(seen, node="n2", gpus=())
    assert (await store.ingest((other,), START)).dropped == {"replicas": 2, "uses": 2}
    for table in ("gpu", "replica", "use"):
        rows = f"SELECT string_agg(DISTINCT gpu, ' ') FROM {table}_observation"
        assert await scalar(engine, rows) == "n1/gpu-0"


@pytest.mark.parametrize("jumped", [True, False])
@on_fleet()
async def test_what_targets_of_another_history_put_somewhere_is_not_reported_on(
    store: PostgresStore, engine: AsyncEngine, jumped: bool
) -> None:
    await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
    seen = msgspec.structs.replace(
        make_observation(1, START), replicas=(make_replica_reading("chat-0"),)
    )
    assert not (await store.ingest((seen,), START)).dropped
    # The database becomes one in which that was never pushed, while this process goes on.
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM target"))
        await connection.execute(text("UPDATE cluster SET target_generation = 0"))
        if jumped:
            await begin_anew(connection, held=1)
    again = msgspec.structs.replace(seen, sequence=2)
    assert (await store.ingest((again,), START)).dropped == {"replicas": 1}


@on_fleet()
async def test_a_replica_that_drains_after_its_target_is_reported_on_also_to_a_new_process(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
    await push(store, START + timedelta(seconds=10), {"n1/gpu-1": []})
    for sequence, (seconds, dropped) in enumerate(((70, 0), (3700, 1)), 1):
        end = START + timedelta(seconds=seconds)
        seen = msgspec.structs.replace(
            make_observation(2 * sequence, end),
            replicas=(make_replica_reading("chat-0"),),
        )
        again = msgspec.structs.replace(seen, sequence=2 * sequence + 1)
        for process, report in ((store, seen), (PostgresStore(engine), again)):
            taken = await process.ingest((report,), end)
            assert sum(taken.dropped.values()) == dropped


@on_fleet()
async def test_a_gpu_that_flaps_for_an_hour_fills_no_audit_and_is_followed_all_the_same(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    for sequence in range(1, 142):
        end = START + timedelta(seconds=2 * sequence)
        gpu = msgspec.structs.replace(make_gpu_reading(0), healthy=sequence % 2 == 0)
        await observe(store, sequence, end, gpus=[gpu])
    for kind in ("GpuFailed", "GpuRecovered"):
        count = f"SELECT count(*) FROM event WHERE kind = '{kind}'"
        assert await scalar(engine, count) == MAX_PER_HOUR
    assert await scalar(engine, "SELECT healthy FROM gpu WHERE index = 0") is False
    end = START + timedelta(hours=1)
    await observe(store, 142, end)
    reason = "SELECT reason FROM event WHERE kind = 'NodeEventsLeftOut'"
    said = str(await scalar(engine, reason))
    assert said.endswith("11 of GpuFailed, 10 of GpuRecovered")
