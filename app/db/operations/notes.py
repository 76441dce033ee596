"""Notes: what manifests say that the tables of their kind do not keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import note
from app.db.base.upsert import upsert
from solvers.types.state import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectNote:
    """One object's note."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Json] = field(default_factory=dict)
    """Descriptive fields of the specification."""


async def save(
    connection: AsyncConnection, kind: str, name: str, noun: ObjectNote
) -> None:
    """Add or replace an object's note."""
    # Plain dictionaries: JSON serialisation knows no other mappings.
    values = {
        "labels": dict(noun.labels),
        "annotations": dict(noun.annotations),
        "spec": dict(noun.spec),
    }
    await upsert(connection, note, {"kind": kind, "name": name}, values)


async def load(
    connection: AsyncConnection, kind: str, names: Sequence[str]
) -> dict[str, ObjectNote]:
    """The notes of these objects, of those that have one."""
    found = await connection.execute(
        select(note).where(note.c.kind == kind, note.c.name.in_(names))
    )
    return {
        row.name: ObjectNote(
            labels=row.labels, annotations=row.annotations, spec=row.spec
        )
        for row in found
    }


async def remove(connection: AsyncConnection, kind: str, name: str) -> None:
    """Delete an object's note, if it has one."""
    await connection.execute(
        delete(note).where(note.c.kind == kind, note.c.name == name)
    )
