"""Which GPUs are healthy, by what their nodes' agents report, and by what these no longer report.

reading of a GPU                          healthy or not, as it says
none, of a GPU that was reported before   not healthy: at once where the agent was restarted meanwhile, for it
                                          has not found the GPU; else after UNREPORTED_AFTER
none, of one that was never reported      not healthy after NEVER_AFTER: somebody registered it who should know
no reading at all, and the agent says     not healthy after BLIND_AFTER
that something is wrong
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import GpuReading
from app.db.base.observation_rows import WindowedObservation
from app.db.base.rows import all_rows
from app.db.fleet.agent_events import agent_line
from app.db.operations.events import add_limited
from app.store.event_limits import LimitedEvents
from app.store.node_book import UNREPORTED_AFTER
from solvers.types.state import gpu_id

LATE = timedelta(seconds=1)
BLIND_AFTER = timedelta(minutes=1)
NEVER_AFTER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The newest observation of one node."""

    entry: WindowedObservation
    agent_since: datetime
    """When the agent that sent it was first heard."""

    def expects_since(self, at: datetime) -> datetime | None:
        """From when on each GPU of the node must have been reported; None: nothing is expected of this report."""
        seen = self.entry.observation
        if seen.gpus:
            # An agent tells of its first window after that has passed, and a moment later it is heard.
            first = self.agent_since - timedelta(seconds=seen.window_s) - LATE
            return max(at - UNREPORTED_AFTER, first)
        since = at - BLIND_AFTER
        return since if seen.problems and self.agent_since < since else None


async def save_health(
    connection: AsyncConnection,
    reports: Sequence[HealthReport],
    at: datetime,
    limited: LimitedEvents,
) -> None:
    """Keep which GPUs are healthy, by the newest observation of each node; one line per GPU that changed."""
    seen = [each.entry.observation for each in reports]
    readings = [(report, gpu) for report in seen for gpu in report.gpus]
    expected = [
        (each.entry.observation.node, since, each.agent_since)
        for each in reports
        if (since := each.expects_since(at)) is not None
    ]
    if not expected:
        return
    changed = await all_rows(
        connection,
        _SAVE_HEALTH,
        gpus=[gpu_id(report.node, gpu.index) for report, gpu in readings],
        healthy=[gpu.healthy for _, gpu in readings],
        whys=[_why(report.problems, gpu) for report, gpu in readings],
        nodes=[node for node, _, _ in expected],
        since=[since for _, since, _ in expected],
        agents=[agent_since for _, _, agent_since in expected],
        never=at - NEVER_AFTER,
    )
    lines = [
        agent_line(
            row.node, "GpuRecovered" if row.healthy else "GpuFailed", row.why, at
        )
        for row in sorted(changed, key=lambda row: (row.node, row.index))
    ]
    await add_limited(connection, lines, limited)


def _why(problems: Sequence[str], gpu: GpuReading) -> str:
    """What the node says of one GPU, as the audit shows it."""
    name = f"GPU {gpu.index}"
    if gpu.healthy:
        return f"{name} accepts work again"
    # Problems are the node's, as text; with a word boundary, so that GPU 1 does not find GPU 12.
    return next(
        (problem for problem in problems if re.search(rf"\b{name}\b", problem)),
        f"{name}: no reason given",
    )


# Only rows that the UPDATE changed are returned, so a GPU that stays as it is makes no event. Only GPUs that count as
# healthy and are not reported are looked for among the readings: there are none of them, but for a moment.
_SAVE_HEALTH = """
WITH told AS (
    SELECT * FROM unnest(CAST(:gpus AS text[]), CAST(:healthy AS boolean[]), CAST(:whys AS text[]))
        AS r (gpu, healthy, why)),
now_so AS (
    SELECT gpu, healthy, why FROM told
    UNION ALL
    SELECT g.id, false, format('GPU %s: not reported by its agent', g.index)
    FROM unnest(CAST(:nodes AS text[]), CAST(:since AS timestamptz[]), CAST(:agents AS timestamptz[]))
        AS n (node, since, agent_since)
    JOIN gpu g USING (node)
    LEFT JOIN told ON told.gpu = g.id
    WHERE g.healthy AND told.gpu IS NULL
      AND NOT EXISTS (SELECT FROM gpu_observation o WHERE o.gpu = g.id AND o.window_start > n.since)
      AND (EXISTS (SELECT FROM gpu_observation o WHERE o.gpu = g.id)
           OR greatest(g.created_at, n.agent_since) < CAST(:never AS timestamptz)))
UPDATE gpu SET healthy = n.healthy, acquitted_at = CASE WHEN NOT n.healthy THEN gpu.acquitted_at END
FROM now_so n WHERE gpu.id = n.gpu AND gpu.healthy <> n.healthy
RETURNING gpu.node, gpu.index, n.healthy, n.why
"""
