"""What the dashboard shows of one GPU, and of nodes with the generations that they should and do follow."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow


async def load_gpu(
    connection: AsyncConnection, gpu: str, since: datetime
) -> AnyRow | None:
    """One GPU with its newest reading that ended after `since`; None: no GPU is called so."""
    return (
        await connection.execute(text(_GPU), {"gpu": gpu, "since": since})
    ).one_or_none()


async def load_carried(
    connection: AsyncConnection, gpu: str, since: datetime
) -> Sequence[AnyRow]:
    """What it carries or should, by kind and id: as planned, as it is, and as its newest reading measured it."""
    return await all_rows(connection, _CARRIED, gpu=gpu, since=since)


async def load_overuses(connection: AsyncConnection, gpu: str) -> Sequence[AnyRow]:
    """Who uses more of it than granted, now, by kind and name."""
    return await all_rows(connection, _OVERUSES, gpu=gpu)


async def load_generations(connection: AsyncConnection) -> Sequence[AnyRow]:
    """The newest command of every node that has one, and what its agent said of it."""
    return await all_rows(connection, _GENERATIONS)


# The GPU comes first and alone, so that all joins work on one row.
_GPU = """
SELECT g.id, g.node, g.gpu_type, g.index, g.healthy, g.cordoned, n.cordoned AS node_cordoned, t.memory_mib,
       n.last_seen_at > CAST(:since AS timestamptz) AS is_heard, g.plan_id, g.planned_clock_mhz,
       coalesce(g.planned_power_cap_w, t.power_cap_w) AS power_cap_w, t.idle_w,
       o.memory_used_mib, o.power_w, o.clock_mhz, o.busy_percent,
       extract(epoch FROM o.window_start) + o.window_s AS read_at_s
FROM (SELECT gpu.*, target.plan_id, p.clock_mhz AS planned_clock_mhz, p.power_cap_w AS planned_power_cap_w
      FROM gpu LEFT JOIN target ON upper_inf(target.valid)
      LEFT JOIN plan_gpu p ON p.plan_id = target.plan_id AND p.gpu = gpu.id
      WHERE gpu.id = :gpu) AS g
JOIN node n ON n.id = g.node
JOIN gpu_type t ON t.name = g.gpu_type
LEFT JOIN LATERAL (SELECT * FROM gpu_observation WHERE gpu = g.id AND window_start > CAST(:since AS timestamptz)
                   ORDER BY window_start DESC LIMIT 1) AS o ON true
"""

# FULL JOIN: a replica that should be there is shown before it runs, and one that runs on after its plan is shown, too.
# What others use, and the idle watts, belong to no replica or task: they come last, as measured.
_CARRIED = """
WITH newest AS (
    SELECT max(window_start) AS at FROM gpu_observation
    WHERE gpu = :gpu AND window_start > CAST(:since AS timestamptz)
), planned AS (
    SELECT replica, service, sm_percent, batch, memory_mib, arrival_rate_rps
    FROM plan_replica r JOIN target t USING (plan_id) WHERE upper_inf(t.valid) AND r.gpu = :gpu
), seen AS (
    SELECT r.* FROM replica_observation r JOIN newest ON r.window_start = newest.at
    WHERE r.gpu = :gpu AND r.window_start > CAST(:since AS timestamptz)
), used AS (
    SELECT u.kind, u.name, u.memory_used_mib, u.sm_percent, u.energy_j / u.window_s AS power_w, u.is_estimated
    FROM use_observation u JOIN newest ON u.window_start = newest.at
    WHERE u.gpu = :gpu AND u.window_start > CAST(:since AS timestamptz)
), carried AS (
    SELECT 'replica' AS kind, coalesce(s.replica, p.replica) AS id,
           coalesce(s.service, p.service) AS owner,
           coalesce(s.state, 'not there yet') AS state, p.replica IS NOT NULL AS is_planned,
           coalesce(s.sm_percent, p.sm_percent::float8) AS sm_percent, coalesce(s.batch, p.batch) AS batch,
           coalesce(s.memory_mib, p.memory_mib::float8) AS memory_mib, p.arrival_rate_rps AS planned_rate_rps,
           s.requests / s.window_s AS served_rps, CASE WHEN s.batches > 0 THEN s.execution_ms END AS execution_ms
    FROM seen s FULL JOIN planned p ON p.replica = s.replica
    UNION ALL
    SELECT kind, name, name, state, true, coalesce(sm_percent, 0), batch, coalesce(memory_mib, 0), NULL, NULL,
           nullif(iteration_ms, 0)
    FROM task
    WHERE gpu = :gpu AND state IN ('starting', 'running', 'swapping', 'swapped') AND deleted_at IS NULL
)
SELECT c.*, u.memory_used_mib, u.sm_percent AS sm_used_percent, u.power_w,
       coalesce(u.is_estimated, false) AS is_estimated
FROM carried c
LEFT JOIN used u ON u.name = c.id AND u.kind = CASE c.kind WHEN 'replica' THEN 'replica' ELSE 'task' END
UNION ALL
SELECT kind, name, name, '', false, NULL, NULL, NULL, NULL, NULL, NULL, memory_used_mib, sm_percent, power_w,
       is_estimated
FROM used WHERE kind IN ('others', 'idle')
ORDER BY kind, id
"""

_OVERUSES = """
SELECT kind, name, quantity, service, granted, used, is_estimated, begun_at FROM overuse
WHERE gpu = :gpu ORDER BY kind, name COLLATE "C", quantity
"""

# An outer join: a command that its agent has not answered yet is the one that people look for.
_GENERATIONS = """
SELECT c.node, c.generation, a.status, a.detail
FROM (SELECT node, max(generation) AS generation FROM command GROUP BY node) AS c
LEFT JOIN acknowledgement a ON a.node = c.node AND a.generation = c.generation
"""
