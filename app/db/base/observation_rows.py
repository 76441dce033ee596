"""Rows of the partitioned observation tables, and their COPY."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter

from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import Observation
from app.db.base.engine import driver_connection
from app.store.windows import placed_start_s
from solvers.types.state import gpu_id

Values = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedObservation:
    """An observation with its window in the control plane's time."""

    observation: Observation
    received: datetime
    start: datetime
    end: datetime
    held: frozenset[str] = frozenset()
    """Tasks that it says are finished where a target put them (`app.store.reportable`)."""

    @property
    def boot(self) -> tuple[str, str]:
        """The start of an agent that it comes from."""
        return self.observation.node, self.observation.boot

    @property
    def skew_s(self) -> float:
        """Seconds by which the agent's clock is ahead of ours; delay and buffering make it negative."""
        window_end_s = self.observation.window_start_s + self.observation.window_s
        return window_end_s - self.received.timestamp()


def place(observation: Observation, received: datetime) -> WindowedObservation:
    """The observation with its window moved where its clock cannot be right."""
    start_s = placed_start_s(observation, received.timestamp())
    return WindowedObservation(
        observation=observation,
        received=received,
        start=datetime.fromtimestamp(start_s, UTC),
        end=datetime.fromtimestamp(start_s + observation.window_s, UTC),
    )


async def copy_all(
    connection: AsyncConnection, placed: Sequence[WindowedObservation]
) -> None:
    """COPY the observations with all their readings, in the connection's transaction."""
    for table, types, rows in _TABLES:
        await _copy(
            connection, table, types, (row for entry in placed for row in rows(entry))
        )


async def _copy(
    connection: AsyncConnection,
    table: str,
    types: Sequence[str],
    rows: Iterator[Values],
) -> None:
    driver = await driver_connection(connection)
    async with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)".encode()) as copy,
    ):
        copy.set_types(types)
        for row in rows:
            await copy.write_row(row)
    # A COPY that never has to wait for the server would keep every other request out.
    await asyncio.sleep(0)


_service: Callable[[object], Values] = attrgetter(
    "service", "arrivals", "served", "in_slo", "rejected", "queued"
)
_gpu: Callable[[object], Values] = attrgetter(
    "memory_used_mib", "power_w", "energy_j", "clock_mhz", "busy_percent", "healthy"
)
_replica: Callable[[object], Values] = attrgetter(
    "id",
    "service",
    "state",
    "sm_percent",
    "batch",
    "memory_mib",
    "batches",
    "requests",
    "execution_ms",
)


def _headers(entry: WindowedObservation) -> Iterator[Values]:
    seen = entry.observation
    yield (
        *entry.boot,
        seen.sequence,
        entry.start,
        seen.window_s,
        seen.generation,
        entry.received,
    )


def _services(entry: WindowedObservation) -> Iterator[Values]:
    seen = entry.observation
    return (
        (seen.node, entry.start, seen.window_s, *_service(row)) for row in seen.services
    )


def _gpus(entry: WindowedObservation) -> Iterator[Values]:
    seen = entry.observation
    return (
        (gpu_id(seen.node, row.index), entry.start, seen.window_s, *_gpu(row))
        for row in seen.gpus
    )


def _replicas(entry: WindowedObservation) -> Iterator[Values]:
    seen = entry.observation
    return (
        (gpu_id(seen.node, row.gpu_index), entry.start, seen.window_s, *_replica(row))
        for row in seen.replicas
    )


_use: Callable[[object], Values] = attrgetter(
    "kind",
    "name",
    "service",
    "memory_used_mib",
    "sm_percent",
    "energy_j",
    "is_estimated",
)


def _uses(entry: WindowedObservation) -> Iterator[Values]:
    seen = entry.observation
    return (
        (gpu_id(seen.node, row.gpu_index), entry.start, seen.window_s, *_use(row))
        for row in seen.uses
    )


# Table, types of its columns in their order (binary COPY converts nothing), its rows of one observation.
_TABLES: tuple[
    tuple[str, Sequence[str], Callable[[WindowedObservation], Iterator[Values]]], ...
] = (
    (
        "observation",
        ("text", "text", "int8", "timestamptz", "float8", "int8", "timestamptz"),
        _headers,
    ),
    (
        "service_observation",
        ("text", "timestamptz", "float8", "text", *["int8"] * 5),
        _services,
    ),
    (
        "gpu_observation",
        ("text", "timestamptz", "float8", *["float8"] * 5, "bool"),
        _gpus,
    ),
    (
        "replica_observation",
        (
            "text",
            "timestamptz",
            "float8",
            "text",
            "text",
            "text",
            "float8",
            "int4",
            "float8",
            "int8",
            "int8",
            "float8",
        ),
        _replicas,
    ),
    (
        "use_observation",
        (
            "text",
            "timestamptz",
            "float8",
            "text",
            "text",
            "text",
            "float8",
            "float8",
            "float8",
            "bool",
        ),
        _uses,
    ),
)
