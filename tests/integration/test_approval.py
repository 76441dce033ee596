"""Approval: one proposal waits, what cannot be pushed is not approved, and a plan that is lost says why."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.base.errors import Conflict
from app.db.base.transaction import transaction
from app.db.decisions import approval, plans, policies
from app.db.fleet import gpu_types
from app.db.operations import events
from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from app.store.store import PolicySettings
from solvers.types.plan import BoundPlan
from solvers.types.state import Mode
from tests.integration.api_harness import (
    Api,
    Prepared,
    fill,
    prepared,
    service,
)
from tests.integration.fault_harness import leading_store
from tests.integration.fleet import (
    START,
    make_bound,
    make_gpu_type,
    make_record,
    on_fleet,
    push,
    with_fleet,
)
from tests.integration.test_fencing import state_of, still_waits

pytestmark = pytest.mark.integration
SHARES = {"n1/gpu-0": [("chat", 60.0, 2048.0)]}


@pytest.fixture(scope="module")
def started(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    with prepared(postgres_server, migrated_template, _start) as found:
        yield found


@pytest.fixture
def api(started: Prepared) -> Iterator[Api]:
    """One service, load, and a policy in mode approve; nothing is planned yet."""
    with started.running_api() as running:
        yield running


def _start(api: Api) -> None:
    fill(api)
    api.put("services/chat", service())
    _observe(api, 1)
    api.put_policy(mode="approve")


def _observe(api: Api, sequence: int, *, arrivals: int = 100) -> None:
    api.observe(sequence, {"chat": arrivals})


def _propose(api: Api) -> int:
    outcome = api.tick()
    assert outcome.state == "proposed" and outcome.plan_id is not None
    return outcome.plan_id


def _refusal(api: Api, plan_id: int) -> str:
    answer = api.call("POST", f"plans/{plan_id}/approve", token="operator")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    return str(answer.json()["detail"])


def test_one_proposal_is_open_and_older_ones_name_the_one_that_took_their_place(
    api: Api,
) -> None:
    made = []
    for sequence, mode in enumerate(("approve", "advise", "advise"), start=2):
        api.put_policy(mode=mode)
        _observe(api, sequence, arrivals=100 * 2**sequence)
        made.append(_propose(api))
    listed = {item["id"]: item for item in api.get("plans")["items"]}
    states = [listed[key]["state"] for key in made]
    assert states == ["withdrawn", "withdrawn", "proposed"]
    assert [listed[key]["replaced_by"] for key in made] == [made[1], made[2], None]
    assert api.get(f"plans/{made[0]}")["replaced_by"] == made[1]


def test_a_proposal_that_was_replaced_is_neither_approved_nor_restored(
    api: Api,
) -> None:
    old = _propose(api)
    _observe(api, 2, arrivals=800)
    new = _propose(api)
    assert _refusal(api, old) == (
        f"plan {old} was replaced by plan {new}; look at plan {new}, which waits now, and approve that one"
    )
    restored = api.call("POST", f"plans/{old}/restore")
    assert (restored.status_code, "never was in force" in restored.text) == (409, True)
    assert api.status("POST", f"plans/{new}/approve") == 200
    assert api.tick().state == "target"
    waited = api.get("plans?state=withdrawn")["items"]
    assert [each["id"] for each in waited] == [old]
    assert "is in force already" in _refusal(api, new)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"mode": "advise"}, "the policy is in mode advise; apply a Policy with mode"),
        ({"mode": "off"}, "is in mode off; apply a Policy with mode approve or auto"),
        ({"mode": "approve", "paused": True}, "`plimsoll resume` resumes it"),
    ],
)
def test_nothing_is_approved_that_the_policy_lets_nobody_push(
    api: Api, spec: dict[str, object], told: str
) -> None:
    plan_id = _propose(api)
    api.put_policy(**spec)
    assert told in _refusal(api, plan_id)
    assert api.get(f"plans/{plan_id}")["state"] == "proposed"
    assert api.get("events?kind=PlanApproved")["items"] == []
    api.put_policy(mode="approve", paused=False)
    assert api.status("POST", f"plans/{plan_id}/approve") == 200
    assert api.tick().state == "target"


def test_a_plan_for_a_service_in_mode_advise_is_advice(api: Api) -> None:
    cautious = service()
    api.put(
        "services/chat", {**cautious, "spec": {**cautious["spec"], "mode": "advise"}}
    )
    told = _refusal(api, _propose(api))
    assert "it changes services in mode advise (chat)" in told


def test_an_approved_plan_that_is_lost_says_why_in_the_plan_and_in_the_audit(
    api: Api,
) -> None:
    plan_id = _propose(api)
    assert api.status("POST", f"plans/{plan_id}/approve") == 200
    api.put("services/search", service("search"))
    assert api.tick().state == "lost"
    why = "GPUs, GPU types, services or profiles changed since it was made"
    assert api.get(f"plans/{plan_id}")["reason"] == why
    (line,) = api.get("events?kind=PlanLost")["items"]
    assert (line["reason"], line["plan_id"]) == (why, plan_id)
    assert line["actor"] == "controller"
    assert f"plan {plan_id} is lost: {why}" in _refusal(api, plan_id)
    # One that only waits is not approved then.
    later = _propose(api)
    api.put("services/photo", service("photo"))
    refused = _refusal(api, later)
    assert f"plan {later} can no longer be pushed: {why}; no other plan" in refused


def test_a_proposal_outlives_the_controller_and_can_still_be_approved(
    api: Api,
) -> None:
    waiting = _propose(api)
    # Another load, so that the new process would propose another plan.
    _observe(api, 2, arrivals=800)
    again = api.tick(restarted=True)
    assert again.state == "kept"
    assert again.reason.startswith(f"plan {waiting} waits for a person;")
    assert api.status("POST", f"plans/{waiting}/approve") == 200
    assert api.tick().plan_id == waiting
    assert api.get(f"plans/{waiting}")["state"] == "target"


def test_a_proposal_that_a_restart_finds_outdated_is_withdrawn_and_says_why(
    api: Api,
) -> None:
    waiting = _propose(api)
    api.put("services/search", service("search"))
    api.tick(restarted=True)
    found = api.get(f"plans/{waiting}")
    why = "the controller restarted, and the plan could no longer come into force"
    assert (found["state"], found["reason"]) == ("withdrawn", why)
    assert found["replaced_by"] is None
    (line,) = api.get("events?kind=PlanWithdrawn")["items"]
    assert (line["reason"], line["subject"]) == (why, f"plan/{waiting}")
    assert f"plan {waiting} was withdrawn: {why}" in _refusal(api, waiting)


def test_only_the_leader_withdraws_what_waits(database: str) -> None:
    async def work(stranger: PostgresStore, engine: AsyncEngine) -> None:
        async with leading_store(engine) as store:
            old, _ = await _record(store)
            new, _ = await _record(store)
            await stranger.withdraw_proposals(keep=None, at=START)
            assert await state_of(engine, old) == "proposed"
            await store.withdraw_proposals(keep=new, at=START)
            assert await state_of(engine, old) == "withdrawn"
            assert await state_of(engine, new) == "proposed"

    with_fleet(database, work)


async def _record(
    store: PostgresStore, parent: int = 0, reason: str = "", *, waits: bool = False
) -> tuple[int, BoundPlan]:
    snapshot = await store.load_snapshot(START)
    bound = make_bound(parent, SHARES)
    record = replace(
        make_record(START, bound, snapshot.state.catalogue_revision),
        policy_version=snapshot.settings.version,
        reason=reason,
        waits=waits,
    )
    return await store.record_plan(record), bound


async def _told(engine: AsyncEngine, plan_id: int) -> str:
    """The reason of a lost plan's event, where the plan has it, too."""
    async with engine.connect() as connection:
        summary = (await plans.get(connection, plan_id)).summary
        wanted = events.EventFilter(kind="PlanLost", plan_id=plan_id)
        (line,) = await events.list_rows(connection, wanted)
    assert summary.state == "lost" and summary.reason.endswith(line.event.reason)
    return line.event.reason


async def _change_catalogue(engine: AsyncEngine) -> None:
    async with transaction(engine) as connection:
        await gpu_types.save(connection, make_gpu_type("V100"), at=START)


async def _save_policy(engine: AsyncEngine, wanted: PolicySettings) -> None:
    async with transaction(engine) as connection:
        await policies.save(connection, wanted, at=START, actor="test")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("catalogue", "GPUs, GPU types, services or profiles changed"),
        ("policy", "the policy changed since it was made, from version 1 to 2"),
        ("pause", "the loop was paused or put in mode off"),
        ("off", "the loop was paused or put in mode off"),
        ("approval", "a person approved another plan"),
        ("target", "plan 3 came into force first"),
        ("late", "it was made from generation 1, but 0 is in force"),
    ],
)
@on_fleet()
async def test_every_plan_that_is_lost_has_a_reason_and_an_event(
    engine: AsyncEngine, change: str, told: str
) -> None:
    async with leading_store(engine) as store:
        other, _bound = await _record(store)
        plan_id, bound = await _record(store, parent=int(change == "late"))
        if change == "catalogue":
            await _change_catalogue(engine)
        elif change == "approval":
            async with transaction(engine) as connection:
                await approval.approve(connection, other)
        elif change == "target":
            assert await push(store, START, SHARES) == 3
        elif change != "late":
            mode = Mode.OFF if change == "off" else Mode.AUTO
            paused = change == "pause"
            await _save_policy(engine, PolicySettings(mode=mode, paused=paused))
        assert not await store.push_target(plan_id, bound, (), START)
        assert told in await _told(engine, plan_id)


@on_fleet()
async def test_a_process_that_does_not_lead_loses_its_plan_and_what_it_was_for_stays_written(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    plan_id, bound = await _record(store, reason="2 jobs are dispatched")
    async with leading_store(engine):
        assert not await store.push_target(plan_id, bound, (), START)
    assert "did not lead" in await _told(engine, plan_id)
    async with engine.connect() as connection:
        reason = (await plans.get(connection, plan_id)).summary.reason
    assert reason.startswith("2 jobs are dispatched; lost: ")


@on_fleet()
async def test_what_a_person_approved_meanwhile_is_not_withdrawn(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    old, _ = await _record(store, waits=True)
    async with engine.begin() as connection:
        await approval.approve(connection, old)
        recorded = asyncio.ensure_future(_record(store, waits=True))
        assert await still_waits(engine, recorded)
    new, _ = await recorded
    assert await state_of(engine, old) == "approved"
    assert await state_of(engine, new) == "proposed"


def test_a_proposal_that_is_replaced_while_a_person_approves_it_is_refused(
    database: str,
) -> None:
    async def approve(engine: AsyncEngine, plan_id: int) -> None:
        async with transaction(engine) as connection:
            await approval.approve(connection, plan_id)

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        old, bound = await _record(store, waits=True)
        record = replace(make_record(START, bound, 0), waits=True)
        async with engine.begin() as connection:
            await plans.lock_target(connection)
            new = await plans.record(connection, record, None)
            approval = asyncio.ensure_future(approve(engine, old))
            assert await still_waits(engine, approval)
        with pytest.raises(Conflict, match=f"replaced by plan {new}"):
            await approval

    with_fleet(database, work)


@on_fleet()
async def test_a_plan_that_is_pushed_at_once_replaces_no_proposal(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    waiting, _ = await _record(store, waits=True)
    await _record(store)
    assert await state_of(engine, waiting) == "proposed"
