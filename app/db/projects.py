"""Projects: the tenants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import AnyRow, project
from app.db.upsert import upsert
from app.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """A tenant."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime


async def list_rows(
    connection: AsyncConnection, *, names: Sequence[str] | None = None, after: str = "", limit: int | None = None
) -> tuple[ProjectRow, ...]:
    """Projects by name, of those named where given."""
    statement = select(project).where(project.c.name > after).order_by(project.c.name).limit(limit)
    if names is not None:
        statement = statement.where(project.c.name.in_(names))
    return tuple(_row(row) for row in await connection.execute(statement))


async def get(connection: AsyncConnection, name: str) -> ProjectRow:
    """One project. Raises NotFound."""
    row = (await connection.execute(select(project).where(project.c.name == name))).one_or_none()
    if row is None:
        raise NotFound(f"no project is called {name!r}")
    return _row(row)


async def save(
    connection: AsyncConnection, name: str, *, at: datetime, labels: Mapping[str, str] | None = None
) -> None:
    """Add or replace a project."""
    await upsert(connection, project, {"name": name}, {"labels": dict(labels or {})}, only_new={"created_at": at})


async def remove(connection: AsyncConnection, name: str) -> None:
    """Delete a project. Raises NotFound, Conflict while it has or had services."""
    try:
        async with connection.begin_nested():
            gone = await connection.execute(delete(project).where(project.c.name == name))
    except IntegrityError as error:
        raise Conflict(f"project {name!r} has services, or had; it is kept for their history") from error
    if gone.rowcount == 0:
        raise NotFound(f"no project is called {name!r}")


def _row(row: AnyRow) -> ProjectRow:
    return ProjectRow(name=row.name, labels=row.labels, created_at=row.created_at)
