"""Trained actors in PostgreSQL: the newest of a fleet comes with the snapshot where the policy asks for one."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.decisions import actors, policies
from app.db.postgres_store import PostgresStore
from app.loop.observe import observe
from app.store.memory_store import MemoryStore
from app.store.store import PolicySettings
from app.store.trained_actors import fleet_fingerprint, wants_actor
from solvers.types.state import Mode, fingerprint_of
from tests.integration.fleet import START, with_fleet

pytestmark = pytest.mark.integration


def test_the_newest_actor_of_the_fleet_comes_with_the_snapshot(database: str) -> None:
    async def check(store: PostgresStore, engine: AsyncEngine) -> None:
        fleet = fleet_fingerprint((await store.load_snapshot(START)).state)
        async with engine.begin() as connection:
            for weights in (b"old", b"new"):
                await actors.save(connection, fleet, weights, at=START, notes="a test")
            await actors.save(
                connection, "0" * 16, b"another fleet's", at=START, notes=""
            )
        assert (await store.load_snapshot(START)).actor is None
        async with engine.begin() as connection:
            settings = PolicySettings(policy="inss", mode=Mode.AUTO)
            await policies.save(connection, settings, at=START, actor="a person")
        snapshot = await store.load_snapshot(START)
        assert snapshot.actor == b"new"
        assert observe(snapshot).actor == b"new"

    with_fleet(database, check)


def test_the_store_in_memory_answers_alike() -> None:
    async def check() -> None:
        store = MemoryStore(settings=PolicySettings(policy="inss_1e"))
        store.actors[fleet_fingerprint((await store.load_snapshot(START)).state)] = (
            b"mine"
        )
        assert (await store.load_snapshot(START)).actor == b"mine"
        store.settings = replace(store.settings, policy="joint")
        assert (await store.load_snapshot(START)).actor is None

    asyncio.run(check())


def test_a_fleet_is_known_by_its_gpus() -> None:
    assert fingerprint_of([("T4", 2)]) == fingerprint_of(
        sorted(Counter(["T4", "T4"]).items())
    )
    assert fingerprint_of([("T4", 2)]) != fingerprint_of([("T4", 3)])
    assert not wants_actor(PolicySettings())
