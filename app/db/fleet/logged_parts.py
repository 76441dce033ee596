"""Where logs are: the nodes of a service's replicas and of a task, now and lately."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.db.base.rows import all_rows
from app.db.base.transaction import Connection

LISTED = timedelta(hours=1)
"""So long after its end a replica is still listed."""
FOUND = timedelta(days=1)
"""So long after its end the log of a replica that is named, or of a task, is still asked for."""
SEEN = timedelta(seconds=30)
"""Older reports say nothing of how a replica is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedReplica:
    """A replica whose log a node may have."""

    replica: str
    node: str
    state: str | None
    """As its agent said last; None: it says nothing of it."""
    is_planned: bool
    """Whether the plan in force has it."""


async def load_logged_replicas(
    connection: Connection, service: str, now: datetime, replica: str | None = None
) -> Sequence[LoggedReplica]:
    """The service's replicas, those that fail first, then those that run, then those that have ended.

    `replica`: that one alone, also where it ended before.
    """
    rows = await all_rows(
        connection,
        _REPLICAS,
        service=service,
        replica=replica,
        since=now - (LISTED if replica is None else FOUND),
        seen=now - SEEN,
    )
    return [LoggedReplica(**row._mapping) for row in rows]


async def find_task_node(
    connection: Connection, task_id: str, now: datetime
) -> str | None:
    """The node that the task ran on last; None: it has not run for long."""
    rows = await all_rows(connection, _TASK, task=task_id, since=now - FOUND)
    return rows[0].node if rows else None


# Of plans since the service was created: one that comes back under its name, perhaps in another project, does not show
# the logs of the one before it.
_REPLICAS = """
WITH planned AS (
    SELECT DISTINCT ON (r.replica) r.replica, r.gpu, g.node, upper_inf(t.valid) AS is_planned
    FROM service s
    JOIN target t ON t.valid && tstzrange(:since, NULL) AND lower(t.valid) >= s.created_at
    JOIN plan_replica r ON r.plan_id = t.plan_id AND r.service = s.name
    JOIN gpu g ON g.id = r.gpu
    WHERE s.name = :service AND s.deleted_at IS NULL
        AND (CAST(:replica AS text) IS NULL OR r.replica = :replica)
    ORDER BY r.replica, t.generation DESC
), seen AS (
    SELECT DISTINCT ON (gpu, replica) gpu, replica, state
    FROM replica_observation WHERE window_start > :seen AND service = :service
    ORDER BY gpu, replica, window_start DESC
)
SELECT p.replica, p.node, p.is_planned, s.state
FROM planned p LEFT JOIN seen s USING (gpu, replica)
ORDER BY p.is_planned DESC,
    array_position(ARRAY['failed', 'starting', 'ready', 'draining', 'asleep'], s.state), p.replica COLLATE "C"
"""

_TASK = """
SELECT g.node FROM target t JOIN plan_task p USING (plan_id) JOIN gpu g ON g.id = p.gpu
WHERE t.valid && tstzrange(:since, NULL) AND p.task = :task
ORDER BY t.generation DESC LIMIT 1
"""
