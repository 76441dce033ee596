"""Launches as they are reported: how long they took by service and GPU type, and how many failed by GPU and service
or task; too many failures make a line of the audit.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.listen import wake
from app.db.base.observation_rows import WindowedObservation
from app.db.base.rows import all_rows
from app.db.operations import events
from app.loop.events import launches_fail_event
from app.store.launch_book import (
    AvoidedGpu,
    LaunchRecord,
    avoided,
    key_of,
    with_failure,
)
from app.store.launch_times import KEPT, SecondsByType, seconds_of
from solvers.types.state import GpuId, gpu_id


async def note_failures(
    connection: AsyncConnection,
    fresh: Iterable[WindowedObservation],
    received: datetime,
) -> None:
    """Count the launches that failed; the nodes are locked. The loop is woken when a GPU is avoided from now on."""
    failed = [
        (entry.observation.node, failure)
        for entry in fresh
        for failure in entry.observation.failures
    ]
    # Nearly always: nothing fails.
    if not failed:
        return
    reported = [
        (key_of(failure), gpu_id(node, failure.gpu_index), failure)
        for node, failure in failed
    ]
    # A GPU may have been taken out since; its row would break the foreign key.
    gpus = await _known_gpus(connection, {gpu for _, gpu, _ in reported})
    before = await _load(connection, gpus)
    after = dict(before)
    for service, gpu, failure in reported:
        if gpu in gpus:
            key = (service, gpu)
            after[key] = with_failure(after.get(key), failure.detail, received)
    await _save(connection, after)
    new = [
        avoided(*key, record)
        for key, record in sorted(after.items())
        if record.times > (before[key].times if key in before else 0)
    ]
    for each in new:
        await events.add(connection, launches_fail_event(received, each))
    if new:
        # The next period would do, but meanwhile nothing serves in the replica's place.
        await wake(connection, "launches fail")


async def note_launch_times(
    connection: AsyncConnection, fresh: Iterable[WindowedObservation]
) -> None:
    """Keep the newest launches of each service and GPU type; of GPUs that are gone nothing is kept."""
    launches = [
        (
            launch.service,
            gpu_id(entry.observation.node, launch.gpu_index),
            seconds_of(launch),
        )
        for entry in fresh
        for launch in entry.observation.launches
    ]
    if launches:
        services, gpus, seconds = zip(*launches, strict=True)
        values = {
            "services": list(services),
            "gpus": list(gpus),
            "seconds": list(seconds),
            "kept": KEPT,
        }
        await connection.execute(text(_ADD_TIMES), values)


async def load_launch_times(
    connection: AsyncConnection, services: Sequence[str]
) -> dict[str, SecondsByType]:
    """The newest launches of these services, by service; those that were never seen to start are missing."""
    rows = await all_rows(connection, _TIMES, services=list(services))
    found: defaultdict[str, dict[str, Sequence[float]]] = defaultdict(dict)
    for row in rows:
        found[row.service][row.gpu_type] = row.seconds
    return dict(found)


async def load_launch_s(connection: AsyncConnection) -> dict[str, float]:
    """By GPU type, the median over services of their newest launch there."""
    rows = await all_rows(connection, _BY_TYPE)
    return {row.gpu_type: row.seconds for row in rows}


async def load_avoided(
    connection: AsyncConnection, now: datetime
) -> tuple[AvoidedGpu, ...]:
    """What is avoided at that time, by service and GPU."""
    rows = await all_rows(connection, _AVOIDED, now=now)
    return tuple(AvoidedGpu(**row._mapping) for row in rows)


async def _known_gpus(connection: AsyncConnection, gpus: set[GpuId]) -> set[GpuId]:
    statement = "SELECT id FROM gpu WHERE id = ANY(CAST(:gpus AS text[]))"
    rows = await all_rows(connection, statement, gpus=sorted(gpus))
    return {GpuId(row.id) for row in rows}


async def _load(
    connection: AsyncConnection, gpus: set[GpuId]
) -> dict[tuple[str, GpuId], LaunchRecord]:
    # Without a lock of its own: a writer of a GPU has locked its node.
    rows = await all_rows(connection, _OF_GPUS, gpus=sorted(gpus))
    return {
        (row.service, GpuId(row.gpu)): LaunchRecord(
            **{each.name: row._mapping[each.name] for each in fields(LaunchRecord)}
        )
        for row in rows
    }


async def _save(
    connection: AsyncConnection,
    records: dict[tuple[str, GpuId], LaunchRecord],
) -> None:
    values: Sequence[dict[str, object]] = [
        {"service": service, "gpu": gpu, **asdict(record)}
        for (service, gpu), record in sorted(records.items())
    ]
    if values:
        await connection.execute(text(_UPSERT), values)


_AVOIDED = """
SELECT service, gpu, avoided_until AS until, detail FROM launch_failure WHERE avoided_until > :now
ORDER BY service COLLATE "C", gpu COLLATE "C"
"""

# In order, so that two processes that ingest at once lock the rows in the same one.
_ADD_TIMES = """
INSERT INTO launch_time AS t (service, gpu_type, seconds)
SELECT s.name, g.gpu_type, array_agg(l.seconds)
FROM unnest(CAST(:services AS text[]), CAST(:gpus AS text[]), CAST(:seconds AS float8[])) AS l (service, gpu, seconds)
JOIN service s ON s.name = l.service JOIN gpu g ON g.id = l.gpu
GROUP BY s.name, g.gpu_type ORDER BY s.name, g.gpu_type
ON CONFLICT (service, gpu_type) DO UPDATE SET seconds = (excluded.seconds || t.seconds)[1:CAST(:kept AS integer)]
"""

_TIMES = "SELECT service, gpu_type, seconds FROM launch_time WHERE service = ANY(CAST(:services AS text[]))"

_BY_TYPE = """
SELECT gpu_type, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds[1]) AS seconds
FROM launch_time GROUP BY gpu_type ORDER BY gpu_type
"""

_OF_GPUS = "SELECT * FROM launch_failure WHERE gpu = ANY(CAST(:gpus AS text[]))"

_UPSERT = """
INSERT INTO launch_failure (service, gpu, failures, times, failed_at, avoided_until, detail)
VALUES (:service, :gpu, :failures, :times, :failed_at, :avoided_until, :detail)
ON CONFLICT (service, gpu) DO UPDATE SET
    failures = excluded.failures, times = excluded.times, failed_at = excluded.failed_at,
    avoided_until = excluded.avoided_until, detail = excluded.detail
"""
