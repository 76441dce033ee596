"""Repositories: versions, preconditions, references and lists."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.base.errors import Conflict, NotFound, PreconditionFailed
from app.db.decisions import approval, plans, policies
from app.db.fleet import gpu_types, nodes
from app.db.postgres_store import PostgresStore
from app.db.predictions import profiles
from app.db.reports import demands
from app.db.workloads import services
from app.store.store import PolicySettings
from solvers.types.outcome import SolveReport, SolveStatus, Violation
from solvers.types.problem import CapacityLaw, Problem, ServiceDemand
from solvers.types.state import Mode, Service, Slo, Variant
from tests.integration.fleet import (
    START,
    make_bound,
    make_gpu_type,
    make_record,
    on_connection,
    on_fleet,
    push,
    scalar,
)

pytestmark = pytest.mark.integration
Value = TypeVar("Value")
LATER = START + timedelta(hours=1)


@on_connection
async def test_prices_follow_each_other_and_the_past_stays(
    connection: AsyncConnection,
) -> None:
    await gpu_types.set_price(connection, "T4", Decimal("2"), at=LATER)
    await gpu_types.set_price(connection, "T4", Decimal("3"), at=LATER)
    prices = (
        "SELECT lower(valid), upper(valid), price_usd_per_hour FROM gpu_price "
        "WHERE gpu_type = 'T4' ORDER BY valid"
    )
    found = [tuple(row) for row in await connection.execute(text(prices))]
    assert found == [(None, LATER, Decimal("1.2")), (LATER, None, Decimal("3"))]
    first = (await gpu_types.get(connection, "T4", START)).gpu_type
    assert first.price_usd_per_hour == 1.2
    assert (await gpu_types.load_all(connection, LATER))[0].price_usd_per_hour == 3.0
    with pytest.raises(Conflict, match="in order of time"):
        await gpu_types.set_price(connection, "T4", Decimal("1"), at=START)


@on_connection
async def test_saving_the_same_catalogue_again_makes_no_plan_too_old(
    connection: AsyncConnection,
) -> None:
    async def revision() -> int:
        query = text("SELECT catalogue_revision FROM cluster")
        return int((await connection.execute(query)).scalar_one())

    before = await revision()
    await gpu_types.save(connection, make_gpu_type(), at=LATER)
    await nodes.save(connection, "n1", {0: "T4", 1: "T4"}, at=LATER)
    points = await profiles.load_points(connection)
    same = [
        profiles.StoredProfile(points=entry, provenance="measured") for entry in points
    ]
    assert await profiles.save_profiles(connection, same, at=LATER) == 0
    assert await revision() == before
    await nodes.set_cordon(connection, "n1", cordoned=True)
    assert await revision() == before + 1
    for _ in range(2):
        await nodes.set_power_cap(connection, "n1", power_cap_w=120.0)
        assert await revision() == before + 2
    assert (await nodes.get(connection, "n1", LATER)).node.power_cap_w == 120.0
    await nodes.set_power_cap(connection, "n1", power_cap_w=None)
    assert (await nodes.get(connection, "n1", LATER)).node.power_cap_w is None


@on_connection
async def test_a_changed_profile_is_a_new_version_and_the_old_one_stays(
    connection: AsyncConnection,
) -> None:
    (points,) = await profiles.load_points(connection)
    wanted = replace(points, sensitivity=0.7)
    new = profiles.StoredProfile(
        points=wanted, provenance="scaled", source="half a V100"
    )
    assert await profiles.save_profiles(connection, [new], at=LATER) == 1
    assert await profiles.load_points(connection) == (wanted,)
    old, current = await profiles.list_profiles(connection, network_name="resnet50")
    assert (old.version, old.is_current) == (1, False)
    assert (current.version, current.is_current) == (2, True)
    row, profile = await profiles.get_profile(connection, old.id)
    assert (row, profile.points) == (old, points)


@on_connection
async def test_what_is_not_stated_of_a_rows_uncertainty_follows_its_provenance(
    connection: AsyncConnection,
) -> None:
    (points,) = await profiles.load_points(connection)
    stalling = tuple(row._replace(stall_ms=4.5) for row in points.rows)
    for provenance, stated, sigma in (
        ("measured", None, 0.0),
        ("estimated", None, 0.25),
        ("estimated", 0.1, 0.1),
    ):
        entry = profiles.StoredProfile(
            points=replace(points, sensitivity=sigma + 1.0, rows=stalling),
            provenance=provenance,
            latency_sigma=(stated,),
        )
        await profiles.save_profiles(connection, [entry], at=LATER)
        (kept,) = await profiles.load_profiles(connection)
        assert (kept.latency_sigma, kept.points.rows) == ((stated,), stalling)
        assert kept.performance.latency_sigma == (sigma,)
    again = replace(kept, latency_sigma=(0.2,))
    assert await profiles.save_profiles(connection, [again, again], at=LATER) == 2
    assert await profiles.save_profiles(connection, [again], at=LATER) == 0


@on_connection
async def test_the_policy_is_versioned_and_never_rewritten(
    connection: AsyncConnection,
) -> None:
    assert await policies.load_current(connection) == PolicySettings()
    watts = replace(
        PolicySettings(),
        governor="batch_dvfs",
        power_budget_w=900.0,
        carbon_g_per_kwh=(400.0,) * 24,
    )
    wanted = replace(
        watts, mode=Mode.APPROVE, period_s=3.0, carbon_price_usd_per_t=80.0
    )
    how: dict[str, Any] = {"at": START, "actor": "ann", "expected_version": 1}
    saved = await policies.save(connection, wanted, **how)
    assert saved == replace(wanted, version=2)
    assert await policies.load_current(connection) == saved
    with pytest.raises(PreconditionFailed):
        await policies.save(connection, wanted, **how)
    for change in (
        "UPDATE policy SET paused = true",
        "DELETE FROM policy",
        "TRUNCATE event CASCADE",
    ):
        with pytest.raises(IntegrityError, match="never changed or deleted"):
            async with connection.begin_nested():
                await connection.execute(text(change))


@on_fleet()
async def test_a_plan_comes_back_with_all_that_led_to_it(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    snapshot = await store.load_snapshot(START)
    law = CapacityLaw(
        percentiles=(0.98,),
        batches=(8,),
        slo_ratios=(1.0, 2.0),
        max_utilisation=(((0.0, 0.7),),),
    )
    demand = ServiceDemand(
        name="chat",
        network="resnet50",
        slo_ms=100.0,
        percentile=0.98,
        arrival_rate_rps=10.0,
    )
    problem = Problem(
        max_replicas_per_gpu=4,
        capacity_law=law,
        gpu_types=tuple(replace(entry, count=2) for entry in snapshot.state.gpu_types),
        services=(demand,),
        points=snapshot.points,
        power_budget_w=1234.5,
    )
    limit = SolveStatus.TIME_LIMIT
    step = SolveReport(technique="autoscale", method="cbc", status=limit, bound=1.0)
    violation = Violation(
        rule="sm", severity="physical", where="gpus[0]", detail="120 > 100"
    )
    bound = make_bound(0, {"n1/gpu-0": [("chat", 60, 2048)]})
    record = make_record(START, bound, snapshot.state.catalogue_revision)
    report = replace(record.report, steps=(step,), messages=("slow",))
    record = replace(record, problem=problem, violations=(violation,), report=report)
    later = replace(record, at=START + timedelta(seconds=1))
    first, second = [await store.record_plan(each) for each in (record, later)]
    async with engine.connect() as connection:
        row = await plans.get(connection, first)
        assert (row.plan, row.report, row.bound) == (record.plan, record.report, bound)
        assert (row.violations, row.demands) == ((violation,), record.demands)
        assert await plans.load_problem(connection, second) == problem
        proposed = await plans.list_rows(connection, states=("proposed",), limit=1)
        assert [entry.id for entry in proposed] == [second]
        newest = await demands.list_newest(connection)
        assert [entry.plan_id for entry in newest] == [second]
    # The capacity law and one set of points, shared by both plans.
    assert await scalar(engine, "SELECT count(*) FROM archive") == 2


@on_fleet()
async def test_a_person_can_only_approve_what_could_still_be_pushed(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    shares = {"n1/gpu-0": [("chat", 60.0, 2048.0)]}
    revision = (await store.load_snapshot(START)).state.catalogue_revision
    await push(store, START, shares)
    # By a planner that was slower than the push.
    old = await store.record_plan(make_record(START, make_bound(0, shares), revision))
    async with engine.begin() as connection:
        with pytest.raises(Conflict, match="made from generation 0, but 1 is in force"):
            await approval.approve(connection, old)
    new = await store.record_plan(make_record(START, make_bound(1, shares), revision))
    async with engine.begin() as connection:
        await approval.approve(connection, new)
        with pytest.raises(Conflict, match="is approved"):
            await approval.approve(connection, new)
    assert (await store.load_snapshot(START)).approved_id == new
    async with engine.begin() as connection:
        await approval.reject(connection, new)
    assert not await store.push_target(new, make_bound(1, shares), (), START)
    with pytest.raises(NotFound):
        await store.push_target(999, make_bound(1, shares), (), START)


@on_fleet()
async def test_a_new_target_ends_the_wait_of_plans_that_were_made_from_the_one_before(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    revision = (await store.load_snapshot(START)).state.catalogue_revision
    bound = make_bound(0, {"n1/gpu-1": [("chat", 50, 2048)]})
    waiting = [
        await store.record_plan(make_record(START, bound, revision)) for _ in range(3)
    ]
    async with engine.begin() as connection:
        for plan_id in waiting[:2]:
            await approval.approve(connection, plan_id)
    assert await store.push_target(waiting[0], bound, (), START)
    async with engine.begin() as connection:
        states = [
            (await plans.get(connection, plan_id)).summary.state for plan_id in waiting
        ]
    assert states == ["target", "lost", "lost"]
    assert (await store.load_snapshot(START)).approved_id is None


@on_fleet()
async def test_a_plan_that_nobody_approved_gives_way_to_one_that_can_still_be_pushed(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    revision = (await store.load_snapshot(START)).state.catalogue_revision
    bound = make_bound(0, {"n1/gpu-1": [("chat", 50, 2048)]})
    approved, late, later = [
        await store.record_plan(make_record(START, bound, revision)) for _ in range(3)
    ]
    async with engine.begin() as connection:
        await approval.approve(connection, approved)
    assert not await store.push_target(late, bound, (), START)
    async with engine.begin() as connection:
        await approval.reject(connection, approved)
    assert await store.push_target(later, bound, (), START)


async def save(connection: AsyncConnection, noun: Service, seen: int) -> int:
    """The generation of the service that ann, who saw this one, saves later."""
    how: dict[str, Any] = {"at": LATER, "actor": "ann", "expected_generation": seen}
    return await services.save(connection, noun, **how)


@on_connection
async def test_a_service_grows_a_generation_only_when_it_changes_and_may_come_back(
    connection: AsyncConnection,
) -> None:
    slo, network = Slo(latency_ms=100.0, percentile=0.98), "resnet50"
    chat = Service(name="chat", project="default", network=network, slo=slo)
    assert await save(connection, chat, 1) == 1
    variants = (Variant(network="resnet50", accuracy=0.76),)
    changed = replace(chat, variants=variants, accuracy_floor=0.7)
    assert await save(connection, changed, 1) == 2
    assert await save(connection, changed, 2) == 2
    row = await services.get(connection, "chat")
    assert (row.service, row.generation) == (changed, 2)
    assert (row.created_at, row.updated_by) == (START, "ann")
    with pytest.raises(PreconditionFailed, match="at generation 2, not at 1"):
        await save(connection, chat, 1)
    await services.remove(connection, "chat", at=LATER, expected_generation=2)
    with pytest.raises(NotFound):
        await services.get(connection, "chat")
    with pytest.raises(NotFound):
        await services.remove(connection, "chat", at=LATER)
    # It keeps its history.
    assert await save(connection, chat, 0) == 3
    assert (await services.get(connection, "chat")).created_at == LATER
