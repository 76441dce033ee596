"""Failed launches as they are reported, counted per service, spare or task and GPU; too many make a line of the audit.

Spares make none: without them everything is served as planned.
"""

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
    is_spare_key,
    key_of,
    with_failure,
)
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
    replicas = await _replicas(connection, {failure.replica for _, failure in failed})
    reported = [
        (key_of(failure, replicas), gpu_id(node, failure.gpu_index), failure)
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
        and not is_spare_key(key[0])
    ]
    for each in new:
        await events.add(connection, launches_fail_event(received, each))
    if new:
        # The next period would do, but meanwhile nobody serves in the replica's place.
        await wake(connection, "launches fail")


async def load_avoided(
    connection: AsyncConnection, now: datetime
) -> tuple[AvoidedGpu, ...]:
    """What is avoided at that time, by service and GPU."""
    rows = await all_rows(connection, _AVOIDED, now=now)
    return tuple(AvoidedGpu(**row._mapping) for row in rows)


async def _replicas(connection: AsyncConnection, ids: set[str]) -> set[str]:
    """Those that are replicas of the target in force."""
    rows = await all_rows(connection, _OF_TARGET, ids=sorted(ids))
    return {row.replica for row in rows}


async def _known_gpus(connection: AsyncConnection, gpus: set[GpuId]) -> set[GpuId]:
    statement = "SELECT id FROM gpu WHERE id = ANY(CAST(:gpus AS text[]))"
    rows = await all_rows(connection, statement, gpus=sorted(gpus))
    return {GpuId(row.id) for row in rows}


async def _load(
    connection: AsyncConnection, gpus: set[GpuId]
) -> dict[tuple[str, GpuId], LaunchRecord]:
    # Without a lock of its own: whoever writes of a GPU has locked its node.
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


_OF_TARGET = """
SELECT r.replica FROM plan_replica r JOIN target t USING (plan_id)
WHERE upper_inf(t.valid) AND r.replica = ANY(CAST(:ids AS text[]))
"""

_AVOIDED = """
SELECT service, gpu, avoided_until AS until, detail FROM launch_failure WHERE avoided_until > :now
ORDER BY service COLLATE "C", gpu COLLATE "C"
"""

_OF_GPUS = "SELECT * FROM launch_failure WHERE gpu = ANY(CAST(:gpus AS text[]))"

_UPSERT = """
INSERT INTO launch_failure (service, gpu, failures, times, failed_at, avoided_until, detail)
VALUES (:service, :gpu, :failures, :times, :failed_at, :avoided_until, :detail)
ON CONFLICT (service, gpu) DO UPDATE SET
    failures = excluded.failures, times = excluded.times, failed_at = excluded.failed_at,
    avoided_until = excluded.avoided_until, detail = excluded.detail
"""
