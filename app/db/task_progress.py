"""What targets, nodes and time make of tasks: where they are wanted, how far they came, who waits for long."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.control.store import Event
from app.control.task_book import TaskRecord, places_of, report_of, reported
from app.control.task_events import STARVED_AFTER_S, Starved, progress_event, starved_event
from app.db import events
from app.db.observation_rows import Placed
from app.db.tasks import record_of
from solvers.plan import BoundPlan
from solvers.state import gpu_id


async def note_places(connection: AsyncConnection, target: BoundPlan) -> None:
    """Note where a new target wants each task; one that is to be elsewhere runs no more from now on."""
    places = sorted(places_of(target).items())
    await connection.execute(
        text(_NOTE_PLACES),
        {
            "ids": [name for name, _ in places],
            "gpus": [gpu for _, (gpu, _) in places],
            "sm_percents": [sm_percent for _, (_, sm_percent) in places],
        },
    )


async def note_reports(connection: AsyncConnection, fresh: Sequence[Placed], received: datetime, wake: str) -> None:
    """Note what nodes report of tasks, in the order of the observations, and write the audit.

    `wake`: the channel that is notified when a task is done, since its room is free.
    """
    noted = [await _load(connection, fresh)]
    lines: list[Event] = []
    for entry in fresh:
        noted.append(_after(noted[-1], entry))
        lines += _events(noted[-2], noted[-1], entry.observation.node, received)
    changed = [each for name, each in sorted(noted[-1].items()) if each.record != noted[0][name].record]
    if changed:
        await connection.execute(text(_SAVE), [_columns(each.record) for each in changed])
    for line in lines:
        await events.add(connection, line)
    if any(each.record.finished_at is not None for each in changed):
        await connection.execute(text("SELECT pg_notify(:channel, 'task')"), {"channel": wake})


async def note_starved(connection: AsyncConnection, now: datetime) -> int:
    """Write in the audit, once until it runs again, which tasks have not run for STARVED_AFTER_S; returns how many."""
    found = await connection.execute(
        text(_NOTE_STARVED), {"now": now, "before": now - timedelta(seconds=STARVED_AFTER_S)}
    )
    starved = sorted((Starved(**row) for row in found.mappings()), key=lambda each: each.name)
    for each in starved:
        await events.add(connection, starved_event(each, now))
    return len(starved)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """An open task, by the name that its team gave it, and its record."""

    name: str
    record: TaskRecord


async def _load(connection: AsyncConnection, fresh: Sequence[Placed]) -> Mapping[str, _Noted]:
    """Open tasks that are reported, or were running on what is reported; locked until the transaction ends."""
    names = sorted({task.name for entry in fresh for task in entry.observation.tasks})
    gpus = sorted({gpu_id(entry.observation.node, gpu.index) for entry in fresh for gpu in entry.observation.gpus})
    found = await connection.execute(text(_LOAD), {"names": names, "gpus": gpus})
    return {row.id: _Noted(name=row.name, record=record_of(row)) for row in found}


def _after(noted: Mapping[str, _Noted], entry: Placed) -> Mapping[str, _Noted]:
    """The same tasks after one more observation."""
    report = report_of(entry.observation, entry.end)
    return {key: replace(each, record=reported(each.record, report)) for key, each in noted.items()}


def _events(
    before: Mapping[str, _Noted], after: Mapping[str, _Noted], node: str, received: datetime
) -> Iterable[Event]:
    for key, each in sorted(after.items()):
        line = progress_event(each.name, before[key].record, each.record, node=node, at=received)
        if line is not None:
            yield line


def _columns(record: TaskRecord) -> dict[str, object]:
    return {
        "id": record.task.name,
        "state": record.state,
        "done_iterations": record.done_iterations,
        "iteration_ms": record.iteration_ms,
        "last_ran_at": record.last_ran_at,
        "finished_at": record.finished_at,
        "ran_s": record.ran_s,
        "starts": record.starts,
        "swaps": record.swaps,
    }


_LOAD = """
SELECT * FROM task
WHERE finished_at IS NULL AND cancelled_at IS NULL
  AND (id = ANY(CAST(:names AS text[])) OR (state IS NOT NULL AND gpu = ANY(CAST(:gpus AS text[]))))
ORDER BY id FOR NO KEY UPDATE
"""

_SAVE = """
UPDATE task SET state = :state, done_iterations = :done_iterations, iteration_ms = :iteration_ms,
    last_ran_at = :last_ran_at, finished_at = :finished_at, ran_s = :ran_s, starts = :starts, swaps = :swaps,
    starved_at = CASE WHEN :state = 'running' THEN NULL ELSE starved_at END
WHERE id = :id
"""

# Locked in the order of ids, as `_LOAD` does.
_NOTE_PLACES = """
UPDATE task SET gpu = w.gpu, sm_percent = w.sm_percent, state = NULL
FROM (
    SELECT t.id, p.gpu, p.sm_percent FROM task t
    LEFT JOIN unnest(CAST(:ids AS text[]), CAST(:gpus AS text[]), CAST(:sm_percents AS float8[]))
         AS p (id, gpu, sm_percent) ON p.id = t.id
    WHERE t.finished_at IS NULL AND t.cancelled_at IS NULL
      AND (t.gpu IS DISTINCT FROM p.gpu OR t.sm_percent IS DISTINCT FROM p.sm_percent)
    ORDER BY t.id FOR NO KEY UPDATE OF t
) AS w
WHERE task.id = w.id
"""

_NOTE_STARVED = """
UPDATE task SET starved_at = :now
WHERE id IN (
    SELECT id FROM task
    WHERE finished_at IS NULL AND cancelled_at IS NULL AND starved_at IS NULL AND state IS DISTINCT FROM 'running'
      AND coalesce(last_ran_at, submitted_at) <= :before
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING name, network, batch,
    CAST(extract(epoch FROM :now - coalesce(last_ran_at, submitted_at)) AS float8) AS waiting_s,
    EXISTS (
        SELECT FROM profile p JOIN profile_point o ON o.profile_id = p.id
        WHERE p.is_current AND p.network = task.network AND o.batch = task.batch
          AND p.gpu_type IN (SELECT gpu_type FROM gpu)
    ) AS has_points
"""
