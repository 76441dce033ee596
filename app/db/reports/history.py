"""The past of one service and of one GPU in equal steps, few enough for a chart, whatever the period.

The database sums: an answer is as small for a week as for an hour, and no query reads more raw rows than six hours
hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow

SAMPLED_S = 60
"""A longer step is read in its first minute only: a week of one GPU is 600,000 readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySteps:
    """The steps of [since, until): they begin at multiples of `step_s`."""

    since: datetime
    until: datetime
    step_s: float

    @property
    def binds(self) -> dict[str, object]:
        """As the statements below name them."""
        step = timedelta(seconds=self.step_s)
        return {"since": self.since, "until": self.until, "step": step}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStep:
    """A service over one step; what was not counted, measured or planned is None."""

    start: datetime
    rate_rps: float | None
    attainment: float | None
    """That of the whole hour where only its sums are left."""
    latency_buckets: tuple[int, ...]
    planned_rps: float | None
    low_rps: float | None
    high_rps: float | None


async def load_service(
    connection: AsyncConnection,
    service: str,
    steps: HistorySteps,
    *,
    horizon_s: float,
) -> tuple[ServiceStep, ...]:
    """Steps of which anything is known, by time. `horizon_s`: how far ahead forecasts look."""
    binds = {
        **steps.binds,
        "service": service,
        "horizon": timedelta(seconds=horizon_s),
    }
    return tuple(
        # Sums of bigint are numeric in PostgreSQL, and come back as Decimal.
        ServiceStep(
            **{**row._mapping, "latency_buckets": tuple(map(int, row.latency_buckets))}
        )
        for row in await connection.execute(text(_SERVICE), binds)
    )


async def load_gpu(
    connection: AsyncConnection, gpu: str, steps: HistorySteps
) -> Sequence[AnyRow]:
    """Means over every step that has readings, oldest first; of a step longer than SAMPLED_S over its beginning."""
    read = timedelta(seconds=min(steps.step_s, SAMPLED_S))
    return await all_rows(connection, _GPU, gpu=gpu, read=read, **steps.binds)


# MATERIALIZED: the windows are read once for the sums and the buckets. Histograms are summed by position; they differ
# in length, since trailing zeros are not stored. Windows are kept for hours: before the first of them, requests are
# known by five minutes and attainment by the hour. What a person stated for a preview is no plan's rate.
_SERVICE = """
WITH kept AS (
    SELECT date_bin('5 minutes', coalesce(min(window_start), 'infinity'), 'epoch') AS since
    FROM service_window WHERE service = :service
), part AS MATERIALIZED (
    SELECT date_bin(CAST(:step AS interval), window_start, 'epoch') AS start, window_s, arrivals, served, in_slo,
           rejected, latency_buckets
    FROM service_window WHERE service = :service AND window_start >= :since AND window_start < :until
), buckets AS (
    SELECT start, array_agg(count ORDER BY position) AS latency_buckets
    FROM (SELECT start, position, sum(count) AS count
          FROM part CROSS JOIN unnest(latency_buckets) WITH ORDINALITY AS b (count, position)
          GROUP BY start, position) AS counted
    GROUP BY start
), counted AS (
    SELECT start, sum(arrivals) / sum(window_s) AS rate_rps,
           sum(in_slo)::float8 / nullif(sum(served + rejected), 0) AS attainment
    FROM part GROUP BY start
), summed AS (
    SELECT date_bin(CAST(:step AS interval), r.start, 'epoch') AS start, sum(arrivals) / sum(heard_s) AS rate_rps
    FROM service_rate r CROSS JOIN kept
    WHERE service = :service AND r.start >= :since AND r.start < least(CAST(:until AS timestamptz), kept.since)
    GROUP BY 1
), requests AS (
    SELECT start, coalesce(c.rate_rps, s.rate_rps) AS rate_rps, c.attainment, c.start IS NULL AS is_old
    FROM counted c FULL JOIN summed s USING (start)
), planned AS (
    SELECT date_bin(CAST(:step AS interval), at, 'epoch') AS start, avg(arrival_rate_rps) AS planned_rps
    FROM demand
    WHERE service = :service AND at >= :since AND at < :until AND method <> 'stated'
    GROUP BY 1
), foreseen AS (
    SELECT date_bin(CAST(:step AS interval), at + CAST(:horizon AS interval), 'epoch') AS start,
           avg(low_rps) AS low_rps, avg(high_rps) AS high_rps
    FROM demand
    WHERE service = :service AND at >= CAST(:since AS timestamptz) - CAST(:horizon AS interval)
      AND at < CAST(:until AS timestamptz) - CAST(:horizon AS interval) AND low_rps IS NOT NULL
    GROUP BY 1
)
SELECT start, q.rate_rps, coalesce(q.attainment, h.attainment) AS attainment,
       coalesce(b.latency_buckets, '{}') AS latency_buckets, p.planned_rps, f.low_rps, f.high_rps
FROM requests q FULL JOIN planned p USING (start) FULL JOIN foreseen f USING (start) LEFT JOIN buckets b USING (start)
LEFT JOIN LATERAL (
    SELECT sum(in_slo)::float8 / nullif(sum(served + rejected), 0) AS attainment FROM service_hour
    WHERE q.is_old AND service = :service AND hour >= date_trunc('hour', start, 'UTC')
      AND hour < start + CAST(:step AS interval)
) AS h ON true
ORDER BY start
"""

# Weighted by the windows' lengths: after a change of the agents' period they differ.
_GPU = """
SELECT s.at, r.power_w, r.memory_used_mib, r.clock_mhz, r.busy_percent
FROM generate_series(CAST(:since AS timestamptz), CAST(:until AS timestamptz), CAST(:step AS interval)) AS s (at)
CROSS JOIN LATERAL (
    SELECT count(*) AS readings,
           sum(power_w * window_s) / sum(window_s) FILTER (WHERE power_w IS NOT NULL) AS power_w,
           sum(memory_used_mib * window_s) / sum(window_s) FILTER (WHERE memory_used_mib IS NOT NULL)
               AS memory_used_mib,
           sum(clock_mhz * window_s) / sum(window_s) FILTER (WHERE clock_mhz IS NOT NULL) AS clock_mhz,
           sum(busy_percent * window_s) / sum(window_s) FILTER (WHERE busy_percent IS NOT NULL) AS busy_percent
    FROM gpu_observation
    WHERE gpu = :gpu AND window_start >= s.at AND window_start < s.at + CAST(:read AS interval)
      AND window_start < CAST(:until AS timestamptz)
) AS r
WHERE r.readings > 0
ORDER BY s.at
"""
