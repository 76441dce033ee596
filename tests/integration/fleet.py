"""A small fleet in PostgreSQL for tests: T4 and V100 nodes, one network, a few services, and plans on them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import (
    GpuReading,
    NodeCommand,
    Observation,
    ReplicaReading,
    ServiceReading,
)
from app.db.base.engine import make_engine
from app.db.fleet import gpu_types, nodes
from app.db.postgres_store import PostgresStore
from app.db.predictions import profiles
from app.db.workloads import projects, services
from app.store.store import PlanRecord
from solvers.types.llm import LlmEngineSettings
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, Plan
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import Demand, GpuId, GpuType, NodeId, ReplicaId, Service, Slo
from tests.integration.scenes import Body, scene

Value = TypeVar("Value")
START = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
MEMORY_MIB = 16384.0
Share = tuple[str, float, float]
"""(service, SM percent, MiB)."""


def make_gpu_type(name: str = "T4", price_usd_per_hour: float = 1.2) -> GpuType:
    return GpuType(
        name=name,
        price_usd_per_hour=price_usd_per_hour,
        memory_mib=MEMORY_MIB,
        sm_percent_step=1.0,
        idle_w=10.0,
        power_cap_w=70.0,
        clocks_mhz=(1000.0,),
    )


async def make_fleet(
    engine: AsyncEngine, services_by_project: Mapping[str, Sequence[str]]
) -> PostgresStore:
    """Two T4s on node n1, and the services."""
    async with engine.begin() as connection:
        await gpu_types.save(connection, make_gpu_type(), at=START)
        await nodes.save(connection, "n1", {0: "T4", 1: "T4"}, at=START)
        await profiles.save_network(connection, "resnet50", at=START)
        row = OperatingPoint(60.0, 8, 1000.0, 1.0, 1.0, 8.0, 2048.0, 30.0, 0.1)
        points = OperatingPoints(
            network="resnet50", gpu_type="T4", sensitivity=0.5, rows=(row,)
        )
        await profiles.save_profiles(
            connection,
            [profiles.StoredProfile(points=points, provenance="measured")],
            at=START,
        )
        for project, names in services_by_project.items():
            await projects.save(connection, project, at=START)
            for name in names:
                noun = Service(
                    name=name,
                    project=project,
                    network="resnet50",
                    slo=Slo(latency_ms=100.0, percentile=0.98),
                )
                await services.save(connection, noun, at=START, actor="test")
    return PostgresStore(engine)


def with_fleet(
    url: str,
    work: Callable[[PostgresStore, AsyncEngine], Awaitable[Value]],
    services_by_project: Mapping[str, Sequence[str]] | None = None,
) -> Value:
    """What `work` returns on a database with the fleet and, where nothing else is said, the service `chat`."""

    async def run() -> Value:
        engine = make_engine(url, pool_size=4)
        try:
            return await work(
                await make_fleet(engine, services_by_project or {"default": ["chat"]}),
                engine,
            )
        finally:
            await engine.dispose()

    return asyncio.run(run())


def on_fleet(
    services_by_project: Mapping[str, Sequence[str]] | None = None,
) -> Callable[[Body], Callable[..., None]]:
    """For tests that run as a coroutine `with_fleet`."""

    def play(body: Body, database: str) -> None:
        with_fleet(database, body, services_by_project)

    return scene(play, supplies=("store", "engine"), needs=("database",))


def on_connection(body: Body) -> Callable[..., None]:
    """For tests that run in one transaction on a database with the fleet and service `chat`."""

    def play(body: Body, database: str) -> None:
        async def work(_: PostgresStore, engine: AsyncEngine) -> None:
            async with engine.begin() as connection:
                await body(connection)

        with_fleet(database, work, {"default": ["chat"], "web": []})

    return scene(play, supplies=("connection",), needs=("database",))(body)


def make_bound(parent: int, shares_by_gpu: Mapping[str, Sequence[Share]]) -> BoundPlan:
    """A bound plan of batch 8 at 1000 MHz; shares with GPU ids like `n1/gpu-0`."""
    return BoundPlan(
        generation=parent + 1,
        parent=parent,
        policy="hetsev",
        gpus=tuple(
            BoundGpu(
                id=GpuId(gpu),
                node=NodeId(gpu.split("/")[0]),
                gpu_type="T4",
                clock_mhz=1000.0,
                power_cap_w=70.0,
                replicas=tuple(
                    BoundReplica(
                        id=ReplicaId(f"{service}-{index}"),
                        service=service,
                        network="resnet50",
                        sm_percent=sm_percent,
                        batch=8,
                        arrival_rate_rps=10.0,
                        memory_mib=memory_mib,
                    )
                    for index, (service, sm_percent, memory_mib) in enumerate(shares)
                ),
            )
            for gpu, shares in shares_by_gpu.items()
        ),
    )


def engine_on(gpu: GpuId) -> LlmEngineSettings:
    """What makes a replica one of a language model, whose engine counts tokens."""
    return LlmEngineSettings(
        gpus=(gpu,), max_num_batched_tokens=512, max_num_seqs=64, max_model_len=4096
    )


async def push(
    store: PostgresStore, at: datetime, shares_by_gpu: Mapping[str, Sequence[Share]]
) -> int:
    """Make these shares the target from `at` on; returns the plan's id."""
    snapshot = await store.load_snapshot(at)
    bound = make_bound(
        snapshot.target.generation if snapshot.target else 0, shares_by_gpu
    )
    record = make_record(at, bound, snapshot.state.catalogue_revision)
    version = snapshot.settings.version
    plan_id = await store.record_plan(replace(record, policy_version=version))
    commands = (NodeCommand(node="n1", generation=bound.generation),)
    assert await store.push_target(plan_id, bound, commands, at)
    return plan_id


def make_record(
    at: datetime, bound: BoundPlan | None, catalogue_revision: int
) -> PlanRecord:
    return PlanRecord(
        at=at,
        state="proposed",
        policy_version=1,
        catalogue_revision=catalogue_revision,
        plan=Plan(policy="hetsev"),
        report=PlanReport(
            status="optimal",
            cost_usd_per_hour=1.2,
            lower_bound_usd_per_hour=1.2,
            gap_percent=0.0,
        ),
        bound=bound,
        demands=(
            Demand(service="chat", arrival_rate_rps=10.0, interval_rps=(6.5, 9.5)),
        ),
        problem=None,
    )


def make_observation(
    sequence: int,
    end: datetime,
    *,
    node: str = "n1",
    boot: str = "b1",
    window_s: float = 2.0,
    services: Sequence[ServiceReading] = (),
    gpus: Sequence[GpuReading] = (),
    replicas: Sequence[ReplicaReading] = (),
) -> Observation:
    """An observation whose window ends at `end`."""
    return Observation(
        node=node,
        boot=boot,
        sequence=sequence,
        window_start_s=end.timestamp() - window_s,
        window_s=window_s,
        generation=0,
        services=tuple(services),
        gpus=tuple(gpus),
        replicas=tuple(replicas),
    )


async def rows(engine: AsyncEngine, statement: str) -> list[tuple[Any, ...]]:
    async with engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(statement))]


async def scalar(engine: AsyncEngine, statement: str) -> Any:
    ((value,),) = await rows(engine, statement)
    return value


async def column(engine: AsyncEngine, statement: str) -> list[Any]:
    return [value for (value,) in await rows(engine, statement)]


async def observe(
    store: PostgresStore, sequence: int, end: datetime, **more: Any
) -> None:
    """One observation comes as soon as its window has ended."""
    await store.ingest((make_observation(sequence, end, **more),), end)


def make_service_reading(service: str = "chat", **counts: int) -> ServiceReading:
    defaults = {"arrivals": 10, "served": 10, "in_slo": 9}
    return ServiceReading(service=service, **{**defaults, **counts})


def make_gpu_reading(
    index: int = 0, *, energy_j: float = 80.0, healthy: bool = True
) -> GpuReading:
    return GpuReading(
        index=index,
        gpu_type="T4",
        memory_mib=MEMORY_MIB,
        memory_used_mib=4096.0,
        power_w=energy_j / 2,
        energy_j=energy_j,
        clock_mhz=1000.0,
        busy_percent=50.0,
        healthy=healthy,
    )
