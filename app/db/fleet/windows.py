"""Sums of all nodes' readings over the loop's windows: what a tick sees, and what people are shown."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

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
