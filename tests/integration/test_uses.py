"""What agents say that replicas used: kept, summed by hour, in the reports, and overuse as an event at either end."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import Overuse, UseReading
from app.db.fleet import nodes
from app.db.maintenance import maintain
from app.db.postgres_store import PostgresStore
from tests.integration.fleet import (
    START,
    make_gpu_reading,
    make_observation,
    on_fleet,
    push,
    rows,
    with_fleet,
)
from tests.integration.scenes import Body, scene

pytestmark = pytest.mark.integration
OVER = Overuse(quantity="memory", granted=1000.0, used=1500.0)


def a_use(
    name: str = "chat-0",
    *,
    energy_j: float = 50.0,
    over: Sequence[Overuse] = (),
    **more: object,
) -> UseReading:
    use = UseReading(
        kind="replica",
        name=name,
        service="chat",
        gpu_index=0,
        memory_used_mib=1200.0,
        sm_percent=30.0,
        energy_j=energy_j,
        over=tuple(over),
    )
    return msgspec.structs.replace(use, **more)


def idle(energy_j: float = 30.0) -> UseReading:
    return UseReading(kind="idle", name="(idle)", gpu_index=0, energy_j=energy_j)


def on_chat(body: Body) -> Callable[..., None]:
    """While the target has one replica, chat-0, on the first GPU."""

    def play(body: Body, database: str) -> None:
        async def placed(store: PostgresStore, engine: AsyncEngine) -> None:
            await push(store, START, {"n1/gpu-0": [("chat", 60, 2048)]})
            await body(store, engine)

        with_fleet(database, placed)

    return scene(play, supplies=("store", "engine"), needs=("database",))(body)


async def see(
    store: PostgresStore,
    sequence: int,
    uses: Sequence[UseReading],
    *,
    at: datetime | None = None,
    boot: str = "b1",
) -> None:
    """One window of 2 s, each 10 s after the one before."""
    end = at or START + timedelta(seconds=10 * sequence)
    seen = make_observation(
        sequence, end, boot=boot, gpus=[make_gpu_reading(0, energy_j=80.0)]
    )
    await store.ingest((msgspec.structs.replace(seen, uses=tuple(uses)),), end)


async def kinds(engine: AsyncEngine) -> list[object]:
    return [row[0] for row in await rows(engine, EVENTS)]


EVENTS = (
    "SELECT kind, subject, reason FROM event WHERE kind LIKE 'Overuse%' ORDER BY id"
)


@on_chat
async def test_an_overuse_is_two_events_however_long_it_lasts(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await see(store, 1, [a_use(), idle()])
    for sequence in range(2, 7):
        more = msgspec.structs.replace(OVER, used=1500.0 + sequence)
        await see(store, sequence, [a_use(over=[more]), idle()])
    await see(store, 7, [a_use(), idle()])
    await see(store, 8, [a_use(), idle()])
    assert await rows(engine, EVENTS) == [
        (
            "OveruseBegan",
            "node/n1",
            "replica chat-0 of chat on n1/gpu-0 uses 1502; it was granted 1000 MiB of memory",
        ),
        (
            "OveruseEnded",
            "node/n1",
            # Begun with the second observation, ended with the seventh: 5 times 10 s.
            "replica chat-0 of chat on n1/gpu-0 is within its 1000 MiB of memory again, or is gone; it used "
            "up to 1506 for 50 s",
        ),
    ]
    after = "SELECT after FROM event WHERE kind = 'OveruseBegan'"
    ((found,),) = await rows(engine, after)
    place = {"node": "n1", "gpu": "n1/gpu-0"}
    whose = {"kind": "replica", "name": "chat-0", "service": "chat"}
    how_much = {"quantity": "memory", "granted": 1000, "used": 1502}
    assert found == {**place, **whose, **how_much, "is_estimated": False}


@on_chat
async def test_a_replica_that_is_gone_uses_no_more_than_it_was_granted(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await see(store, 1, [a_use(over=[OVER]), idle()])
    # An observation without uses says nothing about overuse.
    await see(store, 2, [])
    await see(store, 3, [a_use(over=[OVER]), idle()])
    assert await kinds(engine) == ["OveruseBegan"]
    await see(store, 4, [idle()])
    assert await kinds(engine) == ["OveruseBegan", "OveruseEnded"]
    assert await rows(engine, "SELECT gpu FROM overuse") == []
    # A replayed one begins nothing again.
    await see(store, 1, [a_use(over=[OVER]), idle()])
    assert await kinds(engine) == ["OveruseBegan", "OveruseEnded"]


@on_chat
async def test_an_overuse_ends_with_its_node(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await see(store, 1, [a_use(over=[OVER]), idle()])
    async with engine.begin() as connection:
        await nodes.remove(connection, "n1", at=START + timedelta(seconds=70))
    assert (await rows(engine, EVENTS))[1:] == [
        (
            "OveruseEnded",
            "node/n1",
            # Begun at 10 s.
            "replica chat-0 of chat on n1/gpu-0 can no longer be measured, since its node was removed; of its "
            "1000 MiB of memory it used up to 1500 for 60 s",
        )
    ]
    assert await rows(engine, "SELECT gpu FROM overuse") == []


@on_chat
async def test_an_overuse_ends_when_its_node_falls_silent_and_begins_anew_when_it_still_goes_on(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await see(store, 1, [a_use(over=[OVER]), idle()])
    await store.lose_sight(["n2"], START + timedelta(seconds=40))
    assert len(await rows(engine, EVENTS)) == 1
    await store.lose_sight(["n1"], START + timedelta(seconds=40))
    await store.lose_sight(["n1"], START + timedelta(seconds=41))
    await see(store, 9, [a_use(over=[OVER]), idle()])
    found = await rows(engine, EVENTS)
    assert [row[0] for row in found] == ["OveruseBegan", "OveruseEnded", "OveruseBegan"]
    assert "since its node fell silent" in str(found[1][2])


@on_chat
async def test_each_quantity_is_told_by_itself(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    both = [
        OVER,
        Overuse(quantity="sm_use", granted=40.0, used=90.0, is_estimated=True),
    ]
    await see(store, 1, [a_use(over=both), idle()])
    await see(store, 2, [a_use(over=both[:1]), idle()])
    assert [row[::2] for row in await rows(engine, EVENTS)] == [
        (
            "OveruseBegan",
            "replica chat-0 of chat on n1/gpu-0 uses 1500; it was granted 1000 MiB of memory",
        ),
        (
            "OveruseBegan",
            "replica chat-0 of chat on n1/gpu-0 uses 90 (estimated); it was granted 40 % SM use",
        ),
        (
            "OveruseEnded",
            "replica chat-0 of chat on n1/gpu-0 is within its 40 % SM use again, or is gone; it used up to 90 "
            "(estimated) for 10 s",
        ),
    ]


USES = (
    "SELECT name, service, memory_used_mib, sm_percent, round((energy_wh * 3600)::numeric, 6), is_estimated "
    "FROM report.use_hour ORDER BY name"
)


@on_chat
async def test_the_hour_of_a_replica_is_the_same_before_and_after_it_is_summed(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await see(store, 1, [a_use(), idle()])
    await see(
        store,
        2,
        [a_use(memory_used_mib=None, sm_percent=50.0, is_estimated=True), idle()],
    )
    expected = [
        # Two windows of 30 and 50 %; memory is known of the first alone; one of them was estimated.
        ("(idle)", None, None, None, Decimal(60), False),
        ("chat-0", "chat", 1200.0, 40.0, Decimal(100), True),
    ]
    assert await rows(engine, USES) == expected
    await maintain(engine, START + timedelta(hours=2))
    assert await rows(engine, USES) == expected
    late = START + timedelta(days=40)
    await see(store, 3, [], at=late)
    await maintain(engine, late)  # the raw rows of the first day are gone
    assert await rows(engine, "SELECT gpu FROM use_observation") == []
    assert await rows(engine, USES) == expected


ENERGY = (
    "SELECT service, round((energy_wh * 3600)::numeric, 6), round((attributed_wh * 3600)::numeric, 6), is_estimated "
    "FROM report.energy_by_service_hour ORDER BY service, is_estimated"
)


@on_fleet()
async def test_energy_goes_to_whom_agents_saw_and_the_rest_by_planned_watts(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await push(store, START - timedelta(hours=1), {"n1/gpu-0": [("chat", 60, 2048)]})
    await see(store, 1, [a_use(), idle()], at=START + timedelta(minutes=5))
    await see(store, 2, [], at=START + timedelta(minutes=30))
    # The plan is in force for the whole hour, which is over when this is seen.
    await see(store, 3, [idle(80.0)], at=START + timedelta(hours=1, minutes=5))
    # 80 J as the agent saw it, 80 J by plan: 30 W of chat against 10 W idle, so 60 and 20. The second hour's 80 J
    # are idle's as the agent saw it.
    assert await rows(engine, ENERGY) == [
        ("(idle)", Decimal(80), Decimal(80), False),
        ("(idle)", Decimal(30 + 20), Decimal(30), True),
        ("chat", Decimal(0), Decimal(0), False),
        ("chat", Decimal(50 + 60), Decimal(50), True),
    ]


@on_chat
async def test_processes_of_others_have_a_row_of_their_own(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    others = UseReading(
        kind="others", name="(others)", gpu_index=0, energy_j=20.0, sm_percent=10.0
    )
    await see(
        store,
        1,
        [a_use(energy_j=30.0), others, idle()],
        at=START + timedelta(minutes=5),
    )
    assert [row[:2] for row in await rows(engine, ENERGY)] == [
        ("(idle)", Decimal(30)),
        ("(others)", Decimal(20)),
        ("chat", Decimal(30)),
    ]
