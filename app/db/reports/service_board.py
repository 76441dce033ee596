"""What the dashboard shows of services: replicas, generations, expected rates, and error budgets."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow
from app.db.decisions.plan_parts import as_demand
from solvers.types.state import Demand


async def load_replicas(
    connection: AsyncConnection, service: str, *, now: datetime, since: datetime
) -> Sequence[AnyRow]:
    """Replicas of the plan in force, and those that were seen after `since`, by GPU and id; null where one lacks."""
    return await all_rows(connection, _REPLICAS, service=service, now=now, since=since)


async def load_versions(
    connection: AsyncConnection, service: str, limit: int
) -> Sequence[AnyRow]:
    """What was asked for, newest generation first."""
    return await all_rows(connection, _VERSIONS, service=service, limit=limit)


async def load_newest_demands(connection: AsyncConnection) -> dict[str, Demand]:
    """What the newest decision was made for, by service, whether or not its plan came into force."""
    return {
        row.service: as_demand(row)
        for row in await connection.execute(text(_NEWEST_DEMANDS))
    }


async def load_budgets(
    connection: AsyncConnection, projects: Sequence[str] | None
) -> Sequence[AnyRow]:
    """Rows of report.slo_budget, of some projects where given."""
    chosen = None if projects is None else list(projects)
    return await all_rows(connection, _BUDGETS, projects=chosen)


# FULL JOIN: what is planned and not yet there, and what is there and not planned any more, are both shown.
_REPLICAS = """
WITH planned AS (
    SELECT r.gpu, g.gpu_type, r.replica, r.sm_percent, r.batch, r.memory_mib, r.arrival_rate_rps, g.clock_mhz,
           r.sm_percent / 100 * p.price_usd_per_hour AS cost_usd_per_hour
    FROM target t
    JOIN plan_gpu g USING (plan_id)
    JOIN plan_replica r USING (plan_id, gpu)
    JOIN gpu_price p ON p.gpu_type = g.gpu_type AND p.valid @> CAST(:now AS timestamptz)
    WHERE upper_inf(t.valid) AND r.service = :service
), seen AS (
    SELECT DISTINCT ON (gpu, replica) gpu, replica, state, sm_percent, batch, memory_mib
    FROM replica_observation WHERE window_start > CAST(:since AS timestamptz) AND service = :service
    ORDER BY gpu, replica, window_start DESC
)
SELECT gpu, replica, coalesce(p.gpu_type, u.gpu_type) AS gpu_type, p.gpu_type IS NOT NULL AS is_planned,
       s.state, coalesce(p.sm_percent, s.sm_percent) AS sm_percent, coalesce(p.batch, s.batch) AS batch,
       coalesce(p.memory_mib, s.memory_mib) AS memory_mib, p.arrival_rate_rps, p.clock_mhz, p.cost_usd_per_hour
FROM planned p FULL JOIN seen s USING (gpu, replica)
LEFT JOIN gpu u ON u.id = gpu
ORDER BY gpu COLLATE "C", replica COLLATE "C"
"""

_VERSIONS = """
SELECT generation, created_at, created_by, network, slo_latency_ms, slo_percentile, slo_budget, min_replicas,
       max_replicas, upscale_delay_s, downscale_delay_s, buffer_replicas, priority, allowed_gpu_types,
       excluded_gpu_types, mode, variants, accuracy_floor, survive, survive_share, anti_affinity, labels
FROM service_version WHERE service = :service ORDER BY generation DESC LIMIT :limit
"""

# What a person stated for a preview is no forecast. Since the service was created: one that comes back under its name
# is not judged by what came before.
_NEWEST_DEMANDS = """
SELECT s.name AS service, d.arrival_rate_rps, d.method, d.low_rps, d.high_rps
FROM service s
CROSS JOIN LATERAL (SELECT * FROM demand WHERE demand.service = s.name AND method <> 'stated'
                    ORDER BY at DESC LIMIT 1) AS d
WHERE s.deleted_at IS NULL AND d.at >= s.created_at
"""

_BUDGETS = """
SELECT service, period, burn_rate, budget_used_percent, is_alerting, counted_since FROM report.slo_budget
WHERE CAST(:projects AS text[]) IS NULL OR project = ANY(CAST(:projects AS text[]))
ORDER BY service COLLATE "C", period_s
"""
