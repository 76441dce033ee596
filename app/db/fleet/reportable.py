"""What nodes may report of, as every process of the API remembers it between two commits of observations.

The one row of `cluster` says whether something has changed; then services and GPUs, or the newer targets, are read.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import all_rows
from app.db.base.tables import cluster, gpu, service
from app.db.decisions import plans
from app.store.reportable import LINGER, Reportable, places_under

MAX_TARGETS = 60
"""Targets of the last hour that a process reads when it starts, the newest: one a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedReportable:
    """What reports may name, and of which revision and generation that is."""

    reportable: Reportable = field(default_factory=Reportable)
    catalogue_revision: int = 0
    generation: int = 0
    """0 = never read."""


async def refresh(
    connection: AsyncConnection, known: LoadedReportable, received: datetime
) -> LoadedReportable:
    """What is known, brought up to date; the same object where nothing has changed."""
    now = (await connection.execute(select(cluster))).one()
    if now.catalogue_revision != known.catalogue_revision:
        known = replace(
            known,
            reportable=await _with_catalogue(connection, known.reportable),
            catalogue_revision=now.catalogue_revision,
        )
    # After a restore of an older database the targets that came later never were.
    if now.target_generation < known.generation:
        unplaced = replace(known.reportable, places={})
        known = replace(known, reportable=unplaced, generation=0)
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
    places = known.reportable.places
    # From the oldest on, since each ends what the one before it placed.
    for row in reversed(rows):
        bound = await plans.bound_of(connection, row.plan_id)
        places = places_under(places, bound, row.start)
    return replace(
        known,
        reportable=replace(known.reportable, places=places),
        generation=rows[0].generation if rows else known.generation,
    )


# The limit comes first: looked for by their time, all targets that there ever were would be read.
_NEWER_TARGETS = """
SELECT generation, plan_id, lower(valid) AS start
FROM (SELECT * FROM target WHERE generation > :known ORDER BY generation DESC LIMIT :limit) AS newest
WHERE upper_inf(valid) OR upper(valid) > :since
ORDER BY generation DESC
"""
