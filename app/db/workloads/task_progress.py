"""What targets, nodes and time make of tasks: where they are wanted, how far they came, who waits for long."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.listen import wake
from app.db.base.observation_rows import WindowedObservation
from app.db.operations import events
from app.db.workloads.tasks import PROGRESS, record_of
from app.loop.events import STARVED_AFTER_S, Starved, progress_event, starved_event
from app.store.event_limits import LimitedEvents
from app.store.store import AuditEvent
from app.store.task_book import TaskRecord, places_of, report_of, reported
from solvers.types.plan import BoundPlan
from solvers.types.state import GpuId, gpu_id


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


async def note_reports(
    connection: AsyncConnection,
    fresh: Sequence[WindowedObservation],
    received: datetime,
    limited: LimitedEvents,
) -> None:
    """Note what nodes report of tasks, in the order of the observations, and write the audit."""
    before = await _load(connection, fresh)
    after, lines = _taken(before, fresh, received)
    changed = [after[key] for key in sorted(after) if after[key] != before[key].record]
    if changed:
        # In the order of ids, as all writers of tasks do, so that two transactions cannot deadlock.
        await connection.execute(text(_SAVE), _columns(changed))
    await events.add_limited(connection, lines, limited)
    await _note_ignored(connection, before, after, fresh, received)
    # A task that is done leaves room that the next tick can give to others at once.
    if any(record.finished_at for record in changed):
        await wake(connection, "task")


async def note_starved(connection: AsyncConnection, now: datetime) -> int:
    """Write in the audit, once until it runs again, which tasks have not run for STARVED_AFTER_S; returns how many."""
    found = await connection.execute(
        text(_NOTE_STARVED),
        {"now": now, "before": now - timedelta(seconds=STARVED_AFTER_S)},
    )
    starved = sorted(
        (Starved(**row) for row in found.mappings()), key=lambda each: each.name
    )
    for each in starved:
        await events.add(connection, starved_event(each, now))
    return len(starved)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """An open task, by the name that its team gave it, and its record."""

    name: str
    record: TaskRecord


async def _load(
    connection: AsyncConnection, fresh: Sequence[WindowedObservation]
) -> Mapping[str, _Noted]:
    """Open tasks that are reported, or were running on what is reported; locked until the transaction ends."""
    names = sorted({task.name for entry in fresh for task in entry.observation.tasks})
    gpus = sorted(
        {
            gpu_id(entry.observation.node, gpu.index)
            for entry in fresh
            for gpu in entry.observation.gpus
        }
    )
    found = await connection.execute(text(_LOAD), {"names": names, "gpus": gpus})
    return {row.id: _Noted(name=row.name, record=record_of(row)) for row in found}


def _taken(
    before: Mapping[str, _Noted],
    fresh: Sequence[WindowedObservation],
    received: datetime,
) -> tuple[Mapping[str, TaskRecord], Sequence[AuditEvent]]:
    """The records after these observations, and what the audit says of them."""
    after = {key: each.record for key, each in before.items()}
    by_gpu = _by_gpu(after)
    lines: list[AuditEvent] = []
    for entry in fresh:
        report = report_of(entry.observation, entry.end, entry.held)
        # A task that should run on a reported GPU is looked at even where no reading names it: it is gone from there.
        affected = (report.readings.keys() & after.keys()).union(
            *(by_gpu[gpu] for gpu in report.gpus)
        )
        # Sorted, so that the audit's lines have the same order in every run.
        for key in sorted(affected):
            was, after[key] = after[key], reported(after[key], report)
            line = progress_event(
                before[key].name, was, after[key], node=report.node, at=received
            )
            if line is not None:
                lines.append(line)
    return after, lines


async def _note_ignored(
    connection: AsyncConnection,
    before: Mapping[str, _Noted],
    after: Mapping[str, TaskRecord],
    fresh: Sequence[WindowedObservation],
    received: datetime,
) -> None:
    """One line per node and task that the node says is finished although that cannot be."""
    ignored = sorted(
        {
            (entry.observation.node, before[task.name].name)
            for entry in fresh
            for task in entry.observation.tasks
            if task.state == "finished"
            and task.name in after
            and after[task.name].finished_at is None
        }
    )
    if ignored:
        columns = {
            "nodes": [node for node, _ in ignored],
            "tasks": [name for _, name in ignored],
        }
        await connection.execute(text(_NOTE_IGNORED), {"at": received, **columns})


def _by_gpu(records: Mapping[str, TaskRecord]) -> Mapping[GpuId, set[str]]:
    """The tasks that the target wants on each GPU."""
    by_gpu: defaultdict[GpuId, set[str]] = defaultdict(set)
    for key, record in records.items():
        if record.place is not None:
            by_gpu[record.place[0]].add(key)
    return by_gpu


def _columns(records: Sequence[TaskRecord]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {
        name: [getattr(record, name) for record in records] for name in PROGRESS
    }
    return {"id": [record.task.name for record in records], **columns}


# Without a state a task was never reported from its GPU, so a report that lacks it changes nothing.
_LOAD = """
SELECT * FROM task
WHERE finished_at IS NULL AND cancelled_at IS NULL
  AND (id = ANY(CAST(:names AS text[])) OR (state IS NOT NULL AND gpu = ANY(CAST(:gpus AS text[]))))
ORDER BY id FOR NO KEY UPDATE
"""

# A task that runs again may starve again: its mark is taken away, so that the audit says so once more.
_SAVE = """
UPDATE task SET state = w.state, done_iterations = w.done_iterations, iteration_ms = w.iteration_ms,
    last_ran_at = w.last_ran_at, finished_at = w.finished_at, ran_s = w.ran_s, starts = w.starts, swaps = w.swaps,
    starved_at = CASE WHEN w.state = 'running' THEN NULL ELSE starved_at END
FROM unnest(CAST(:id AS text[]), CAST(:state AS text[]), CAST(:done_iterations AS float8[]),
            CAST(:iteration_ms AS float8[]), CAST(:last_ran_at AS timestamptz[]), CAST(:finished_at AS timestamptz[]),
            CAST(:ran_s AS float8[]), CAST(:starts AS int[]), CAST(:swaps AS int[]))
     AS w (id, state, done_iterations, iteration_ms, last_ran_at, finished_at, ran_s, starts, swaps)
WHERE task.id = w.id
"""

# Once for good: lies about many tasks must not fill the audit, which is kept for ever.
_NOTE_IGNORED = """
INSERT INTO event (at, actor, kind, subject, reason)
SELECT :at, w.subject, 'TaskReportIgnored', w.subject, w.reason
FROM (SELECT 'node/' || node AS subject,
             format('it says that task %s is finished; but no target of the last hour put it there, it has begun '
                    'elsewhere since, or not all its iterations are done', task) AS reason
      FROM unnest(CAST(:nodes AS text[]), CAST(:tasks AS text[])) AS l (node, task)) AS w
WHERE NOT EXISTS (SELECT FROM event e
                  WHERE (e.subject, e.kind, e.reason) = (w.subject, 'TaskReportIgnored', w.reason))
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

# SKIP LOCKED: a task whose report is just being written may be running; the next round looks at it.
# `has_points` says whether anybody could plan it at all: the advice in the audit differs.
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
