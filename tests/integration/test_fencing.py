"""Who may push, and when: the leader, under the policy that it planned for, and never while the loop is paused."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.base.leader import Leader
from app.db.base.transaction import transaction
from app.db.decisions import approval, plans, policies, targets
from app.db.postgres_store import PostgresStore
from app.store.store import AuditEvent, PolicySettings
from solvers.types.plan import BoundPlan
from solvers.types.state import Json, Mode
from tests.integration.fault_harness import leading_store
from tests.integration.fleet import START, make_bound, make_record, on_fleet
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration
Value = TypeVar("Value")
SHARES = {"n1/gpu-0": [("chat", 60.0, 2048.0)]}


async def propose(store: PostgresStore) -> tuple[int, BoundPlan]:
    """A plan that could be pushed, with its id."""
    snapshot = await store.load_snapshot(START)
    bound = make_bound(snapshot.target.generation if snapshot.target else 0, SHARES)
    record = make_record(START, bound, snapshot.state.catalogue_revision)
    version = snapshot.settings.version
    return await store.record_plan(replace(record, policy_version=version)), bound


async def record_memory(store: PostgresStore, memory: Json, version: int = 1) -> None:
    """A decision under that version of the policy, which wrote this down."""
    record = make_record(START, None, 0)
    await store.record_plan(
        replace(record, state="kept", policy_version=version, memory={"joint": memory})
    )


async def save_policy(engine: AsyncEngine, wanted: PolicySettings) -> PolicySettings:
    async with transaction(engine) as connection:
        return await policies.save(connection, wanted, at=START, actor="test")


async def state_of(engine: AsyncEngine, plan_id: int) -> str:
    async with transaction(engine) as connection:
        return (await plans.get(connection, plan_id)).summary.state


async def memories(engine: AsyncEngine) -> list[object]:
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT memory FROM policy_memory"))
        return list(found.scalars())


async def still_waits(engine: AsyncEngine, task: "asyncio.Task[Value]") -> bool:
    """Whether it waits for a lock that somebody else has; looked at once it is there."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(PATIENCE_S), engine.connect() as connection:
        while not task.done():
            if (await connection.execute(waiting)).scalar_one():
                return True
            await connection.rollback()
            await asyncio.sleep(0.01)
    return False


@on_fleet()
async def test_a_process_that_never_led_pushes_and_remembers_nothing(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    async with leading_store(engine):
        plan_id, bound = await propose(store)
        assert not await store.push_target(plan_id, bound, (), START)
        await record_memory(store, {"a": 1})
    # Nor later, when none leads.
    plan_id, bound = await propose(store)
    assert not await store.push_target(plan_id, bound, (), START)
    assert await state_of(engine, plan_id) == "lost"
    assert await memories(engine) == []
    assert (await store.load_snapshot(START)).target is None


@on_fleet()
async def test_a_leader_that_another_one_replaced_pushes_and_remembers_nothing(
    engine: AsyncEngine, database: str
) -> None:
    old = Leader(engine, "old")
    assert await old.acquire()
    hanging = PostgresStore(engine, epoch=lambda: old.epoch)
    plan_id, bound = await propose(hanging)
    await record_memory(hanging, {"by": "old"})
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks "
                "WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid() "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )
    async with leading_store(engine, "new") as store:
        # It does not know yet that its session has ended.
        assert old.epoch == 1
        assert not await hanging.push_target(plan_id, bound, (), START)
        await record_memory(hanging, {"by": "old again"})
        assert await memories(engine) == [{"by": "old"}]
        plan_id, bound = await propose(store)
        assert await store.push_target(plan_id, bound, (), START)
    await old.release()


@pytest.mark.parametrize(
    "held", [PolicySettings(paused=True), PolicySettings(mode=Mode.OFF)]
)
@on_fleet()
async def test_nothing_is_pushed_or_remembered_once_a_pause_is_confirmed(
    engine: AsyncEngine, held: PolicySettings
) -> None:
    async with leading_store(engine) as store:
        plan_id, bound = await propose(store)
        async with transaction(engine) as connection:
            await approval.approve(connection, plan_id)
        await save_policy(engine, held)
        late, late_bound = await propose(store)
        assert not await store.push_target(late, late_bound, (), START)
        assert await state_of(engine, late) == "lost"
        # What a person approved before does not go either, and waits.
        assert not await store.push_target(plan_id, bound, (), START)
        assert await state_of(engine, plan_id) == "approved"
        for version in (1, 2):
            await record_memory(store, {"a": 1}, version)
        assert await memories(engine) == []
        await save_policy(engine, PolicySettings())
        assert await store.push_target(plan_id, bound, (), START)


@on_fleet()
async def test_a_tick_under_another_version_of_the_policy_pushes_and_remembers_nothing(
    engine: AsyncEngine,
) -> None:
    async with leading_store(engine) as store:
        plan_id, bound = await propose(store)
        saved = await save_policy(engine, PolicySettings(target_attainment=0.999))
        assert not await store.push_target(plan_id, bound, (), START)
        assert await state_of(engine, plan_id) == "lost"
        await record_memory(store, {"a": 1})
        assert await memories(engine) == []
        await record_memory(store, {"a": 2}, saved.version)
        assert await memories(engine) == [{"a": 2}]


@on_fleet()
async def test_a_plan_that_a_person_approved_is_pushed_whatever_the_policy_has_become(
    engine: AsyncEngine,
) -> None:
    async with leading_store(engine) as store:
        plan_id, bound = await propose(store)
        async with transaction(engine) as connection:
            await approval.approve(connection, plan_id)
        await save_policy(engine, PolicySettings(target_attainment=0.999))
        assert await store.push_target(plan_id, bound, (), START)


@pytest.mark.parametrize("who", ["a pause", "another leader"])
@on_fleet()
async def test_a_push_under_way_ends_before_a_pause_or_another_leader_is_confirmed(
    store: PostgresStore, engine: AsyncEngine, who: str
) -> None:
    plan_id, bound = await propose(store)
    other = Leader(engine, "other")
    act: Awaitable[object] = (
        save_policy(engine, PolicySettings(paused=True))
        if who == "a pause"
        else other.acquire()
    )
    async with engine.begin() as connection:
        assert await targets.push(connection, plan_id, bound, (), START)
        confirmed = asyncio.ensure_future(act)
        assert await still_waits(engine, confirmed)
    await confirmed
    assert await state_of(engine, plan_id) == "target"
    await other.release()


@on_fleet()
async def test_what_a_decision_remembers_waits_for_the_target_before_it_touches_contents(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await propose(store)
    bound = make_bound(0, SHARES)
    record = replace(make_record(START, bound, 0), memory={"joint": 1})
    async with engine.begin() as connection:
        await plans.lock_target(connection)
        recorded = asyncio.ensure_future(store.record_plan(record))
        assert await still_waits(engine, recorded)
        # As a plan that is restored does, which would wait for a decision that waits for it.
        used = text("UPDATE plan_content SET used_at = now()")
        assert (await connection.execute(used)).rowcount > 0
    assert await recorded


@on_fleet()
async def test_a_push_and_its_line_in_the_audit_come_to_be_together(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    plan_id, bound = await propose(store)
    line = AuditEvent(at=START, actor="test", kind="PlanPushed", subject="plan/1")
    # What PostgreSQL cannot keep.
    broken = replace(line, reason="\0")
    with pytest.raises(DBAPIError):
        await store.push_target(plan_id, bound, (), START, line=broken)
    assert await state_of(engine, plan_id) == "proposed"
    assert await store.push_target(plan_id, bound, (), START, line=line)
    assert not await store.push_target(plan_id, bound, (), START, line=line)
    async with engine.connect() as connection:
        pushed = "SELECT count(*) FROM event WHERE kind = 'PlanPushed'"
        assert (await connection.execute(text(pushed))).scalar_one() == 1
