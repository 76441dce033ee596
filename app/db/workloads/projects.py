"""Projects: the tenants."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import delete_named
from app.db.base.tables import project
from app.db.base.upsert import upsert
from app.db.workloads.quotas import ProjectQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """A project as stored, with its quota."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
    quota: ProjectQuota = field(default_factory=ProjectQuota)


async def save(
    connection: AsyncConnection,
    name: str,
    *,
    at: datetime,
    labels: Mapping[str, str] | None = None,
    quota: ProjectQuota | None = None,
) -> None:
    """Add or replace a project; without a quota nothing of it is limited."""
    # Replaced as a whole: a manifest without a quota removes the earlier one.
    await upsert(
        connection,
        project,
        {"name": name},
        {"labels": dict(labels or {}), **asdict(quota or ProjectQuota())},
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
        ProjectRow(
            name=row.name,
            labels=row.labels,
            created_at=row.created_at,
            quota=ProjectQuota.of(row),
        )
        for row in await connection.execute(statement)
    )


async def remove(connection: AsyncConnection, name: str) -> None:
    """Delete a project. Raises NotFound, Conflict when it has services or tasks, or had."""
    # Deleted services and tasks keep their rows, and so their project: reports name it for past hours.
    await delete_named(
        connection,
        project,
        name,
        missing=f"no project is called {name!r}",
        in_use=f"project {name!r} has or had services or tasks; it is kept for their history",
    )
