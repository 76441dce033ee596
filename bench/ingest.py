"""How many observations per second become durable, and how long an agent waits for its acknowledgement.

Run: `python -m bench.ingest`. Prints two tables and writes bench/results/ingest.json and ingest_latency.json.

Each observation carries 4 GPUs, 8 services with their latency histograms, and 8 replicas. fsync is on, the server is
on the same machine. First table: batches of a fixed size, one transaction after the other. Second table: agents that
report at a fixed rate through the group commit of the sync endpoint, without HTTP.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import GpuReading, Observation, ReplicaReading, ServiceReading
from app.base.clock import WallClock
from app.db.postgres_store import PostgresStore
from app.store.ingest_queue import IngestQueue
from app.store.store import PolicySettings
from bench.real_store import (
    Fleet,
    open_fleet,
    place_replicas,
    temporary_database,
)
from bench.report import Figures, print_table, write_results

FLEET = Fleet(nodes=200, gpus_per_node=4, services=30)
BATCHES = (1, 10, 50, 100, 250, 500)
RATES_PER_S = (250, 500, 1000, 1500)
SECONDS = 8.0
"""Of each measurement."""
WINDOW_S = 2.0
ROWS_EACH = 1 + 4 + 8 + 8


class Agents:
    """Observations of all nodes in turn, each with its own sequence."""

    def __init__(self, boot: str, clock: WallClock) -> None:
        self._boot = boot
        self._clock = clock
        self._parts = [_parts(index) for index in range(FLEET.nodes)]
        self._made = 0

    def next(self) -> Observation:
        """The next node's observation of the window that ends now."""
        turn, node = divmod(self._made, FLEET.nodes)
        self._made += 1
        gpus, services, replicas = self._parts[node]
        return Observation(
            node=f"n{node:03}",
            boot=self._boot,
            sequence=turn + 1,
            window_start_s=(
                self._clock.now() - timedelta(seconds=WINDOW_S)
            ).timestamp(),
            window_s=WINDOW_S,
            generation=0,
            gpus=gpus,
            services=services,
            replicas=replicas,
        )


def _parts(
    node: int,
) -> tuple[
    tuple[GpuReading, ...], tuple[ServiceReading, ...], tuple[ReplicaReading, ...]
]:
    gpus = tuple(
        GpuReading(
            index=index,
            gpu_type="T4",
            memory_mib=15360.0,
            memory_used_mib=4096.0,
            power_w=55.0,
            energy_j=110.0,
            clock_mhz=1380.0,
            busy_percent=61.5,
        )
        for index in range(4)
    )
    names = [f"s{(node + offset) % FLEET.services:02}" for offset in range(8)]
    services = tuple(
        ServiceReading(
            service=name,
            arrivals=60,
            served=60,
            in_slo=59,
            latency_buckets=tuple((bucket, 3) for bucket in range(20, 40)),
        )
        for name in names
    )
    replicas = tuple(
        ReplicaReading(
            id=f"{name}-{node}",
            service=name,
            gpu_index=index % 4,
            state="ready",
            sm_percent=50.0,
            batch=8,
            memory_mib=2048.0,
            batches=10,
            requests=60,
            execution_ms=21.5,
        )
        for index, name in enumerate(names)
    )
    return gpus, services, replicas


async def in_batches(engine: AsyncEngine, clock: WallClock, size: int) -> Figures:
    """One transaction after the other for SECONDS."""
    store, agents = PostgresStore(engine), Agents(f"batch-{size}", clock)
    taken, waits = 0, []
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        batch = tuple(agents.next() for _ in range(size))
        start = time.perf_counter()
        await store.ingest(batch, clock.now())
        waits.append(time.perf_counter() - start)
        taken += size
    seconds = time.perf_counter() - began
    return {
        "batch": size,
        "observations_per_s": taken / seconds,
        "rows_per_s": ROWS_EACH * taken / seconds,
        "commit_ms_p50": 1000 * _quantile(waits, 0.5),
        "commit_ms_p99": 1000 * _quantile(waits, 0.99),
    }


async def at_rate(engine: AsyncEngine, clock: WallClock, rate_per_s: int) -> Figures:
    """Reports at equal distances, however long the answers take, through the group commit."""
    queue, agents = (
        IngestQueue(PostgresStore(engine), clock, limit=10_000),
        Agents(f"rate-{rate_per_s}", clock),
    )
    queue.start()
    waits: list[float] = []

    async def report() -> None:
        start = time.perf_counter()
        await queue.add(agents.next())
        waits.append(time.perf_counter() - start)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as reports:
        for due_s in _due_times(rate_per_s):
            await asyncio.sleep(max(0.0, began + due_s - time.perf_counter()))
            reports.create_task(report())
    seconds = time.perf_counter() - began
    await queue.stop()
    return {
        "offered_per_s": rate_per_s,
        "durable_per_s": len(waits) / seconds,
        "acknowledged_ms_p50": 1000 * _quantile(waits, 0.5),
        "acknowledged_ms_p99": 1000 * _quantile(waits, 0.99),
        "acknowledged_ms_max": 1000 * max(waits),
    }


def _due_times(rate_per_s: int) -> Iterator[float]:
    return (number / rate_per_s for number in range(int(rate_per_s * SECONDS)))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(url: str) -> tuple[list[Figures], list[Figures]]:
    """Both tables, on one database."""
    clock = WallClock()
    async with open_fleet(url, FLEET, PolicySettings(), clock.now()) as engine:
        first = Agents("first", clock)
        every_node = [first.next() for _ in range(FLEET.nodes)]
        await place_replicas(engine, every_node, clock.now())
        return (
            [await in_batches(engine, clock, size) for size in BATCHES],
            [await at_rate(engine, clock, rate) for rate in RATES_PER_S],
        )


def main() -> None:
    """Measure, print, write."""
    with temporary_database() as url:
        batches, rates = asyncio.run(measure(url))
    print_table(batches)
    print()
    print_table(rates)
    write_results("ingest", batches)
    write_results("ingest_latency", rates)


if __name__ == "__main__":
    main()
