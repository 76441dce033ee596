"""Observations into the database: many in one transaction, each exactly once, rows by COPY.

COPY has no ON CONFLICT, so new observations are told from replayed ones first, while their nodes are locked. Rows are
locked in one order everywhere (node, then launch_time, service_window, service_step, service_hour, token_step, then
task, each sorted by key): two processes that ingest at once wait for each other and never deadlock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.listen import WAKE_CHANNEL
from app.db.base.observation_rows import WindowedObservation, copy_all
from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow
from app.db.decisions import policies
from app.db.fleet.agent_boots import fresh_of, load_boots, rivals_of, save_sequences
from app.db.fleet.agent_events import note_refusals, note_shared_names
from app.db.fleet.gpu_health import HealthReport, save_health
from app.db.fleet.launches import note_failures, note_launch_times
from app.db.fleet.nodes import MAX_AHEAD
from app.db.fleet.overuses import note_overuses
from app.db.fleet.tokens import add_token_steps
from app.db.fleet.windows import without_onlookers
from app.db.workloads.task_progress import note_reports
from app.store.event_limits import LimitedEvents
from app.store.reportable import Ingested, Reportable, add_counts, admit, dropped_in
from app.store.windows import (
    NOTABLE_DEVIATIONS,
    Sums,
    WindowKey,
    add_all,
    engine_sums_of,
    parts_of,
    sums_of,
)


async def ensure_days(connection: AsyncConnection, days: Iterable[date]) -> None:
    """Make the partitions of these days where they are missing."""
    for day in sorted(days):
        await connection.execute(
            text("SELECT ensure_observation_day(:day)"), {"day": day}
        )


async def ingest(
    connection: AsyncConnection,
    placed: Sequence[WindowedObservation],
    received: datetime,
    reportable: Reportable,
    limited: LimitedEvents,
) -> Ingested:
    """Write observations in the connection's transaction; their days must exist. See `Store.ingest`."""
    # Nodes first: while one is locked, no other can write what it reported.
    ends = await _lock_nodes(
        connection, sorted({entry.observation.node for entry in placed})
    )
    known = [entry for entry in placed if entry.observation.node in ends]
    unknown = {entry.observation.node for entry in placed} - ends.keys()
    if not known:
        return Ingested(unknown_nodes=tuple(sorted(unknown)))
    boots = await load_boots(
        connection, sorted({entry.boot for entry in known}), received
    )
    refused = {entry.boot for entry in known} - boots.keys()
    known = [entry for entry in known if entry.boot in boots]
    acknowledged = {key: boot.last_sequence for key, boot in boots.items()}
    fresh = await fresh_of(connection, known, acknowledged)
    for entry in fresh:
        acknowledged[entry.boot] = max(
            acknowledged[entry.boot], entry.observation.sequence
        )
    fresh, dropped = _admitted(fresh, reportable, received)
    # Also where every observation is a replay: the agent was heard, whatever it repeats.
    await _mark_heard(connection, {entry.observation.node for entry in known}, received)
    if fresh:
        reports = [
            HealthReport(entry=each, agent_since=boots[each.boot].first_seen_at)
            for each in _newest(fresh, ends)
        ]
        strange_acks = await _write(connection, fresh, reports, received, limited)
        dropped = add_counts(dropped, {"acks": strange_acks})
        rivals = rivals_of(fresh, boots)
        await note_shared_names(connection, rivals, received, limited)
        await save_sequences(connection, acknowledged)
    return Ingested(
        acknowledged=acknowledged,
        unknown_nodes=tuple(sorted(unknown)),
        refused_boots=frozenset(refused),
        dropped=dropped,
    )


def _admitted(
    fresh: Sequence[WindowedObservation], reportable: Reportable, received: datetime
) -> tuple[list[WindowedObservation], Mapping[str, int]]:
    """The observations with that alone of which their nodes may report, and how much was left out, by kind."""
    admitted = [admit(entry.observation, reportable, received) for entry in fresh]
    taken = [
        replace(entry, observation=each.observation, held=each.held)
        if each.dropped or each.held
        else entry
        for entry, each in zip(fresh, admitted, strict=True)
    ]
    return taken, dropped_in(admitted)


async def _write(
    connection: AsyncConnection,
    fresh: Sequence[WindowedObservation],
    reports: Sequence[HealthReport],
    received: datetime,
    limited: LimitedEvents,
) -> int:
    """Write them, and of each node the newest report; returns how many acknowledgements were left out."""
    # The order of the locks that the module's docstring states.
    await copy_all(connection, fresh)
    newest = [each.entry for each in reports]
    await _save_status(connection, newest)
    await save_health(connection, reports, received, limited)
    await note_overuses(connection, newest, received, limited)
    await note_failures(connection, fresh, received)
    await note_launch_times(connection, fresh)
    strange_acks = await _save_acks(connection, fresh, received, limited)
    await add_windows(connection, await without_onlookers(connection, fresh))
    await add_hours(connection, fresh)
    await add_token_steps(connection, fresh)
    await note_reports(connection, fresh, received, limited)
    return strange_acks


async def _lock_nodes(
    connection: AsyncConnection, nodes: Sequence[str]
) -> dict[str, datetime | None]:
    """End of the newest window of each known node, locked until the transaction ends; None: unknown."""
    rows = await all_rows(connection, _LOCK_NODES, nodes=nodes, ahead=MAX_AHEAD)
    return {row.id: row.last_window_end for row in rows}


# By the database's clock, here and below: a mark that the clock of an API set into the future would else keep every
# report out until that time has come.
_LOCK_NODES = """
SELECT id, CASE WHEN last_window_end <= now() + CAST(:ahead AS interval) THEN last_window_end END AS last_window_end
FROM node WHERE id = ANY(:nodes) ORDER BY id FOR NO KEY UPDATE
"""


def _newest(
    fresh: Sequence[WindowedObservation], ends: dict[str, datetime | None]
) -> list[WindowedObservation]:
    """Per node the observation with the newest window, where it is newer than what is known; by node."""
    newest: dict[str, WindowedObservation] = {}
    for entry in fresh:
        node = entry.observation.node
        known = newest[node].end if node in newest else ends[node]
        if known is None or entry.end > known:
            newest[node] = entry
    return [newest[node] for node in sorted(newest)]


async def _mark_heard(
    connection: AsyncConnection, nodes: set[str], received: datetime
) -> None:
    await connection.execute(
        text(_MARK_HEARD),
        {"nodes": sorted(nodes), "at": received, "ahead": MAX_AHEAD},
    )


# `greatest` passes over what is unknown.
_MARK_HEARD = """
UPDATE node SET last_seen_at =
    greatest(:at, CASE WHEN last_seen_at <= now() + CAST(:ahead AS interval) THEN last_seen_at END)
WHERE id = ANY(:nodes)
"""


async def _save_status(
    connection: AsyncConnection, newest: Sequence[WindowedObservation]
) -> None:
    if newest:
        await connection.execute(
            text(
                "UPDATE node SET last_window_end = :end, observed_generation = :generation, boot = :boot, "
                "agent_version = :agent_version, clock_skew_s = :skew_s, problems = :problems, "
                "repartition = :repartition WHERE id = :node"
            ),
            [
                {
                    "node": entry.observation.node,
                    "end": entry.end,
                    "generation": entry.observation.generation,
                    "boot": entry.observation.boot,
                    "agent_version": entry.observation.agent_version,
                    "skew_s": entry.skew_s,
                    "problems": list(entry.observation.problems),
                    "repartition": list(entry.observation.repartition),
                }
                for entry in newest
            ],
        )


async def _save_acks(
    connection: AsyncConnection,
    fresh: Sequence[WindowedObservation],
    received: datetime,
    limited: LimitedEvents,
) -> int:
    """Keep what became of commands; returns how many acknowledgements were of commands that never were.

    Those are left out: a node could else fill the table, and the audit, with generations of its own making.
    """
    acks = {
        (entry.observation.node, ack.generation): ack
        for entry in fresh
        for ack in entry.observation.acks
    }
    if not acks:
        return 0
    # Before the acknowledgements: it compares them with those that are there.
    await note_refusals(connection, acks, received, limited)
    ordered = sorted(acks.items())
    kept = await connection.execute(
        text(_SAVE_ACKS),
        {
            "nodes": [node for (node, _), _ in ordered],
            "generations": [generation for (_, generation), _ in ordered],
            "statuses": [ack.status for _, ack in ordered],
            "details": [ack.detail for _, ack in ordered],
            "at": received,
        },
    )
    made = {(row.node, row.generation) for row in kept}
    return sum(
        (entry.observation.node, ack.generation) not in made
        for entry in fresh
        for ack in entry.observation.acks
    )


_SAVE_ACKS = """
INSERT INTO acknowledgement (node, generation, status, detail, at)
SELECT node, generation, w.status, w.detail, :at
FROM unnest(CAST(:nodes AS text[]), CAST(:generations AS bigint[]), CAST(:statuses AS text[]),
            CAST(:details AS text[])) AS w (node, generation, status, detail)
JOIN command USING (node, generation)
ON CONFLICT (node, generation) DO UPDATE SET status = excluded.status, detail = excluded.detail, at = excluded.at
RETURNING node, generation
"""


async def add_windows(
    connection: AsyncConnection, fresh: Sequence[WindowedObservation]
) -> None:
    """Add what services did to the loop's windows and their sums; wake the loop where more came than was planned."""
    # Read in this transaction: windows of another length than the loop's would never be seen by it.
    window_s = await policies.load_window_s(connection)
    sums = add_all(
        part
        for entry in fresh
        for part in parts_of(entry.observation, entry.end.timestamp(), window_s)
    )
    if not sums:
        return
    keys = sorted(sums)
    starts = [datetime.fromtimestamp(number * window_s, UTC) for _, number in keys]
    counts = {**_columns(keys, sums), "starts": starts, "window_s": window_s}
    buckets = [_dense(sums[key].latency_buckets) for key in keys]
    pending = [sums[key].pending for key in keys]
    values = {**counts, "pending": pending, "buckets": buckets}
    added = await connection.execute(text(_ADD_WINDOWS), values)
    await connection.execute(text(_ADD_STEPS), counts)
    await _wake_when_notable(connection, added.all(), window_s)


async def _wake_when_notable(
    connection: AsyncConnection, windows: Sequence[AnyRow], window_s: float
) -> None:
    """Wake the loop where the sums of these windows exceed what was planned."""
    await connection.execute(
        text(_WAKE_WHEN_NOTABLE),
        {
            "channel": WAKE_CHANNEL,
            "services": [row.service for row in windows],
            "arrivals": [row.arrivals for row in windows],
            "window_s": window_s,
            "deviations": NOTABLE_DEVIATIONS,
        },
    )


async def add_hours(
    connection: AsyncConnection, fresh: Sequence[WindowedObservation]
) -> None:
    """Add what services did to the hours."""
    # By the beginning of the agent's own window: reports need no more than a window's precision.
    sums = add_all(
        ((service, int(entry.start.timestamp()) // 3600), counts)
        for entry in fresh
        for service, counts in (
            *sums_of(entry.observation),
            *engine_sums_of(entry.observation),
        )
    )
    if sums:
        keys = sorted(sums)
        starts = [datetime.fromtimestamp(number * 3600, UTC) for _, number in keys]
        columns = _columns(keys, sums)
        columns["tokens"] = [sums[key].output_tokens for key in keys]
        for name in ("gone", "unmeasured"):
            columns[name] = [getattr(sums[key], name) for key in keys]
        for name in ("prompts", "found", "answers"):
            columns[name] = [getattr(sums[key].engine_tokens, name) for key in keys]
        await connection.execute(text(_ADD_HOURS), {**columns, "starts": starts})


def _columns(
    keys: Sequence[WindowKey], sums: dict[WindowKey, Sums]
) -> dict[str, list[object]]:
    counts = ("arrivals", "served", "in_slo", "rejected")
    columns = {name: [getattr(sums[key], name) for key in keys] for name in counts}
    return {"services": [service for service, _ in keys], **columns}


def _dense(buckets: dict[int, int]) -> str:
    """A histogram as PostgreSQL writes an array; `unnest` of ragged arrays would flatten them."""
    length = max(buckets, default=-1) + 1
    return f"{{{','.join(str(buckets.get(index, 0)) for index in range(length))}}}"


_COUNTS = """unnest(CAST(:services AS text[]), CAST(:starts AS timestamptz[]), CAST(:arrivals AS bigint[]),
            CAST(:served AS bigint[]), CAST(:in_slo AS bigint[]), CAST(:rejected AS bigint[])"""

_ADD_WINDOWS = f"""
INSERT INTO service_window AS s (service, window_start, window_s, arrivals, served, in_slo, rejected, pending,
    latency_buckets)
SELECT w.service, w.start, :window_s, w.arrivals, w.served, w.in_slo, w.rejected, w.pending, CAST(w.buckets AS bigint[])
FROM {_COUNTS}, CAST(:pending AS bigint[]), CAST(:buckets AS text[]))
     AS w (service, start, arrivals, served, in_slo, rejected, pending, buckets)
ON CONFLICT (service, window_start, window_s) DO UPDATE SET
    arrivals = s.arrivals + excluded.arrivals, served = s.served + excluded.served,
    in_slo = s.in_slo + excluded.in_slo, rejected = s.rejected + excluded.rejected,
    pending = s.pending + excluded.pending,
    latency_buckets = add_counts(s.latency_buckets, excluded.latency_buckets)
RETURNING service, arrivals
"""

# Rows are locked in the order in which they come: by key, as everywhere.
_ADD_STEPS = f"""
INSERT INTO service_step AS s (service, start, first_start, last_end, served, in_slo, rejected)
SELECT w.service, date_bin('5 minutes', w.start, 'epoch') AS step, min(w.start),
       max(w.start + make_interval(secs => CAST(:window_s AS float8))), sum(w.served), sum(w.in_slo), sum(w.rejected)
FROM {_COUNTS}) AS w (service, start, arrivals, served, in_slo, rejected)
GROUP BY 1, 2 ORDER BY w.service COLLATE "C", step
ON CONFLICT (service, start) DO UPDATE SET
    first_start = least(s.first_start, excluded.first_start), last_end = greatest(s.last_end, excluded.last_end),
    served = s.served + excluded.served, in_slo = s.in_slo + excluded.in_slo, rejected = s.rejected + excluded.rejected
"""

# Added, not replaced: every observation comes here once, since replayed ones were left out before.
_ADD_HOURS = f"""
INSERT INTO service_hour AS s (service, hour, arrivals, served, in_slo, rejected, output_tokens,
    prompt_tokens, found_tokens, answer_tokens, gone, unmeasured)
SELECT w.* FROM {_COUNTS}, CAST(:tokens AS bigint[]), CAST(:prompts AS bigint[]), CAST(:found AS bigint[]),
                 CAST(:answers AS bigint[]), CAST(:gone AS bigint[]), CAST(:unmeasured AS bigint[]))
     AS w (service, hour, arrivals, served, in_slo, rejected, output_tokens, prompt_tokens, found_tokens,
           answer_tokens, gone, unmeasured)
ON CONFLICT (service, hour) DO UPDATE SET
    arrivals = s.arrivals + excluded.arrivals, served = s.served + excluded.served,
    in_slo = s.in_slo + excluded.in_slo, rejected = s.rejected + excluded.rejected,
    output_tokens = s.output_tokens + excluded.output_tokens,
    prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
    found_tokens = s.found_tokens + excluded.found_tokens,
    answer_tokens = s.answer_tokens + excluded.answer_tokens,
    gone = s.gone + excluded.gone, unmeasured = s.unmeasured + excluded.unmeasured
"""

# As `is_notable`, over all services at once. Only a rise wakes the loop: a fall costs money until the next period, a
# rise costs requests. Requests for a service that is gone or never was do not: no tick could answer them. Nor does what
# was foreseen, where a plan leaves a part of it out, as for an exceeded budget: the next one would, too. The first
# request to a service at zero waits for a replica, so that it wakes the loop whatever was foreseen.
_WAKE_WHEN_NOTABLE = """
SELECT pg_notify(:channel, 'arrival rate') WHERE EXISTS (
    SELECT FROM unnest(CAST(:services AS text[]), CAST(:arrivals AS bigint[])) AS w (service, arrivals)
    JOIN service ON service.name = w.service AND service.deleted_at IS NULL
    JOIN service_version v ON v.service = service.name AND v.generation = service.generation
    LEFT JOIN LATERAL (SELECT arrival_rate_rps, greatest(arrival_rate_rps, high_rps) AS rate_rps FROM demand
                       WHERE demand.service = w.service AND method <> 'stated' ORDER BY at DESC LIMIT 1)
              AS planned ON true
    CROSS JOIN LATERAL (SELECT coalesce(planned.rate_rps, 0) * :window_s AS expected) AS e
    WHERE (w.arrivals > 0 AND v.min_replicas + v.buffer_replicas = 0 AND coalesce(planned.arrival_rate_rps, 0) = 0)
       OR w.arrivals > e.expected + :deviations * sqrt(greatest(e.expected, 1)))
"""
