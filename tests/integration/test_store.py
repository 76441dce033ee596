"""One stateful test of both stores: whatever is done to them, they answer alike."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from agents.base.protocol import (
    Ack,
    GpuReading,
    NodeCommand,
    Observation,
    ReplicaReading,
    ServiceReading,
    TokenCounts,
    UseReading,
)
from app.base.errors import Conflict
from app.db.decisions import approval, policies
from app.db.fleet import gpu_types, nodes
from app.db.predictions import profiles
from app.db.workloads import services
from app.postgres import server as postgres
from app.store.store import Correction, FitHealth, PlanRecord, Snapshot
from solvers.predict.data.samples import Group
from solvers.predict.learn.online import ExecutionReading, RowKey, learn, new_fit_state
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, Plan
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import (
    Demand,
    Gpu,
    GpuId,
    GpuType,
    Json,
    Mode,
    Node,
    NodeId,
    ReplicaId,
    Service,
    Slo,
)
from tests.examples import tried
from tests.integration.fleet import engine_on
from tests.integration.two_stores import TwoStores

pytestmark = pytest.mark.integration

START = datetime(2026, 3, 1, 11, 59, 30, tzinfo=UTC)
NODES = ("n1", "n2", "nobody")
USE_KINDS: tuple[Literal["replica", "task", "others", "idle"], ...] = (
    "replica",
    "task",
    "others",
    "idle",
)
SERVICES = ("chat", "search", "never")
TOKENS = (None, TokenCounts(90_000, 0, 300), TokenCounts(600, 200, 9))
counts = st.integers(0, 20)


@st.composite
def observations(draw: st.DrawFn, now: datetime, newest: int) -> Observation:
    """What an agent may report; `newest`: the newest generation that it may hold."""
    served = draw(counts)
    return Observation(
        node=draw(st.sampled_from((*NODES, *NODES[:2]))),
        boot=draw(st.sampled_from(["a", "b"])),
        sequence=draw(st.integers(1, 4)),
        window_start_s=now.timestamp()
        - draw(st.sampled_from([-5.0, 1.0, 2.0, 3.5, 30.0, 9e5])),
        window_s=draw(st.sampled_from([1.0, 2.0])),
        generation=draw(st.integers(0, newest)),
        gpus=tuple(
            GpuReading(
                index=index,
                gpu_type="T4",
                memory_mib=16384.0,
                memory_used_mib=10.0,
                power_w=30.0,
                energy_j=60.0,
                clock_mhz=1000.0,
                busy_percent=5.0,
                healthy=draw(st.booleans()),
            )
            for index in range(3)
        ),
        services=tuple(
            ServiceReading(
                service=name,
                arrivals=draw(counts),
                served=served,
                in_slo=draw(st.integers(0, served)),
                rejected=draw(counts),
                latency_buckets=((3, served),) if served else (),
            )
            for name in draw(st.lists(st.sampled_from(SERVICES), unique=True))
        ),
        replicas=tuple(
            ReplicaReading(
                id=f"chat-{number}",
                service=draw(st.sampled_from(["chat"] * 4 + ["search"])),
                gpu_index=draw(st.sampled_from([0, 0, 0, 1])),
                state=draw(st.sampled_from(["ready", "ready", "draining"])),
                sm_percent=50.0,
                batch=draw(st.sampled_from([4, 4, 8])),
                memory_mib=900.0,
                batches=draw(st.sampled_from([0, 3, 8])),
                requests=draw(st.sampled_from([0, 7, 150])),
                execution_ms=16.0,
                tokens=draw(st.sampled_from(TOKENS)),
            )
            for number in range(draw(st.integers(0, 2)))
        ),
        uses=tuple(
            UseReading(
                kind=kind,
                name=draw(st.sampled_from(["chat-1", f"({kind})"])),
                service="chat" if kind == "replica" else "",
                gpu_index=draw(st.integers(0, 2)),
                energy_j=1.0,
            )
            for kind in draw(st.lists(st.sampled_from(USE_KINDS), max_size=2))
        ),
        acks=(Ack(generation=1, status=draw(st.sampled_from(["applied", "refused"]))),),
    )


class Stores(TwoStores):
    """Does everything to a memory store and a PostgreSQL store."""

    @initialize()
    def open(self) -> None:
        self.now, self.changes, self.plan_ids = START, 0, 0
        self.known, self.sent = set[str](), list[tuple[Observation, ...]]()
        self._save_gpu_type(2.0)
        self.run(self._save_network())

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 7.0, 200.0, 3601.5]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(price=st.sampled_from([1.5, 2.0, 3.25]))
    def price_changes(self, price: float) -> None:
        if {entry.price_usd_per_hour for entry in self.snapshot().state.gpu_types} != {
            price
        }:
            self._save_gpu_type(price)

    @rule(name=st.sampled_from(NODES[:2]), gpus=st.integers(1, 3))
    def node_is_added(self, name: str, gpus: int) -> None:
        if name in self.known:
            return
        self.known.add(name)
        nouns = [
            Gpu(
                id=GpuId(f"{name}/gpu-{index}"),
                node=NodeId(name),
                gpu_type="T4",
                index=index,
            )
            for index in range(gpus)
        ]
        self.memory.put_node(Node(id=NodeId(name)), nouns, at=self.now)
        self.run(
            self.with_connection(
                nodes.save, name, dict(enumerate(["T4"] * gpus)), at=self.now
            )
        )

    @rule(name=st.sampled_from(["chat", "search"]))
    def service_is_saved(self, name: str) -> None:
        self.changes += 1
        noun = Service(
            name=name,
            network="resnet50",
            slo=Slo(latency_ms=100.0 + self.changes, percentile=0.98),
        )
        self.memory.put_services([noun])
        self.run(self.with_connection(services.save, noun, at=self.now, actor="test"))

    @precondition(lambda self: self.snapshot().state.services)
    @rule()
    def service_is_deleted(self) -> None:
        name = self.snapshot().state.services[0].name
        self.memory.delete_service(name)
        self.run(self.with_connection(services.remove, name, at=self.now))

    @rule()
    def profile_is_saved(self) -> None:
        self.changes += 1
        row = OperatingPoint(
            50.0, 4, 1000.0, 0.0, 1.0, float(self.changes), 900.0, 30.0, 0.1
        )
        points = OperatingPoints(
            network="resnet50", gpu_type="T4", sensitivity=0.5, rows=(row,)
        )
        self.memory.put_points([points])
        profile = profiles.StoredProfile(points=points, provenance="measured")
        assert (
            self.run(
                self.with_connection(profiles.save_profiles, [profile], at=self.now)
            )
            == 1
        )

    @rule(mode=st.sampled_from(list(Mode)), paused=st.booleans())
    def policy_is_saved(self, mode: Mode, paused: bool) -> None:
        wanted = replace(self.memory.settings, mode=mode, paused=paused)
        self.memory.settings = self.run(
            self.with_connection(policies.save, wanted, at=self.now, actor="test")
        )

    @rule(data=st.data(), size=st.integers(1, 4))
    def observations_come(self, data: st.DataObject, size: int) -> None:
        newest = self.memory.pushed[-1][1].generation if self.memory.pushed else 0
        batch = tuple(data.draw(observations(self.now, newest)) for _ in range(size))
        self.sent.append(batch)
        self.ingest(batch)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def observations_come_again(self, data: st.DataObject) -> None:
        batch = tuple(reversed(data.draw(st.sampled_from(self.sent))))
        self.ingest(batch)

    @rule(
        step=st.sampled_from([0, 0, 0, 1]),
        versions_back=st.sampled_from([0, 0, 0, 1]),
        is_late=st.booleans(),
        push=st.booleans(),
        memory=st.dictionaries(
            st.just("hetsev"),
            st.none()
            | st.dictionaries(st.sampled_from("ab"), st.lists(st.floats(-9, 9))),
        ),
    )
    def plan_is_made(
        self,
        step: int,
        versions_back: int,
        is_late: bool,
        push: bool,
        memory: dict[str, Json],
    ) -> None:
        before = self.snapshot()
        parent = (before.target.generation if before.target else 0) + step
        bound = self._bound(before, parent)
        record = PlanRecord(
            at=self.now,
            state="proposed",
            policy_version=before.settings.version - versions_back,
            catalogue_revision=0,
            plan=Plan(policy="hetsev"),
            report=PlanReport(status="greedy", cost_usd_per_hour=2.0),
            bound=bound,
            demands=(Demand(service="chat", arrival_rate_rps=10.0),),
            problem=None,
            memory=memory,
        )
        self.plan_ids = self._record(record)
        if is_late:
            self.service_is_saved("chat")
        if push:
            self._push(self.plan_ids, bound)

    @precondition(lambda self: self.plan_ids > 0)
    @rule(says_yes=st.booleans(), back=st.integers(0, 2))
    def person_judges(self, says_yes: bool, back: int) -> None:
        plan_id = max(1, self.plan_ids - back)
        in_memory = self.memory.approve if says_yes else self.memory.reject
        in_database = approval.approve if says_yes else approval.reject
        acts: list[Callable[[], None]] = [
            lambda: in_memory(plan_id),
            lambda: self.run(self.with_connection(in_database, plan_id)),
        ]
        assert _refusal(acts[0]) == _refusal(acts[1])

    @rule()
    def controller_restarts(self) -> None:
        proposal = self.snapshot().proposal
        keep = None if proposal is None else proposal.plan_id
        for store in (self.memory, self.postgres):
            self.run(store.withdraw_proposals(keep=keep, at=self.now))

    @precondition(lambda self: self.snapshot().approved is not None)
    @rule()
    def approved_plan_is_pushed(self) -> None:
        now = self.snapshot()
        assert now.approved is not None
        assert now.approved_id is not None
        self._push(now.approved_id, now.approved)

    @rule(log_ratio=st.floats(-1.0, 1.0), is_late=st.booleans(), follows=st.booleans())
    def served_times_are_learned(
        self, log_ratio: float, is_late: bool, follows: bool
    ) -> None:
        revision = self.snapshot().state.catalogue_revision
        group, row = Group("resnet50", "T4"), RowKey(50.0, 4, 1000.0)
        known = {
            entry.group: entry for entry in self.run(self.memory.load_fit_health())
        }
        now = known[group].now if group in known else new_fit_state(np.zeros(1), 0.0)
        reading = ExecutionReading(
            replica="chat-1", row=row, log_ratio=log_ratio, variance=1e-3
        )
        now = learn(now, [reading], {row: 0.0}, now.seen_until_s + 10.0)
        planned = known[group].planned if group in known and not follows else None
        planned = planned or Correction(group=group, health=now, at=self.now)
        health = FitHealth(group=group, now=now, planned=planned)
        if is_late:
            self.service_is_saved("chat")
        in_database = self.run(
            self.postgres.load_snapshot(self.now)
        ).state.catalogue_revision
        assert self.run(self.memory.save_fit_health((health,), revision)) == (
            not is_late
        )
        assert self.run(
            self.postgres.save_fit_health((health,), in_database - is_late)
        ) == (not is_late)

    @invariant()
    def both_answer_alike(self) -> None:
        one, other = self.run(self.postgres.load_snapshot(self.now)), self.snapshot()
        assert _comparable(one) == _comparable(other)
        assert self.run(self.postgres.load_fit_health()) == self.run(
            self.memory.load_fit_health()
        )
        for back_s in (0.0, 5.0):
            stretch = (
                self.now - timedelta(seconds=back_s + 5.0),
                self.now - timedelta(seconds=back_s),
            )
            gpus = [GpuId("n1/gpu-0")]
            executed = self.run(self.memory.load_executions(*stretch, gpus))
            assert self.run(self.postgres.load_executions(*stretch, gpus)) == executed
        for name in NODES:
            for generation in (0, 1):
                wanted = self.run(self.memory.command_for(name, generation))
                assert self.run(self.postgres.command_for(name, generation)) == wanted

    def snapshot(self) -> Snapshot:
        return self.run(self.memory.load_snapshot(self.now))

    def _push(self, plan_id: int, bound: BoundPlan) -> None:
        commands = tuple(
            NodeCommand(node=name, generation=bound.generation)
            for name in ("n1", "nobody")
        )
        outcomes = [
            self.run(store.push_target(plan_id, bound, commands, self.now))
            for store in (self.postgres, self.memory)
        ]
        assert outcomes[0] == outcomes[1]

    def _record(self, record: PlanRecord) -> int:
        ids = set()
        for store in (self.postgres, self.memory):
            revision = self.run(store.load_snapshot(self.now)).state.catalogue_revision
            ids.add(
                self.run(
                    store.record_plan(replace(record, catalogue_revision=revision))
                )
            )
        assert len(ids) == 1
        return ids.pop()

    def _bound(self, snapshot: Snapshot, parent: int) -> BoundPlan:
        replica = BoundReplica(
            id=ReplicaId("chat-1"),
            service="chat",
            network="resnet50",
            sm_percent=100 / 7,
            batch=4,
            arrival_rate_rps=10.0,
            memory_mib=900.0,
        )
        gpus = tuple(
            BoundGpu(
                id=gpu.id,
                node=gpu.node,
                gpu_type="T4",
                clock_mhz=1000.0,
                power_cap_w=70.0,
                replicas=(replace(replica, llm=engine_on(gpu.id)),),
            )
            for gpu in snapshot.state.gpus[:1]
        )
        return BoundPlan(
            generation=parent + 1, parent=parent, policy="hetsev", gpus=gpus
        )

    def _save_gpu_type(self, price: float) -> None:
        noun = GpuType(
            name="T4",
            price_usd_per_hour=price,
            memory_mib=16384.0,
            sm_percent_step=1.0,
            idle_w=10.0,
            power_cap_w=70.0,
            clocks_mhz=(585.0, 1000.0),
        )
        self.memory.put_gpu_types([noun])
        self.run(self.with_connection(gpu_types.save, noun, at=self.now))

    async def _save_network(self) -> None:
        await self.with_connection(profiles.save_network, "resnet50", at=self.now)


def _refusal(act: Callable[[], None]) -> str:
    """Empty: it is not refused."""
    try:
        act()
    except Conflict as error:
        return str(error)
    return ""


def _comparable(snapshot: Snapshot) -> Snapshot:
    """Without the revision, which counts rows in PostgreSQL and changes in memory."""
    proposal = snapshot.proposal and replace(snapshot.proposal, catalogue_revision=0)
    state = replace(snapshot.state, catalogue_revision=0)
    return replace(snapshot, state=state, proposal=proposal)


@pytest.mark.seeded
def test_both_stores_answer_alike(
    postgres_server: postgres.Server, migrated_template: str
) -> None:
    Stores.check(postgres_server, migrated_template, examples=tried(14), steps=20)
