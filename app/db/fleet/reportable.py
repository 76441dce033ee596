"""What nodes may report of, as every process of the API remembers it between two commits of observations.

The one row of `cluster` says whether something has changed; then services and GPUs, or the newer targets, are read.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import cluster, gpu, service, target
from app.store.reportable import LINGER, Reportable, places_after

MAX_TARGETS = 60
"""Targets of the last hour that a process reads when it starts, the newest: one a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedReportable:
    """What reports may name, and of which revision and generation that is."""

    reportable: Reportable = field(default_factory=Reportable)
    catalogue_revision: int = 0
    generation: int = 0
    """0 = never read."""
    target_generation: int = 0
    """The counter of targets: the newest one's, or above it after a restore."""
    target_since: datetime | None = None
    """From when on the target of that number is in force; None = there is none."""
    incarnation: UUID | None = None
    """The database that was read."""


async def refresh(
    connection: AsyncConnection, known: LoadedReportable, received: datetime
) -> LoadedReportable:
    """What is known, brought up to date."""
    now = (await connection.execute(_NOW)).one()
    # Another history of the database may count its services and targets alike and mean others. One that was restored by
    # hand is still called the same, until a node tells of the future.
    if (
        now.incarnation != known.incarnation
        or now.target_generation < known.target_generation
        or (
            now.target_generation == known.target_generation
            and now.since != known.target_since
        )
    ):
        known = LoadedReportable(incarnation=now.incarnation)
    known = replace(
        known, target_generation=now.target_generation, target_since=now.since
    )
    if now.catalogue_revision != known.catalogue_revision:
        known = replace(
            known,
            reportable=await _with_catalogue(connection, known.reportable),
            catalogue_revision=now.catalogue_revision,
        )
    if now.target_generation > known.generation:
        known = await _with_targets(connection, known, received)
    return known


async def _with_catalogue(connection: AsyncConnection, known: Reportable) -> Reportable:
    present = select(service.c.name).where(service.c.deleted_at.is_(None))
    services = await connection.execute(present)
    gpus = await connection.execute(select(gpu.c.id))
    return replace(
        known, services=frozenset(services.scalars()), gpus=frozenset(gpus.scalars())
    )


async def _with_targets(
    connection: AsyncConnection, known: LoadedReportable, received: datetime
) -> LoadedReportable:
    rows = await all_rows(
        connection,
        _NEWER_TARGETS,
        known=known.generation,
        since=received - LINGER,
        limit=MAX_TARGETS,
    )
    if not rows:
        return known
    parts = await all_rows(
        connection,
        _PARTS,
        plans=[row.plan_id for row in rows],
        ends=[row.replaced_at for row in rows],
    )
    newer = {(row.gpu, row.kind, row.id, row.service): row.until for row in parts}
    places = places_after(known.reportable.places, newer, rows[-1].start)
    return replace(
        known,
        reportable=replace(known.reportable, places=places),
        generation=rows[0].generation,
    )


_NOW = select(
    cluster,
    select(func.lower(target.c.valid))
    .where(target.c.generation == cluster.c.target_generation)
    .scalar_subquery()
    .label("since"),
)

# The limit comes first: looked for by their time, all targets that there ever were would be read.
_NEWER_TARGETS = """
SELECT generation, plan_id, lower(valid) AS start, upper(valid) AS replaced_at
FROM (SELECT * FROM target WHERE generation > :known ORDER BY generation DESC LIMIT :limit) AS newest
WHERE upper_inf(valid) OR upper(valid) > :since
ORDER BY generation DESC
"""

# In one statement, by the tables and not by the plans' JSON: with 60 targets of 1,000 GPUs a process that starts would
# else keep its first group of observations waiting for 7 s. The target in force ends at no time, and so do its parts.
_PARTS = """
WITH newer AS (
    SELECT * FROM unnest(CAST(:plans AS bigint[]), CAST(:ends AS timestamptz[])) AS n (plan_id, replaced_at)
),
parts AS (
    SELECT r.gpu, 'replica' AS kind, r.replica AS id, r.service, n.replaced_at
    FROM newer n JOIN plan_replica r USING (plan_id)
    UNION ALL
    SELECT t.gpu, 'task', t.task, '', n.replaced_at FROM newer n JOIN plan_task t USING (plan_id)
)
SELECT gpu, kind, id, service, nullif(max(coalesce(replaced_at, 'infinity')), 'infinity') AS until
FROM parts GROUP BY gpu, kind, id, service
"""
