"""Sums of all nodes' readings over the loop's windows: what a tick sees, and what people are shown."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import Observation
from app.db.base.observation_rows import WindowedObservation
from app.store.store import ServiceWindow
from app.store.windows import Sums, make_window, snapshot_numbers
from solvers.types.state import Service


async def load_windows(
    connection: AsyncConnection,
    now: datetime,
    window_s: float,
    planned: Sequence[Service],
    *,
    service: str | None = None,
) -> tuple[ServiceWindow, ...]:
    """The newest windows of every service, by time and name: as many as `planned` look back to, and some at least.

    `service`: only of that one.
    """
    # By number, as the store in memory does: both must show the same windows for the same moment.
    wanted = snapshot_numbers(now.timestamp(), window_s, planned)
    found = await connection.execute(
        text(
            "SELECT service, window_start, arrivals, served, in_slo, rejected, pending, latency_buckets "
            "FROM service_window "
            "WHERE window_start >= :start AND window_start < :end AND window_s = :window_s "
            "AND (CAST(:service AS text) IS NULL OR service = CAST(:service AS text)) "
            'ORDER BY window_start, service COLLATE "C"'
        ),
        {
            "start": datetime.fromtimestamp(wanted.start * window_s, UTC),
            "end": datetime.fromtimestamp(wanted.stop * window_s, UTC),
            "window_s": window_s,
            "service": service,
        },
    )
    return tuple(
        make_window(
            row.service,
            row.window_start.timestamp(),
            window_s,
            Sums(
                arrivals=row.arrivals,
                served=row.served,
                in_slo=row.in_slo,
                rejected=row.rejected,
                pending=row.pending,
                # Stored dense, since arrays add up by position; sparse here, where most buckets are empty.
                latency_buckets={
                    index: count
                    for index, count in enumerate(row.latency_buckets)
                    if count
                },
            ),
        )
        for row in found
    )


async def without_onlookers(
    connection: AsyncConnection, fresh: Sequence[WindowedObservation]
) -> list[WindowedObservation]:
    """The observations without what nodes say of services whose counts somebody pushes, where they have seen nothing.

    Each node that takes requests of a service without replicas says that none came. Where its load goes elsewhere that
    is no news: while who counts it is away, nothing is heard. A node with a replica of it is no onlooker.
    """
    idle = {name for entry in fresh for name in _only_seen(entry.observation)}
    if not idle:
        return list(fresh)
    found = await connection.execute(text(_PUSHED), {"services": sorted(idle)})
    others = {row.name for row in found}
    return [_without(entry, others) for entry in fresh]


def _only_seen(observation: Observation) -> Iterator[str]:
    """Services that the node has no replica of, and of which no request was there."""
    there = {replica.service for replica in observation.replicas}
    for each in observation.services:
        ended = each.served or each.rejected or each.gone
        is_busy = each.arrivals or each.queued or ended
        if not is_busy and each.service not in there:
            yield each.service


def _without(entry: WindowedObservation, others: Set[str]) -> WindowedObservation:
    left_out = others & frozenset(_only_seen(entry.observation))
    if not left_out:
        return entry
    kept = (each for each in entry.observation.services if each.service not in left_out)
    observation = msgspec.structs.replace(entry.observation, services=tuple(kept))
    return replace(entry, observation=observation)


# What was pushed is kept for two days.
_PUSHED = """
SELECT w.name FROM unnest(CAST(:services AS text[])) AS w (name)
WHERE EXISTS (SELECT FROM pushed_window p WHERE p.service = w.name)
"""


async def load_heard(
    connection: AsyncConnection, services: Sequence[str]
) -> frozenset[str]:
    """Those of the services of which anything was ever reported since they were created."""
    found = await connection.execute(text(_HEARD), {"services": list(services)})
    return frozenset(row.name for row in found)


# Totals by hour are kept for ever; windows have what came in this moment.
_HEARD = """
SELECT s.name FROM service s
WHERE s.name = ANY(:services) AND s.deleted_at IS NULL AND (
    EXISTS (SELECT FROM service_hour h WHERE h.service = s.name AND h.hour >= date_trunc('hour', s.created_at))
    OR EXISTS (SELECT FROM service_window w WHERE w.service = s.name AND w.window_start >= s.created_at)
)
"""
