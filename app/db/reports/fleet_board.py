"""What the dashboard shows of this moment; sums over hours and days are the reporting views' matter."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPart:
    """A replica or a task that a GPU carries."""

    gpu: str
    kind: str
    """replica, training or offline."""
    id: str
    """A task's name."""
    owner: str
    """Its service; a task's name."""
    state: str
    sm_percent: float
    batch: int
    memory_mib: float


async def load_gpus(connection: AsyncConnection, since: datetime) -> Sequence[AnyRow]:
    """Every GPU by node and index; `is_heard`: its node's agent was heard after `since`."""
    return await all_rows(connection, _GPUS, since=since)


async def load_gauges(connection: AsyncConnection, since: datetime) -> Sequence[AnyRow]:
    """The newest reading after `since` of every GPU that has one, by id."""
    return await all_rows(connection, _GAUGES, since=since)


async def load_parts(
    connection: AsyncConnection, since: datetime
) -> tuple[BoardPart, ...]:
    """What the GPUs carry, as their newest readings after `since` say, by GPU and id."""
    found = await connection.execute(text(_PARTS), {"since": since})
    return tuple(BoardPart(**row._mapping) for row in found)


async def load_places(connection: AsyncConnection, now: datetime) -> Sequence[AnyRow]:
    """Replicas, planned requests per second and cost per hour of every service by GPU type, in the plan in force."""
    return await all_rows(connection, _PLACES, now=now)


async def load_header(connection: AsyncConnection) -> AnyRow:
    """The plan in force, what waits for a person, and what is newest; one row."""
    return (await connection.execute(text(_HEADER))).one()


_GPUS = """
SELECT g.id, g.node, g.gpu_type, g.index, g.healthy, g.cordoned OR n.cordoned AS cordoned,
       n.last_seen_at > CAST(:since AS timestamptz) AS is_heard, t.memory_mib,
       coalesce(p.power_cap_w, t.power_cap_w) AS power_cap_w
FROM gpu g
JOIN node n ON n.id = g.node
JOIN gpu_type t ON t.name = g.gpu_type
LEFT JOIN plan_gpu p ON p.gpu = g.id AND p.plan_id = (SELECT plan_id FROM target WHERE upper_inf(valid))
ORDER BY g.node COLLATE "C", g.index
"""

# Bounded in time, here and below: without a bound every partition of the readings would be searched.
_GAUGES = """
SELECT DISTINCT ON (gpu) gpu, memory_used_mib, power_w, clock_mhz, busy_percent
FROM gpu_observation WHERE window_start > CAST(:since AS timestamptz)
ORDER BY gpu, window_start DESC
"""

# Replicas of a GPU's newest window alone: an older one may list replicas that are gone. Tasks are read from their own
# table, which follows reports; a swapped task still holds memory of the host, so it is shown. A language model's
# replica is reported on one GPU alone: the others that it spans are known from the target.
_PARTS = """
WITH newest AS (
    SELECT gpu, max(window_start) AS at FROM gpu_observation
    WHERE window_start > CAST(:since AS timestamptz) GROUP BY gpu
), standing AS (
    SELECT r.gpu, r.replica, r.service, r.state, r.sm_percent, r.batch, r.memory_mib
    FROM replica_observation r
    JOIN newest ON newest.gpu = r.gpu AND newest.at = r.window_start
    WHERE r.window_start > CAST(:since AS timestamptz)
)
SELECT gpu, 'replica' AS kind, replica AS id, service AS owner, state, sm_percent, batch, memory_mib
FROM standing
UNION ALL
SELECT p.gpu, 'replica', s.replica, s.service, s.state, s.sm_percent, s.batch, s.memory_mib
FROM target t
JOIN plan_replica p USING (plan_id)
JOIN standing s USING (replica)
WHERE upper_inf(t.valid) AND p.gpu <> s.gpu
UNION ALL
SELECT gpu, kind, name, name, state, coalesce(sm_percent, 0), batch, coalesce(memory_mib, 0)
FROM task
WHERE gpu IS NOT NULL AND state IN ('starting', 'running', 'swapping', 'swapped') AND deleted_at IS NULL
ORDER BY gpu, kind, id
"""

# At the price of this moment, which need not be that of the moment at which the plan was made.
_PLACES = """
SELECT r.service, g.gpu_type, count(DISTINCT r.replica) AS replicas, sum(r.arrival_rate_rps) AS planned_rate_rps,
       sum(r.sm_percent / 100 * p.price_usd_per_hour) AS cost_usd_per_hour
FROM target t
JOIN plan_gpu g USING (plan_id)
JOIN plan_replica r USING (plan_id, gpu)
JOIN gpu_price p ON p.gpu_type = g.gpu_type AND p.valid @> CAST(:now AS timestamptz)
WHERE upper_inf(t.valid)
GROUP BY r.service, g.gpu_type
ORDER BY r.service COLLATE "C", g.gpu_type COLLATE "C"
"""

# Maxima of ids tell the page in one query whether anything is new that it should read.
_HEADER = """
SELECT c.target_generation, c.renumbered_at,
       t.id AS plan_id, t.at AS planned_at, t.cost_usd_per_hour, t.gap_percent, t.method,
       (SELECT max(id) FROM plan) AS newest_plan, (SELECT max(at) FROM plan) AS decided_at,
       (SELECT count(*) FROM plan WHERE state = 'proposed') AS waiting,
       (SELECT max(id) FROM event) AS newest_event,
       (SELECT count(*) FROM node) AS nodes, (SELECT count(*) FROM gpu) AS gpus,
       (SELECT count(*) FROM service WHERE deleted_at IS NULL) AS services
FROM cluster c
LEFT JOIN plan t ON t.state = 'target'
"""
