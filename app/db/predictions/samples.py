"""Samples: measurements of networks on GPU types, each kept once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.columns import JSON
from app.db.base.tables import AnyRow
from app.store.store import SERVED, SampleRow
from solvers.predict.data.samples import (
    Neighbour,
    NeighbourSet,
    Samples,
    make_queries,
    make_samples,
)

SERVED_EACH = 3
"""Served samples of one condition that a fit works on, the newest: an hour of them."""
SERVED_PART = 4
"""One part in SERVED_PART of what a fit works on may have been served, on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCount:
    """How many samples there are of a network on a GPU type."""

    network: str
    gpu_type: str
    samples: int
    newest_at: datetime


async def add(
    connection: AsyncConnection, rows: Sequence[SampleRow], *, at: datetime
) -> int:
    """Keep these samples; returns how many were not there yet. Networks and GPU types must exist."""
    if not rows:
        return 0
    added = await connection.execute(
        _ADD, {"rows": [_document(row) for row in rows], "at": at}
    )
    return added.rowcount


async def load(
    connection: AsyncConnection,
    *,
    network: str,
    own_limit: int,
    other_limit: int,
    gpu_type: str | None = None,
    since: datetime | None = None,
) -> Samples:
    """The newest samples of a network, and of its neighbours and others on the same GPU types; in the order of keys.

    Those that people sent come first. What was served may fill a quarter of each limit with them, the network's own
    with the newest SERVED_EACH of a condition: there is ever more of it, and of few conditions.

    `gpu_type`: only the network's own on this one. `since`: only those that came in from then on.
    """
    wanted = {"network": network, "gpu_type": gpu_type, "since": since}
    found = await connection.execute(
        text(_LOAD), {**wanted, "own_limit": own_limit, "other_limit": other_limit}
    )
    return _samples(found.all())


def _samples(rows: Sequence[AnyRow]) -> Samples:
    def numbers(name: str) -> list[float]:
        # What was not measured is NaN in the arrays, which have no null.
        values = [row._mapping[name] for row in rows]
        return [math.nan if value is None else value for value in values]

    at = make_queries(
        [row.network for row in rows],
        [row.gpu_type for row in rows],
        batch=numbers("batch"),
        sm_percent=numbers("sm_percent"),
        clock_mhz=numbers("clock_mhz"),
        time_quota_percent=numbers("time_quota_percent"),
        power_limit_w=numbers("power_limit_w"),
        neighbours=[_neighbours_of(row) for row in rows],
    )
    return make_samples(
        at,
        numbers("latency_ms"),
        power_w=numbers("power_w"),
        memory_mib=numbers("memory_mib"),
        l2_util_percent=numbers("l2_util_percent"),
    )


async def count(
    connection: AsyncConnection, *, network: str | None = None
) -> tuple[SampleCount, ...]:
    """Samples by network and GPU type."""
    found = await connection.execute(
        text(
            "SELECT network, gpu_type, count(*) AS samples, max(received_at) AS newest_at FROM sample "
            "WHERE CAST(:network AS text) IS NULL OR network = :network "
            'GROUP BY network, gpu_type ORDER BY network COLLATE "C", gpu_type COLLATE "C"'
        ),
        {"network": network},
    )
    return tuple(SampleCount(**row._mapping) for row in found)


async def list_unfitted(
    connection: AsyncConnection,
) -> tuple[tuple[str, datetime], ...]:
    """Networks with samples newer than their fit on the GPU type, and the newest one's time; longest waiting first."""
    return tuple(
        (row.network, row.newest_at)
        for row in await connection.execute(text(_UNFITTED))
    )


async def remove(
    connection: AsyncConnection,
    network: str,
    *,
    gpu_type: str | None,
    source: str | None,
    before: datetime | None,
) -> int:
    """Forget samples of a network: all of them, or those that agree with everything that is given. Returns how many."""
    removed = await connection.execute(
        text(_REMOVE),
        {"network": network, "gpu_type": gpu_type, "source": source, "before": before},
    )
    return removed.rowcount


async def keep_newest_served(connection: AsyncConnection, limit: int) -> None:
    """Forget what was served but for the newest samples of every network on every GPU type."""
    await connection.execute(text(_FORGET_SERVED), {"limit": limit})


def _document(row: SampleRow) -> Mapping[str, object]:
    return {
        **{field.name: getattr(row, field.name) for field in fields(row)},
        # Sorted, so that the unique index knows the same set again in whatever order it is sent.
        "neighbours": sorted([list(neighbour) for neighbour in row.neighbours]),
        "measured_at": None if row.measured_at is None else row.measured_at.isoformat(),
    }


def _neighbours_of(row: AnyRow) -> NeighbourSet:
    return tuple(
        Neighbour(network=name, batch=batch, sm_percent=share)
        for name, batch, share in row.neighbours
    )


_COLUMNS = (
    "network, gpu_type, batch, sm_percent, clock_mhz, time_quota_percent, power_limit_w, neighbours, latency_ms, "
    "power_w, memory_mib, l2_util_percent, source, measured_at"
)

# One document instead of an array per column: a sample may have neighbours, which are a list themselves.
_ADD = text(
    f"""
INSERT INTO sample ({_COLUMNS}, received_at)
SELECT {_COLUMNS}, :at FROM jsonb_to_recordset(:rows) AS w (
    network text, gpu_type text, batch float8, sm_percent float8, clock_mhz float8, time_quota_percent float8,
    power_limit_w float8, neighbours jsonb, latency_ms float8, power_w float8, memory_mib float8,
    l2_util_percent float8, source text, measured_at timestamptz)
ON CONFLICT DO NOTHING
"""
).bindparams(bindparam("rows", type_=JSON))

# Of the others the newest, whatever their network: they tell how networks get on with each other.
_IS_WANTED = (
    "(CAST(:since AS timestamptz) IS NULL OR received_at >= :since) "
    "AND (CAST(:gpu_type AS text) IS NULL OR gpu_type = :gpu_type)"
)
_NEWEST = "ORDER BY received_at DESC, id DESC LIMIT"
_LOAD = f"""
WITH ranked AS (
    SELECT id, received_at, row_number() OVER (
        PARTITION BY gpu_type, sm_percent, round(batch), clock_mhz, neighbours ORDER BY received_at DESC, id DESC
    ) AS place FROM sample WHERE network = :network AND source = '{SERVED}' AND {_IS_WANTED}
), own AS (
    (SELECT * FROM sample WHERE network = :network AND source <> '{SERVED}' AND {_IS_WANTED} {_NEWEST} :own_limit)
    UNION ALL
    SELECT * FROM sample WHERE id IN (
        SELECT id FROM ranked WHERE place <= {SERVED_EACH} {_NEWEST} CAST(:own_limit AS bigint) / {SERVED_PART})
), others AS NOT MATERIALIZED (
    SELECT * FROM sample WHERE network <> :network AND gpu_type IN (SELECT gpu_type FROM own)
)
SELECT * FROM own
UNION ALL (SELECT * FROM others WHERE source <> '{SERVED}' {_NEWEST} :other_limit)
UNION ALL (SELECT * FROM others WHERE source = '{SERVED}' {_NEWEST} CAST(:other_limit AS bigint) / {SERVED_PART})
ORDER BY id
"""

# What was served is no reason for a refit: it comes all the time, and corrections follow it already.
_UNFITTED = f"""
SELECT s.network, max(s.received_at) AS newest_at FROM sample s
LEFT JOIN fit f ON f.network = s.network AND f.gpu_type = s.gpu_type AND f.quantity = 'latency_ms' AND f.is_current
WHERE s.source <> '{SERVED}' AND (f.id IS NULL OR s.received_at > f.created_at)
GROUP BY s.network ORDER BY min(s.received_at), s.network COLLATE "C"
"""

_REMOVE = """
DELETE FROM sample WHERE network = :network
  AND (CAST(:gpu_type AS text) IS NULL OR gpu_type = :gpu_type) AND (CAST(:source AS text) IS NULL OR source = :source)
  AND (CAST(:before AS timestamptz) IS NULL OR received_at < :before)
"""

_FORGET_SERVED = f"""
DELETE FROM sample WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY network, gpu_type ORDER BY received_at DESC) AS place
        FROM sample WHERE source = '{SERVED}'
    ) AS ranked WHERE place > :limit)
"""
