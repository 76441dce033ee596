"""Arrival rates over weeks, in steps of five minutes: summed from the loop's windows, or taken from a trace.

Summed from windows, not fed by observations: the windows know of how many seconds anybody reported, and what comes in
every second is not written twice. A window that comes more than an hour late is not added.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from solvers.forecast.room import Outcomes
from solvers.forecast.seasons import COARSE_S
from solvers.forecast.types import RequestSeries

LATENESS = timedelta(hours=1)
"""How far back sums are made again, for windows that came late."""

MIN_HEARD_S = COARSE_S / 2
"""Five minutes of which less was heard count as not heard."""


async def roll_up_rates(connection: AsyncConnection, now: datetime) -> None:
    """Bring service_rate up to the last full five minutes. Two that do it at once wait for each other."""
    # A step that still runs would be taken for a quiet one.
    until = datetime.fromtimestamp(now.timestamp() // COARSE_S * COARSE_S, UTC)
    await connection.execute(text("SELECT FROM roll_up FOR UPDATE"))
    await connection.execute(
        text(_SUM_WINDOWS), {"until": until, "lateness": LATENESS, "step_s": COARSE_S}
    )
    await connection.execute(
        text("UPDATE roll_up SET rates_until = greatest(rates_until, :until)"),
        {"until": until},
    )


async def load_rates(
    connection: AsyncConnection,
    services: Sequence[str],
    *,
    since: datetime,
    until: datetime,
) -> dict[str, RequestSeries]:
    """Requests in each five minutes of [since, until), by service; NaN where nothing was heard.

    A service of which nothing was heard at all is not there.
    """
    found = await connection.execute(
        text(_LOAD),
        {
            "services": list(services),
            "since": since,
            "until": until,
            "min_heard_s": MIN_HEARD_S,
        },
    )
    return {
        row.service: dense_series(
            row.numbers, row.arrivals, COARSE_S, until_s=until.timestamp()
        )
        for row in found
    }


async def load_windows(
    connection: AsyncConnection,
    services: Sequence[str],
    *,
    window_s: float,
    since: datetime,
    until: datetime,
) -> dict[str, RequestSeries]:
    """Requests in each of the loop's windows that start in [since, until), by service; NaN where there is none.

    A service without any window is not there.
    """
    found = await connection.execute(
        text(_LOAD_WINDOWS),
        {
            "services": list(services),
            "window_s": window_s,
            "since": since,
            "until": until,
        },
    )
    return {
        row.service: dense_series(row.numbers, row.arrivals, window_s) for row in found
    }


async def load_outcomes(
    connection: AsyncConnection,
    openings_s: Mapping[str, float],
    *,
    since: datetime,
    counted_from: datetime,
    until: datetime,
) -> dict[str, Outcomes]:
    """What became of the requests of [counted_from, until), by service.

    openings_s: by service; what comes so soon after its first window is left out, where that lies after `since`.
    """
    found = await connection.execute(
        text(_LOAD_OUTCOMES),
        {
            "services": list(openings_s),
            "openings_s": list(openings_s.values()),
            "since": since,
            "counted_from": counted_from,
            "until": until,
        },
    )
    return {
        row.service: Outcomes(float(row.finished), float(row.late), row.heard_s)
        for row in found
    }


async def add_trace(
    connection: AsyncConnection, service: str, trace: RequestSeries
) -> int:
    """Write a trace down as the history of a service, where nothing was measured; returns how many rows were new.

    trace: windows of five minutes, NaN where nothing is known.
    """
    # Steps of another length would be read as arrivals of five minutes.
    assert trace.window_s == COARSE_S, f"a trace in windows of {trace.window_s} s"
    heard = trace.heard
    added = await connection.execute(
        text(
            "INSERT INTO service_rate (service, start, heard_s, arrivals) "
            "SELECT :service, to_timestamp(w.start_s), :step_s, w.arrivals "
            "FROM unnest(CAST(:starts_s AS double precision[]), CAST(:arrivals AS double precision[])) "
            "AS w (start_s, arrivals) ON CONFLICT (service, start) DO NOTHING"
        ),
        {
            "service": service,
            "step_s": COARSE_S,
            "starts_s": trace.starts_s(heard).tolist(),
            "arrivals": trace.arrivals[heard].tolist(),
        },
    )
    return added.rowcount


def dense_series(
    numbers: Sequence[int],
    arrivals: Sequence[float],
    window_s: float,
    *,
    until_s: float | None = None,
) -> RequestSeries:
    """A series from the windows that there are, NaN between them, and up to `until_s` where that is later.

    numbers: start of each window divided by its length, rising; at least one.
    """
    first, last = numbers[0], numbers[-1]
    if until_s is not None:
        last = max(last, int(until_s // window_s) - 1)
    # NaN, not 0: nothing heard is no evidence that nothing arrived.
    counts = np.full(last - first + 1, np.nan)
    counts[np.asarray(numbers) - first] = arrivals
    return RequestSeries(start_s=first * window_s, window_s=window_s, arrivals=counts)


# Sums replace sums, so that a repeated roll-up counts nothing twice; equal rows are not written again. Windows of two
# lengths can overlap while the policy changes its window: no service can have been heard for longer than the step.
_SUM_WINDOWS = """
INSERT INTO service_rate AS r (service, start, heard_s, arrivals)
SELECT w.service, date_bin(make_interval(secs => :step_s), w.window_start, 'epoch') AS bin,
       least(sum(w.window_s), :step_s), sum(w.arrivals)
FROM service_window w
WHERE w.window_start >= (SELECT rates_until - CAST(:lateness AS interval) FROM roll_up) AND w.window_start < :until
GROUP BY w.service, bin ORDER BY w.service, bin
ON CONFLICT (service, start) DO UPDATE SET heard_s = excluded.heard_s, arrivals = excluded.arrivals
WHERE (r.heard_s, r.arrivals) IS DISTINCT FROM (excluded.heard_s, excluded.arrivals)
"""

# 300 is COARSE_S. What was heard for a part of a step stands for all of it.
_LOAD = """
SELECT service, array_agg((extract(epoch FROM start) / 300)::bigint ORDER BY start) AS numbers,
       array_agg(arrivals * 300 / heard_s ORDER BY start) AS arrivals
FROM service_rate
WHERE service = ANY(:services) AND start >= :since AND start < :until AND heard_s >= :min_heard_s
GROUP BY service
"""

# Windows of another length, from before a change of the policy, do not belong in the same series.
_LOAD_WINDOWS = """
SELECT service, array_agg(round(extract(epoch FROM window_start) / :window_s)::bigint ORDER BY window_start) AS numbers,
       array_agg(arrivals ORDER BY window_start) AS arrivals
FROM service_window
WHERE service = ANY(:services) AND window_start >= :since AND window_start < :until AND window_s = :window_s
GROUP BY service
"""

# A service whose windows begin with the hour's was there before.
_LOAD_OUTCOMES = """
WITH opening AS (
    SELECT o.service, CASE WHEN f.start > CAST(:since AS timestamptz) + interval '1 minute'
                           THEN f.start + make_interval(secs => o.opening_s) ELSE :since END AS until
    FROM unnest(CAST(:services AS text[]), CAST(:openings_s AS double precision[])) AS o (service, opening_s)
    CROSS JOIN LATERAL (SELECT min(window_start) AS start FROM service_window
                        WHERE service = o.service AND window_start >= :since) AS f
)
SELECT w.service, sum(w.served + w.rejected) AS finished, sum(w.served + w.rejected - w.in_slo) AS late,
       sum(w.window_s) AS heard_s
FROM service_window w JOIN opening USING (service)
WHERE w.window_start >= greatest(CAST(:counted_from AS timestamptz), opening.until) AND w.window_start < :until
GROUP BY w.service
"""
