"""A cluster in an embedded PostgreSQL of its own, and telemetry for it: what benches of the whole loop share."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
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
from app.db.predictions import profiles
from app.db.predictions.profiles import StoredProfile
from app.db.workloads import services
from app.postgres import server as postgres
from app.store.store import PolicySettings
from solvers.types.state import Service, Slo

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
    data_dir = Path(tempfile.mkdtemp(prefix="plimsoll-bench-"))
    try:
        url = postgres.start(data_dir).url
        migrate.upgrade(url)
        yield url
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


async def node_secrets(
    engine: AsyncEngine, fleet: Fleet, now: datetime
) -> dict[str, str]:
    """A token for each node's agent, by the node's name."""
    made = {}
    for node in fleet.node_types():
        order = TokenOrder(name=node, scope="agent", node=node)
        made[node] = (await create_locally(engine, order, at=now)).secret
    return made


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
