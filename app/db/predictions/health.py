"""Health of operating points: how they hold against what is served, and what planning reckons with."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.columns import JSON
from app.db.base.tables import AnyRow
from app.store.store import Correction, Execution, FitHealth
from solvers.predict.data.samples import Group
from solvers.predict.learn.online_json import (
    fit_state_from_document,
    fit_state_to_document,
)
from solvers.types.state import GpuId


async def load_executions(
    connection: AsyncConnection, since: datetime, until: datetime, gpus: Sequence[GpuId]
) -> tuple[Execution, ...]:
    """What every replica of these GPUs executed in windows that start in [since, until), by GPU and replica."""
    found = await connection.execute(
        text(_EXECUTIONS), {"since": since, "until": until, "gpus": list(gpus)}
    )
    return tuple(Execution(**row._mapping) for row in found)


async def load_all(
    connection: AsyncConnection, network: str | None = None
) -> tuple[FitHealth, ...]:
    """Health of the profiles in force, by network and GPU type; of one network where given."""
    found = await connection.execute(
        text(
            "SELECT h.network, h.gpu_type, h.now, h.planned, h.planned_at FROM fit_health h "
            "JOIN profile p ON p.id = h.profile_id AND p.is_current "
            "WHERE CAST(:network AS text) IS NULL OR h.network = :network "
            'ORDER BY h.network COLLATE "C", h.gpu_type COLLATE "C"'
        ),
        {"network": network},
    )
    return tuple(_row(row) for row in found)


async def save(
    connection: AsyncConnection, rows: Sequence[FitHealth], catalogue_revision: int
) -> bool:
    """Replace the health of these groups. False, and nothing written: the catalogue is at another revision.

    Of two leaders, one of which does not know yet that it is none, the one that read further is believed.
    """
    found = await connection.execute(
        text(_PLANNED), {"networks": sorted({row.group.network for row in rows})}
    )
    known = {planned.group: planned for planned in map(_planned, found)}
    # Only what plans are made with moves the revision, which makes every tick read again: `now` changes all the time.
    moved = any(known.get(row.group) != row.planned for row in rows)
    locked = await connection.execute(
        text(
            "UPDATE cluster SET fit_revision = fit_revision + :moved WHERE catalogue_revision = :revision"
        ),
        {"moved": int(moved), "revision": catalogue_revision},
    )
    if locked.rowcount == 0:
        return False
    if rows:
        await connection.execute(_SAVE, [_values(row) for row in rows])
    return True


def _row(row: AnyRow) -> FitHealth:
    planned = _planned(row)
    return FitHealth(
        group=planned.group, now=fit_state_from_document(row.now), planned=planned
    )


def _planned(row: AnyRow) -> Correction:
    group = Group(network=row.network, gpu_type=row.gpu_type)
    return Correction(
        group=group, health=fit_state_from_document(row.planned), at=row.planned_at
    )


def _values(row: FitHealth) -> Mapping[str, object]:
    return {
        "network": row.group.network,
        "gpu_type": row.group.gpu_type,
        "now": fit_state_to_document(row.now),
        "planned": fit_state_to_document(row.planned.health),
        "planned_at": row.planned.at,
    }


# Weighted by batches, since a window's mean stands for all its batches.
_EXECUTIONS = """
SELECT replica, gpu, min(service) AS service, min(sm_percent) AS sm_percent, min(batch) AS batch,
       bool_and(state = 'ready') AND min(sm_percent) = max(sm_percent) AND min(batch) = max(batch) AS is_steady,
       sum(batches)::bigint AS batches, sum(requests)::bigint AS requests,
       coalesce(sum(batches * execution_ms) / nullif(sum(batches), 0), 0) AS execution_ms
FROM replica_observation WHERE window_start >= :since AND window_start < :until AND gpu = ANY(:gpus)
GROUP BY gpu, replica ORDER BY gpu COLLATE "C", replica COLLATE "C"
"""

_PLANNED = """
SELECT h.network, h.gpu_type, h.planned, h.planned_at
FROM fit_health h JOIN profile p ON p.id = h.profile_id AND p.is_current WHERE h.network = ANY(:networks)
"""

# Replaced for another profile, or where more was read: a leader that lags behind must not undo what is known.
_SAVE = text(
    "INSERT INTO fit_health (network, gpu_type, profile_id, now, planned, planned_at) "
    "SELECT network, gpu_type, id, :now, :planned, :planned_at FROM profile "
    "WHERE network = :network AND gpu_type = :gpu_type AND is_current "
    "ON CONFLICT (network, gpu_type) DO UPDATE SET profile_id = excluded.profile_id, now = excluded.now, "
    "planned = excluded.planned, planned_at = excluded.planned_at "
    "WHERE fit_health.profile_id <> excluded.profile_id OR CAST(fit_health.now ->> 'seen_until_s' AS double precision) "
    "< CAST(excluded.now ->> 'seen_until_s' AS double precision)"
).bindparams(bindparam("now", type_=JSON), bindparam("planned", type_=JSON))
