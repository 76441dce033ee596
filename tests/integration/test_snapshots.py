"""Snapshots remember what is long, and see each change of it."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.fleet import gpu_types, nodes
from app.db.postgres_store import PostgresStore
from app.db.workloads import services
from tests.integration.fleet import START, Share, on_fleet, push

pytestmark = pytest.mark.integration
CHAT: Share = ("chat", 60.0, 2048.0)


@on_fleet()
async def test_what_did_not_change_is_read_once(store: PostgresStore) -> None:
    await push(store, START, {"n1/gpu-0": [CHAT]})
    one, two = [await store.load_snapshot(START) for _ in range(2)]
    assert two == one
    assert two.state.services is one.state.services
    assert two.state.gpus is one.state.gpus
    assert two.target is one.target


@on_fleet()
async def test_every_change_is_in_the_next_snapshot(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await push(store, START, {"n1/gpu-0": [CHAT]})
    before = await store.load_snapshot(START)
    (chat,) = before.state.services
    async with engine.begin() as connection:
        other = replace(chat, priority=chat.priority + 1)
        await services.save(connection, other, at=START, actor="test")
        await nodes.save(connection, "n1", {0: "T4"}, at=START)
    changed = await store.load_snapshot(START)
    assert changed.state.services == (other,)
    assert [gpu.id for gpu in changed.state.gpus] == ["n1/gpu-0"]
    await push(store, START + timedelta(seconds=1), {})
    after = await store.load_snapshot(START)
    assert before.target is not None and after.target is not None
    assert (before.target.generation, after.target.generation) == (1, 2)
    assert after.target.gpus == ()


@on_fleet()
async def test_a_price_begins_to_hold_without_another_change(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    later = START + timedelta(hours=1)
    async with engine.begin() as connection:
        await gpu_types.set_price(connection, "T4", Decimal("9.5"), at=later)
    now, then = [await store.load_snapshot(at) for at in (START, later)]
    assert now.state.catalogue_revision == then.state.catalogue_revision
    prices = [each.state.gpu_types[0].price_usd_per_hour for each in (now, then)]
    assert prices == [1.2, 9.5]
