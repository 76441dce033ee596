"""Windows that somebody pushes for a service: each once, added to the same sums as what agents see."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import Observation, ServiceReading
from app.base.errors import Conflict
from app.db.base.observation_rows import WindowedObservation
from app.db.base.tables import AnyRow
from app.db.base.transaction import lock_object
from app.db.fleet.ingest import add_hours, add_windows

OLDEST_S = 86_400.0
"""Older windows are refused; `Retention.pushed_days` keeps longer what would repeat them."""
MAX_SOURCES = 64
"""The maximum of a service within an hour."""
SLACK = timedelta(milliseconds=1)
"""Two windows may overlap by so much: ends are sums of rounded numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """One window of one source."""

    source: str
    start_s: float
    """Unix seconds."""
    window_s: float
    reading: ServiceReading
    sha256: bytes
    """The digest of the entire report."""

    @property
    def start(self) -> datetime:
        return datetime.fromtimestamp(self.start_s, UTC)

    @property
    def end(self) -> datetime:
        return self.start + timedelta(seconds=self.window_s)


async def save(connection: AsyncConnection, pushed: Pushed, now: datetime) -> bool:
    """Add a window; False: it was there. Raises Conflict where it contradicts others, or a source is one too many."""
    service = pushed.reading.service
    # By service, not by source: the number of sources is checked, too.
    await lock_object(connection, "Telemetry", service)
    overlapping = await _overlapping(connection, pushed)
    # The same window with the same digest is a repeated request; with another digest it contradicts the first.
    if any(
        row.window_start == pushed.start and row.sha256 == pushed.sha256
        for row in overlapping
    ):
        return False
    if overlapping:
        raise Conflict(
            f"source {pushed.source!r} has pushed another window from {overlapping[0].window_start.isoformat()} for "
            f"{overlapping[0].window_s:g} s; windows of a source must not overlap"
        )
    await _check_sources(connection, pushed, now)
    await connection.execute(text(_INSERT), _values(pushed, now))
    placed = _as_observation(pushed, now)
    await add_windows(connection, (placed,))
    await add_hours(connection, (placed,))
    return True


def _as_observation(pushed: Pushed, now: datetime) -> WindowedObservation:
    # In the shape of an agent's report, so that both are added up by the same rules. Boot and sequence are not read:
    # `pushed_window` tells repeated windows apart.
    observation = Observation(
        node=pushed.source,
        boot="pushed",
        sequence=1,
        window_start_s=pushed.start_s,
        window_s=pushed.window_s,
        generation=0,
        services=(pushed.reading,),
    )
    return WindowedObservation(
        observation=observation, received=now, start=pushed.start, end=pushed.end
    )


async def _overlapping(connection: AsyncConnection, pushed: Pushed) -> Sequence[AnyRow]:
    values = {
        "service": pushed.reading.service,
        "source": pushed.source,
        "start": pushed.start + SLACK,
        "end": pushed.end - SLACK,
        "earliest": pushed.start - timedelta(hours=1),
    }
    return (await connection.execute(text(_OVERLAPPING), values)).all()


async def _check_sources(
    connection: AsyncConnection, pushed: Pushed, now: datetime
) -> None:
    """Only somebody new is counted with the others."""
    values = {
        "service": pushed.reading.service,
        "source": pushed.source,
        "since": now - timedelta(hours=1),
    }
    others = (await connection.execute(text(_OTHER_SOURCES), values)).scalar_one()
    if others >= MAX_SOURCES:
        raise Conflict(
            f"{MAX_SOURCES} sources already push for this service; add up their counts before pushing them"
        )


def _values(pushed: Pushed, now: datetime) -> dict[str, object]:
    names = ("service", "arrivals", "served", "in_slo", "rejected")
    return {
        **{name: getattr(pushed.reading, name) for name in names},
        "source": pushed.source,
        "start": pushed.start,
        "window_s": pushed.window_s,
        "at": now,
        "sha256": pushed.sha256,
    }


# No window is longer than an hour, so those that began earlier cannot reach into this one.
_OVERLAPPING = """
SELECT window_start, window_s, sha256 FROM pushed_window
WHERE service = :service AND source = :source AND window_start >= :earliest AND window_start < :end
  AND window_start + window_s * interval '1 second' > :start
ORDER BY window_start
"""

_OTHER_SOURCES = """
SELECT CASE WHEN EXISTS (
    SELECT FROM pushed_window WHERE service = :service AND source = :source AND window_start > :since
) THEN 0 ELSE (
    SELECT count(DISTINCT source) FROM pushed_window WHERE service = :service AND window_start > :since
) END
"""

_INSERT = """
INSERT INTO pushed_window
    (service, source, window_start, window_s, received_at, arrivals, served, in_slo, rejected, sha256)
VALUES (:service, :source, :start, :window_s, :at, :arrivals, :served, :in_slo, :rejected, :sha256)
"""
