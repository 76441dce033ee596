"""Quotas: how important a project's services and tasks may be, and how many replicas it may run.

A quota keeps a project from growing: what is there when it is lowered stays, and may be made smaller.
"""

import math
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import InvalidRequest
from app.db.base.rows import one_row
from solvers.types.state import Service, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectQuota:
    """Ceilings of one project; None: no ceiling."""

    max_priority: float | None = None
    """No service or task may have a higher one."""
    max_replicas: int | None = None
    """All services together may run so many, by the `max_replicas` that each states."""


async def check_service(
    connection: AsyncConnection, wanted: Service, present: Service | None
) -> None:
    """Raise InvalidRequest where the service would grow beyond its project's quota. `present`: what has the name."""
    before = present if _is_own(wanted, present) else None
    quota = await _locked(connection, wanted.project)
    _check_priority(quota, wanted, before)
    own = _max_replicas(wanted)
    if quota.max_replicas is None or (before and own <= _max_replicas(before)):
        return
    used = await _others_max_replicas(connection, wanted)
    # Also where some service states none, or this one: infinity is beyond every ceiling.
    if used + own > quota.max_replicas:
        raise InvalidRequest(
            f"project {wanted.project!r} may run {quota.max_replicas} replicas at most, by the max_replicas of its "
            f"services; the others take {_said(used)} of them. State a lower one, or ask an admin for a larger quota",
            field="spec.scaling.max_replicas",
        )


async def check_task(
    connection: AsyncConnection, wanted: Task, present: Task | None
) -> None:
    """Raise InvalidRequest where the task's priority would rise above its project's ceiling."""
    quota = await _locked(connection, wanted.project)
    _check_priority(quota, wanted, present if _is_own(wanted, present) else None)


async def load_used(connection: AsyncConnection) -> dict[str, int | None]:
    """By project, how many replicas its services may run together; None where one of them states no limit."""
    found = await connection.execute(text(f"{_LIMITS} GROUP BY s.project"))
    return {row.project: None if row.is_open else row.replicas for row in found}


def _is_own(wanted: Service | Task, present: Service | Task | None) -> bool:
    """Whether the name is free of other projects: what theirs has must not show in a refusal, which comes anyway."""
    return present is not None and present.project == wanted.project


def _check_priority(
    quota: ProjectQuota, wanted: Service | Task, before: Service | Task | None
) -> None:
    ceiling = quota.max_priority
    # What is there stays: a quota that was lowered must not keep anybody from changing an SLO.
    if ceiling is None or wanted.priority <= max(
        ceiling, before.priority if before else 0.0
    ):
        return
    raise InvalidRequest(
        f"{wanted.priority:g} is above {ceiling:g}, the highest that the project's quota allows; an admin may raise it",
        field="spec.priority",
    )


async def _locked(connection: AsyncConnection, project: str) -> ProjectQuota:
    """The quota, locked: of two services that are created at once the second must count the first one."""
    # NO KEY: it does not wait for those who only refer to the project.
    statement = text(
        "SELECT max_priority, max_replicas FROM project WHERE name = :name FOR NO KEY UPDATE"
    )
    missing = f"no project is called {project!r}"
    row = await one_row(connection, statement, {"name": project}, missing=missing)
    return ProjectQuota(max_priority=row.max_priority, max_replicas=row.max_replicas)


async def _others_max_replicas(connection: AsyncConnection, wanted: Service) -> float:
    statement = text(
        f"{_LIMITS} AND s.project = :project AND s.name <> :name GROUP BY s.project"
    )
    found = await connection.execute(
        statement, {"project": wanted.project, "name": wanted.name}
    )
    row = found.one_or_none()
    if row is None:
        return 0.0
    return math.inf if row.is_open else float(row.replicas)


def _max_replicas(service: Service) -> float:
    stated = service.scaling.max_replicas
    return math.inf if stated is None else float(stated)


def _said(used: float) -> str:
    return "all" if math.isinf(used) else f"{used:g}"


_LIMITS = """
SELECT s.project, coalesce(sum(v.max_replicas), 0) AS replicas, bool_or(v.max_replicas IS NULL) AS is_open
FROM service s JOIN service_version v ON v.service = s.name AND v.generation = s.generation
WHERE s.deleted_at IS NULL
"""
