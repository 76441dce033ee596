"""Fits: what was learned from samples, by version; the newest version of each is in force."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.columns import JSON
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow
from solvers.predict.data.fit import Fit, Quantity
from solvers.predict.data.fit_json import fit_from_document, fit_to_document
from solvers.predict.data.samples import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """One version of a fit, without its coefficients."""

    id: int
    network: str
    """Empty: it is about all networks on the GPU type."""
    gpu_type: str
    quantity: Quantity
    version: int
    is_current: bool
    technique: str
    training_error: float
    cross_validated_error: float | None
    """None: there were too few samples to hold any out."""
    cross_validated_error_p90: float | None
    sample_count: int
    source: str
    created_at: datetime


async def save(
    connection: AsyncConnection, fits: Sequence[Fit], *, at: datetime
) -> tuple[int, ...]:
    """Put these in force, each as a new version; returns the ids of those that differ from what was in force."""
    ids = []
    for fit in fits:
        values = {
            **_group_values(fit.group, fit.quantity),
            "document": fit_to_document(fit),
        }
        # A refit of the same samples finds the same coefficients, which would fill the history with equal versions.
        if (await connection.execute(_IS_KNOWN, values)).scalar_one():
            continue
        await connection.execute(_RETIRE, values)
        inserted = await connection.execute(
            _INSERT, {**values, **_quality_values(fit), "at": at}
        )
        ids.append(int(inserted.scalar_one()))
    return tuple(ids)


def _group_values(group: Group, quantity: Quantity) -> dict[str, object]:
    # Null for all networks, and not the empty string: `network` is a foreign key.
    network = group.network or None
    return {"network": network, "gpu_type": group.gpu_type, "quantity": quantity}


def _quality_values(fit: Fit) -> dict[str, object]:
    quality = fit.quality
    return {
        "technique": fit.technique,
        "training_error": quality.training_error,
        "cross_validated_error": _or_none(quality.cross_validated_error),
        "cross_validated_error_p90": _or_none(quality.cross_validated_error_p90),
        "sample_count": quality.sample_count,
        "source": fit.source,
    }


async def list_rows(
    connection: AsyncConnection,
    *,
    network: str | None = None,
    current_only: bool = False,
    before: int | None = None,
    limit: int | None = None,
) -> tuple[FitRow, ...]:
    """Versions, newest first; of one network where given ('' = those of whole GPU types)."""
    found = await connection.execute(
        text(_LIST),
        {
            "network": network,
            "current_only": current_only,
            "before": before,
            "limit": limit,
        },
    )
    return tuple(_row(row) for row in found)


async def get(connection: AsyncConnection, fit_id: int) -> tuple[FitRow, Fit]:
    """One version with its coefficients. Raises NotFound."""
    row = await one_row(
        connection,
        text(f"SELECT {_FIELDS}, document FROM fit WHERE id = :id"),
        {"id": fit_id},
        missing=f"there is no fit {fit_id}",
    )
    return _row(row), fit_from_document(row.document)


async def find_current(
    connection: AsyncConnection, group: Group, quantity: Quantity
) -> tuple[FitRow, Fit] | None:
    """The version in force of one quantity of a group, with its coefficients; None where nothing was learned."""
    found = await connection.execute(
        text(f"SELECT {_FIELDS}, document FROM fit WHERE {_OF_GROUP} AND is_current"),
        _group_values(group, quantity),
    )
    row = found.one_or_none()
    return None if row is None else (_row(row), fit_from_document(row.document))


def _row(row: AnyRow) -> FitRow:
    return FitRow(
        **{name: value for name, value in row._mapping.items() if name != "document"}
    )


def _or_none(error: float) -> float | None:
    # Reports compare errors: a NaN or an infinity would be sorted above every real one.
    return error if math.isfinite(error) else None


_FIELDS = (
    "id, coalesce(network, '') AS network, gpu_type, quantity, version, is_current, technique, training_error, "
    "cross_validated_error, cross_validated_error_p90, sample_count, source, created_at"
)

_LIST = f"""
SELECT {_FIELDS} FROM fit
WHERE (CAST(:network AS text) IS NULL OR coalesce(network, '') = :network)
  AND (is_current OR NOT :current_only) AND (CAST(:before AS bigint) IS NULL OR id < :before)
ORDER BY id DESC LIMIT :limit
"""

# IS NOT DISTINCT FROM: null, the fit of all networks, must find itself. The casts tell PostgreSQL a null's type.
_OF_GROUP = (
    "network IS NOT DISTINCT FROM CAST(:network AS text) AND gpu_type = CAST(:gpu_type AS text) "
    "AND quantity = CAST(:quantity AS text)"
)

_IS_KNOWN = text(
    f"SELECT EXISTS (SELECT FROM fit WHERE {_OF_GROUP} AND is_current AND document = :document)"
).bindparams(bindparam("document", type_=JSON))

_RETIRE = text(f"UPDATE fit SET is_current = false WHERE {_OF_GROUP} AND is_current")

_INSERT = text(
    f"""
INSERT INTO fit (network, gpu_type, quantity, version, technique, document, training_error, cross_validated_error,
                 cross_validated_error_p90, sample_count, source, created_at)
SELECT CAST(:network AS text), CAST(:gpu_type AS text), CAST(:quantity AS text),
       (SELECT coalesce(max(version), 0) + 1 FROM fit WHERE {_OF_GROUP}), :technique, :document,
       :training_error, :cross_validated_error, :cross_validated_error_p90, :sample_count, :source, :at
RETURNING id
"""
).bindparams(bindparam("document", type_=JSON))
