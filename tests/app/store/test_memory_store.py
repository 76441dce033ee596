"""The Store in dictionaries; `tests/integration/test_store.py` compares it with PostgreSQL step by step."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from agents.base.protocol import GpuReading, NodeCommand, Observation, ServiceReading
from app.base.errors import Conflict, NotFound
from app.store.memory_store import MemoryStore
from app.store.store import PlanRecord
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundPlan, Plan
from solvers.types.state import Gpu, GpuId, Node, NodeId, Service, Slo

NOW = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)


def make_store() -> MemoryStore:
    store = MemoryStore()
    store.put_node(
        Node(id=NodeId("n1")),
        [Gpu(id=GpuId("n1/gpu-0"), node=NodeId("n1"), gpu_type="T4", index=0)],
        at=NOW,
    )
    return store


def record(
    store: MemoryStore, parent: int, *, revision_back: int = 0
) -> tuple[int, BoundPlan]:
    """A proposed plan on the present catalogue, or on one that is some revisions old."""
    revision = (
        asyncio.run(store.load_snapshot(NOW)).state.catalogue_revision - revision_back
    )
    bound = BoundPlan(generation=parent + 1, parent=parent, policy="hetsev")
    plan = PlanRecord(
        at=NOW,
        state="proposed",
        policy_version=1,
        catalogue_revision=revision,
        plan=Plan(policy="hetsev"),
        report=PlanReport(status="greedy", cost_usd_per_hour=0.0),
        bound=bound,
        problem=None,
    )
    return asyncio.run(store.record_plan(plan)), bound


def push(store: MemoryStore, plan_id: int, bound: BoundPlan) -> bool:
    commands = (NodeCommand(node="n1", generation=bound.generation),)
    return asyncio.run(store.push_target(plan_id, bound, commands, NOW))


def test_of_two_plans_with_one_parent_only_the_first_becomes_the_target() -> None:
    store = make_store()
    (first, bound), (second, other) = record(store, 0), record(store, 0)
    assert push(store, first, bound)
    assert not push(store, second, other)
    assert [store.plans[key].state for key in (first, second)] == ["target", "lost"]
    third, newest = record(store, 1)
    assert push(store, third, newest)
    assert store.plans[first].state == "superseded"
    command = asyncio.run(store.command_for("n1", 1))
    assert command is not None
    assert command.generation == 2
    assert asyncio.run(store.command_for("n1", 2)) is None


def test_a_plan_made_on_an_older_catalogue_is_lost() -> None:
    store = make_store()
    plan_id, bound = record(store, 0, revision_back=1)
    assert not push(store, plan_id, bound)
    assert store.plans[plan_id].state == "lost"
    with pytest.raises(NotFound):
        push(store, 99, bound)


def test_a_person_judges_a_plan_once() -> None:
    store = make_store()
    plan_id, bound = record(store, 0)
    store.approve(plan_id)
    assert asyncio.run(store.load_snapshot(NOW)).approved_id == plan_id
    with pytest.raises(Conflict):
        store.approve(plan_id)
    assert push(store, plan_id, bound)
    with pytest.raises(Conflict):
        store.reject(plan_id)


def test_what_waits_is_withdrawn_but_for_the_one_that_is_kept() -> None:
    store = make_store()
    (old, _), (new, _) = record(store, 0), record(store, 0)
    asyncio.run(store.withdraw_proposals(keep=new, at=NOW))
    assert [store.plans[key].state for key in (old, new)] == ["withdrawn", "proposed"]
    (event,) = store.events
    assert (event.kind, event.plan_id) == ("PlanWithdrawn", old)


def test_a_replayed_observation_counts_once_and_a_failed_gpu_moves_the_revision() -> (
    None
):
    store = make_store()
    slo = Slo(latency_ms=100.0, percentile=0.98)
    store.put_services([Service(name="chat", network="net", slo=slo)])
    woken: list[None] = []
    store.on_wake = lambda: woken.append(None)
    reading = GpuReading(
        index=0,
        gpu_type="T4",
        memory_mib=1.0,
        memory_used_mib=0.0,
        power_w=0.0,
        energy_j=0.0,
        clock_mhz=0.0,
        busy_percent=0.0,
        healthy=False,
    )
    observation = Observation(
        node="n1",
        boot="b",
        sequence=1,
        window_start_s=NOW.timestamp() - 1.0,
        window_s=1.0,
        generation=0,
        gpus=(reading,),
        services=(ServiceReading(service="chat", arrivals=7, served=7, in_slo=7),),
    )
    before = asyncio.run(store.load_snapshot(NOW)).state.catalogue_revision
    for _ in range(2):
        taken = asyncio.run(store.ingest((observation, observation), NOW))
        assert taken.acknowledged == {("n1", "b"): 1}
    after = asyncio.run(store.load_snapshot(NOW + timedelta(seconds=3)))
    assert [window.arrivals for window in after.windows] == [7]
    assert [gpu.healthy for gpu in after.state.gpus] == [False]
    assert after.state.catalogue_revision == before + 1
    assert after.state.nodes[0].silent_for_s == 3.0
    # Nothing was planned for, so the requests wake the loop, too.
    assert len(woken) == 2


def test_a_store_with_a_bound_forgets_old_plans_but_no_target_and_no_number() -> None:
    store = make_store()
    store.max_plans = 2
    numbers = []
    for generation in range(4):
        plan_id, bound = record(store, generation)
        assert push(store, plan_id, bound)
        numbers.append(plan_id)
    assert numbers == [1, 2, 3, 4]
    assert {key: store.plans[key].state for key in store.plans} == {
        3: "superseded",
        4: "target",
    }
    assert [bound.generation for _, bound in store.pushed] == [1, 2, 3, 4]
