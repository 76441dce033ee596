"""A cluster in an embedded PostgreSQL of its own, and telemetry for it: what benches of the whole loop share."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import GpuReading, Observation, ServiceReading
from app.catalogue.catalogue import load_gpu_types, load_profiles
from app.catalogue.install import SHIPPED_SIGMA
from app.db import maintenance
from app.db.base import migrate
from app.db.base.engine import make_engine
from app.db.decisions import policies
from app.db.fleet import gpu_types, nodes
from app.db.operations.token_secrets import TokenOrder, create_locally
from app.db.postgres_store import PostgresStore
from app.db.predictions import profiles
from app.db.predictions.profiles import StoredProfile
from app.db.workloads import services
from app.postgres import server as postgres
from app.store.store import PlanRecord, PolicySettings, Snapshot
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, Plan
from solvers.types.state import Mode, NodeId, ReplicaId, Service, Slo, gpu_id

GPU_TYPES = ("V100-32GB", "T4")
NETWORKS = (
    "resnet50",
    "inception_v3",
    "efficientnet_b4",
    "regnet_x_8gf",
    "densenet121",
    "convnext_small",
)
SLO_MS = (400.0, 600.0, 900.0, 1200.0)
"""HetSev, Table 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Equal nodes of alternating GPU types, and services of alternating networks and SLOs."""

    nodes: int
    gpus_per_node: int
    services: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def node_types(self) -> dict[str, str]:
        """GPU type by node."""
        names = (f"n{index:03}" for index in range(self.nodes))
        return dict(zip(names, cycle(GPU_TYPES), strict=False))

    def nouns(self) -> tuple[Service, ...]:
        """The services; 98 % of the requests in time, each follows its load down after 30 s."""
        return tuple(
            Service(
                name=f"s{index:02}",
                network=network,
                slo=Slo(latency_ms=slo_ms, percentile=0.98),
            )
            for index, (network, slo_ms) in enumerate(
                islice(zip(cycle(NETWORKS), cycle(SLO_MS)), self.services)
            )
        )


@contextmanager
def temporary_database() -> Iterator[str]:
    """URL of a fresh, durable (fsync on), migrated database in a server of its own; gone afterwards."""
    with temporary_server() as server:
        yield server.url


@contextmanager
def temporary_server(
    directory: Path | None = None, *, bin_dir: Path | None = None
) -> Iterator[postgres.Server]:
    """The same, for those who also stop and start it; its data lie in `directory`, its programs in `bin_dir`."""
    data_dir = Path(tempfile.mkdtemp(prefix="plimsoll-bench-", dir=directory))
    try:
        server = postgres.start(data_dir, bin_dir=bin_dir)
        migrate.upgrade(server.url)
        yield server
    finally:
        postgres.stop(data_dir)
        shutil.rmtree(data_dir)


@asynccontextmanager
async def open_fleet(
    url: str, fleet: Fleet, settings: PolicySettings, now: datetime
) -> AsyncIterator[AsyncEngine]:
    """An engine on a database into which the fleet was written."""
    engine = make_engine(url, application="plimsoll-bench")
    try:
        async with engine.begin() as connection:
            for gpu_type in load_gpu_types(GPU_TYPES):
                await gpu_types.save(connection, gpu_type, at=now)
            for network in NETWORKS:
                await profiles.save_network(connection, network, at=now)
            measured = [
                StoredProfile(
                    points=points,
                    provenance="scaled",
                    latency_sigma=(SHIPPED_SIGMA,) * len(points.rows),
                )
                for points in load_profiles(NETWORKS, GPU_TYPES)
            ]
            await profiles.save_profiles(connection, measured, at=now)
            for node, name in fleet.node_types().items():
                await nodes.save(
                    connection,
                    node,
                    dict.fromkeys(range(fleet.gpus_per_node), name),
                    at=now,
                )
            for service in fleet.nouns():
                await services.save(connection, service, at=now, actor="bench")
            await policies.save(connection, settings, at=now, actor="bench")
        await maintenance.maintain(engine, now)
        yield engine
    finally:
        await engine.dispose()


async def make_tokens(
    engine: AsyncEngine, orders: Iterable[TokenOrder]
) -> dict[str, str]:
    """New tokens, by name."""
    at = datetime.now(UTC)
    return {
        order.name: (await create_locally(engine, order, at=at)).secret
        for order in orders
    }


def agent_orders(names: Iterable[str]) -> list[TokenOrder]:
    """A token for each node's agent, by the node's name."""
    return [TokenOrder(name=name, scope="agent", node=name) for name in names]


def json_headers(secret: str) -> dict[str, str]:
    """Headers of a request with a JSON body."""
    return {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}


def observations(
    fleet: Fleet,
    arrivals: Mapping[str, int],
    *,
    sequence: int,
    end: datetime,
    window_s: float,
) -> tuple[Observation, ...]:
    """One window's observation of every node; the arrivals of all services came to the first one."""
    memory_mib = {
        gpu_type.name: gpu_type.memory_mib for gpu_type in load_gpu_types(GPU_TYPES)
    }
    return tuple(
        Observation(
            node=node,
            boot="bench",
            sequence=sequence,
            window_start_s=end.timestamp() - window_s,
            window_s=window_s,
            generation=0,
            gpus=tuple(
                GpuReading(
                    index=index,
                    gpu_type=gpu_type,
                    memory_mib=memory_mib[gpu_type],
                    memory_used_mib=1024.0,
                    power_w=80.0,
                    energy_j=80.0 * window_s,
                    clock_mhz=1380.0,
                    busy_percent=40.0,
                )
                for index in range(fleet.gpus_per_node)
            ),
            services=tuple(
                ServiceReading(service=name, arrivals=count, served=count, in_slo=count)
                for name, count in (arrivals.items() if position == 0 else ())
            ),
        )
        for position, (node, gpu_type) in enumerate(fleet.node_types().items())
    )


async def place_replicas(
    engine: AsyncEngine, batch: Sequence[Observation], at: datetime
) -> None:
    """Push a target that puts the replicas of these observations where they are; others would be left out of them."""
    store = PostgresStore(engine)
    before = (await store.load_snapshot(at)).settings
    # Nothing is pushed while the loop is off, as it is where a benchmark must not plan.
    await _save_settings(engine, replace(before, mode=Mode.AUTO), at)
    snapshot = await store.load_snapshot(at)
    bound = BoundPlan(
        generation=1,
        parent=0,
        policy=snapshot.settings.policy,
        gpus=tuple(
            _bound_gpu(entry, gpu.index, gpu.gpu_type)
            for entry in batch
            for gpu in entry.gpus
        ),
    )
    plan_id = await store.record_plan(bare_record(snapshot, bound))
    assert await store.push_target(plan_id, bound, (), at)
    await _save_settings(engine, before, at)


def bare_record(snapshot: Snapshot, bound: BoundPlan) -> PlanRecord:
    """A plan that binds this and says nothing more."""
    return PlanRecord(
        at=snapshot.at,
        state="proposed",
        policy_version=snapshot.settings.version,
        catalogue_revision=snapshot.state.catalogue_revision,
        plan=Plan(policy=bound.policy),
        report=PlanReport(status="greedy", cost_usd_per_hour=0.0),
        bound=bound,
        problem=None,
    )


async def _save_settings(
    engine: AsyncEngine, settings: PolicySettings, at: datetime
) -> None:
    async with engine.begin() as connection:
        await policies.save(connection, settings, at=at, actor="bench")


def _bound_gpu(entry: Observation, index: int, gpu_type: str) -> BoundGpu:
    return BoundGpu(
        id=gpu_id(entry.node, index),
        node=NodeId(entry.node),
        gpu_type=gpu_type,
        clock_mhz=1000.0,
        power_cap_w=100.0,
        replicas=tuple(
            BoundReplica(
                id=ReplicaId(each.id),
                service=each.service,
                network=NETWORKS[0],
                sm_percent=each.sm_percent,
                batch=each.batch,
                arrival_rate_rps=1.0,
                memory_mib=each.memory_mib,
            )
            for each in entry.replicas
            if each.gpu_index == index
        ),
    )
