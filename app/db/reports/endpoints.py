"""Where requests of services go: the nodes that the plan in force has for them, and those that still serve them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import Observation
from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow

FRESH = timedelta(seconds=10.0)
"""Older reports do not say what is ready now: agents report every second or two."""

# Replicas that moved serve on for a while where they were, which only the reports tell.
_CARRIERS = """
WITH planned AS (
    SELECT r.service, g.node, sum(r.arrival_rate_rps) AS rate_rps, count(DISTINCT r.replica) AS replicas
    FROM plan p JOIN plan_replica r ON r.plan_id = p.id JOIN gpu g ON g.id = r.gpu
    WHERE p.state = 'target' AND r.service = ANY(CAST(:services AS text[]))
    GROUP BY r.service, g.node
), ready AS (
    SELECT r.service, g.node, count(DISTINCT r.replica) AS replicas
    FROM replica_observation r JOIN gpu g ON g.id = r.gpu JOIN node n ON n.id = g.node
    WHERE r.window_start >= :since AND r.state = 'ready' AND r.service = ANY(CAST(:services AS text[]))
        AND r.window_start >= n.last_window_end - 1.5 * r.window_s * interval '1 second'
    GROUP BY r.service, g.node
)
SELECT service, node, n.router_url, coalesce(planned.rate_rps, 0) AS rate_rps,
    coalesce(planned.replicas, 0) AS planned, coalesce(ready.replicas, 0) AS ready
FROM planned FULL JOIN ready USING (service, node) JOIN node n ON n.id = node
ORDER BY service COLLATE "C", node COLLATE "C"
"""

# Of the generation that the node has in force, since under another one its own replicas may be wanted again; of the
# newest one where its command is its newest: what came after that changed nothing for it. A replica that spans GPUs is
# reported on one of them.
_READY_ELSEWHERE = """
SELECT s.service FROM unnest(CAST(:services AS text[])) AS s (service)
WHERE NOT EXISTS (
    SELECT FROM plan_replica r JOIN target t USING (plan_id) JOIN gpu g ON g.id = r.gpu JOIN node n ON n.id = g.node
    WHERE t.generation = CASE WHEN :generation < (SELECT max(generation) FROM command WHERE node = :node)
                              THEN :generation ELSE (SELECT max(generation) FROM target) END
        AND r.service = s.service AND g.node <> :node AND NOT EXISTS (
        SELECT FROM replica_observation o
        WHERE o.gpu IN (SELECT h.gpu FROM plan_replica h WHERE h.plan_id = r.plan_id AND h.replica = r.replica)
            AND o.replica = r.replica AND o.state = 'ready' AND o.window_start >= :since
            AND o.window_start >= n.last_window_end - 1.5 * o.window_s * interval '1 second'))
ORDER BY s.service COLLATE "C"
"""

_MODELS = """
SELECT v.service FROM service_version v JOIN service s ON s.name = v.service AND s.generation = v.generation
WHERE v.llm IS NOT NULL AND v.service = ANY(CAST(:services AS text[]))
"""

_EXISTING = "SELECT name FROM service WHERE name = ANY(CAST(:services AS text[]))"

_ROUTERS = """
SELECT id AS node, router_url FROM node
WHERE router_url <> '' AND last_seen_at >= :since
ORDER BY id COLLATE "C" LIMIT :limit
"""


async def load_carriers(
    connection: AsyncConnection, services: Sequence[str], now: datetime
) -> Sequence[AnyRow]:
    """Nodes of each service, by service and node, with what is planned there and the replicas that are ready."""
    return await all_rows(
        connection, _CARRIERS, services=list(services), since=now - FRESH
    )


async def load_models(
    connection: AsyncConnection, services: Sequence[str]
) -> frozenset[str]:
    """Those of these services that are language models'."""
    rows = await all_rows(connection, _MODELS, services=list(services))
    return frozenset(row.service for row in rows)


async def load_resting(
    connection: AsyncConnection, services: Sequence[str], carriers: Sequence[AnyRow]
) -> frozenset[str]:
    """Those of these services that exist, and that none of the rows of `load_carriers` is about."""
    found = await connection.execute(text(_EXISTING), {"services": list(services)})
    return frozenset(found.scalars()) - {row.service for row in carriers}


async def services_ready_elsewhere(
    connection: AsyncConnection, observation: Observation, now: datetime
) -> tuple[str, ...]:
    """The services that the node awaits and whose replicas on other nodes are all ready, by its generation."""
    rows = await all_rows(
        connection,
        _READY_ELSEWHERE,
        services=list(observation.awaited),
        node=observation.node,
        generation=observation.generation,
        since=now - FRESH,
    )
    return tuple(row.service for row in rows)


async def load_routers(
    connection: AsyncConnection, limit: int, now: datetime
) -> Sequence[AnyRow]:
    """Some nodes that take requests, by name: those of a service without a replica wait there and are counted."""
    return await all_rows(connection, _ROUTERS, limit=limit, since=now - FRESH)
