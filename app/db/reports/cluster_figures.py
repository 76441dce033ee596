"""What the metrics of the cluster say of nodes, GPUs, services and tasks; where there are many, the first by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """What a service did and cost since the hour began."""

    cost_usd: float | None = None
    energy_j: float | None = None
    arrivals: int | None = None
    served: int | None = None
    in_slo: int | None = None
    rejected: int | None = None
    gone: int | None = None
    unmeasured: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many there are, whatever number is shown one by one."""

    nodes: int
    heard: int
    """Nodes among them."""
    services: int


async def load_nodes(connection: AsyncConnection, limit: int) -> Sequence[AnyRow]:
    """Nodes with what is known of their agents, by name; `last_seen_at` is null where one was never heard."""
    return await all_rows(connection, _NODES, limit=limit)


async def load_totals(connection: AsyncConnection, since: datetime) -> Totals:
    """How many nodes and services there are; nodes count as heard whose agents were heard at `since` or later."""
    found = await connection.execute(text(_TOTALS), {"since": since})
    row = found.one()
    return Totals(nodes=row.nodes, heard=row.heard, services=row.services)


async def load_target_gpus(connection: AsyncConnection) -> Sequence[AnyRow]:
    """GPUs of the plan in force with their limits and the SM percents that were given away, by id."""
    return await all_rows(connection, _TARGET_GPUS)


async def load_metrics_addresses(
    connection: AsyncConnection, limit: int
) -> Sequence[AnyRow]:
    """Nodes whose agents say where their metrics are, with that address, by name."""
    statement = (
        "SELECT id, metrics_address FROM node WHERE metrics_address <> '' "
        'ORDER BY id COLLATE "C" LIMIT :limit'
    )
    return await all_rows(connection, statement, limit=limit)


async def load_hour(
    connection: AsyncConnection, hour: datetime
) -> Mapping[tuple[str, str], Hour]:
    """By project and service, `(idle)` and `(tasks)` among them, as the reporting views say."""
    found = await connection.execute(text(_HOUR), {"hour": hour})
    return {
        (row.project, row.service): Hour(
            # Null, where one of the three views has no row, stays None: a metric that is missing is not 0.
            cost_usd=None if row.cost_usd is None else float(row.cost_usd),
            energy_j=None if row.energy_wh is None else float(row.energy_wh) * 3600.0,
            arrivals=row.requests,
            served=row.served,
            in_slo=row.in_slo,
            rejected=row.rejected,
            gone=row.gone,
            unmeasured=row.unmeasured,
        )
        for row in found
    }


# LATERAL with a limit: an index gives a node's newest row, where a join would read all commands ever sent.
# By bytes, so that the same nodes are the first ones whatever the server's locale.
_NODES = """
SELECT n.id, n.cordoned, n.last_seen_at, n.clock_skew_s, n.observed_generation, cardinality(n.problems) AS problems,
       c.generation AS wanted_generation, a.status AS last_ack
FROM node n
LEFT JOIN LATERAL (SELECT coalesce(max(generation), 0) AS generation FROM command WHERE node = n.id) AS c ON true
LEFT JOIN LATERAL (SELECT status FROM acknowledgement WHERE node = n.id ORDER BY generation DESC LIMIT 1) AS a ON true
ORDER BY n.id COLLATE "C" LIMIT :limit
"""

_TOTALS = """
SELECT count(*) AS nodes, count(*) FILTER (WHERE last_seen_at >= CAST(:since AS timestamptz)) AS heard,
       (SELECT count(*) FROM service WHERE deleted_at IS NULL) AS services
FROM node
"""

# The open period of `target` belongs to the plan in force.
_TARGET_GPUS = """
SELECT g.gpu, g.node, g.gpu_type, g.clock_mhz, g.power_cap_w,
       (SELECT coalesce(sum(r.sm_percent), 0) FROM plan_replica r WHERE r.plan_id = g.plan_id AND r.gpu = g.gpu)
       AS sm_percent
FROM target t JOIN plan_gpu g USING (plan_id)
WHERE upper_inf(t.valid)
ORDER BY g.gpu COLLATE "C"
"""

# Requests of a service that is gone have no project; they are not asked for here.
_HOUR = """
SELECT project, service, c.cost_usd, e.energy_wh, s.requests, s.served, s.in_slo, s.rejected, s.gone,
       s.unmeasured
FROM (SELECT project, service, cost_usd FROM report.cost_by_service_hour
      WHERE hour = CAST(:hour AS timestamptz)) AS c
FULL JOIN (SELECT project, service, energy_wh FROM report.energy_by_service_hour
           WHERE hour = CAST(:hour AS timestamptz)) AS e USING (project, service)
FULL JOIN (SELECT project, service, requests, served, in_slo, rejected, gone, unmeasured
           FROM report.slo_attainment_hour
           WHERE hour = CAST(:hour AS timestamptz) AND project IS NOT NULL) AS s USING (project, service)
ORDER BY project COLLATE "C", service COLLATE "C"
"""
