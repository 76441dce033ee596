"""Projects: the tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict, NotFound
from app.db.base.tables import project
from app.db.base.upsert import upsert


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """One project."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime


async def save(
    connection: AsyncConnection,
    name: str,
    *,
    at: datetime,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Add or replace a project."""
    await upsert(
        connection,
        project,
        {"name": name},
        {"labels": dict(labels or {})},
        only_new={"created_at": at},
    )


async def list_rows(
    connection: AsyncConnection, *, after: str = "", limit: int | None = None
) -> tuple[ProjectRow, ...]:
    """Projects by name."""
    statement = (
        select(project)
        .where(project.c.name > after)
        .order_by(project.c.name)
        .limit(limit)
    )
    return tuple(
        ProjectRow(name=row.name, labels=row.labels, created_at=row.created_at)
        for row in await connection.execute(statement)
    )


async def remove(connection: AsyncConnection, name: str) -> None:
    """Delete a project. Raises NotFound, Conflict when it has services or tasks, or had."""
    try:
        async with connection.begin_nested():
            gone = await connection.execute(
                delete(project).where(project.c.name == name)
            )
    except IntegrityError as error:
        raise Conflict(
            f"project {name!r} has services or tasks, or had; it is kept for their history"
        ) from error
    if gone.rowcount == 0:
        raise NotFound(f"no project is called {name!r}")
