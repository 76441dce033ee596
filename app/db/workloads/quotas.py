"""Quotas: how important a project's services and tasks may be; how many replicas, GPUs and simulations it may have.

A replica and a task hold one GPU at most, with others or alone; a language model's replica may hold MAX_TP. So GPUs are
counted when something is submitted, by what it may ever hold, and no plan can give a project more.

A quota keeps a project from growing: what is there when it is lowered stays, and may be made smaller.
"""

import math
from dataclasses import dataclass, fields

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import InvalidRequest
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow
from solvers.types.llm import MAX_TP
from solvers.types.state import Service, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectQuota:
    """Ceilings of one project; None: no ceiling."""

    max_priority: float | None = None
    """No service or task may have a higher one."""
    max_replicas: int | None = None
    """The maximum that all services together may run, by the `max_replicas` that each states."""
    max_gpus: int | None = None
    """The maximum that all services and tasks may hold: each replica and each task that is not over one."""
    max_simulations: int | None = None
    """How many may wait or run. None: the project's own tokens ask for none, and others for it without a ceiling."""

    @classmethod
    def of(cls, row: AnyRow) -> "ProjectQuota":
        """The ceilings in a row of the project."""
        return cls(**{each.name: row._mapping[each.name] for each in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """What a project may run already, at most."""

    replicas: int | None = 0
    """Its services together; None where one of them states no limit."""
    replica_gpus: int = 0
    """That these may hold."""
    tasks: int = 0
    """That are not over."""
    simulations: int = 0
    """That wait or run."""

    @property
    def gpus(self) -> int | None:
        """That they may hold together; None: without limit."""
        return None if self.replicas is None else self.replica_gpus + self.tasks


async def check_service(
    connection: AsyncConnection, wanted: Service, present: Service | None
) -> None:
    """Raise InvalidRequest where the service would grow beyond its project's quota. `present`: what has the name."""
    before = present if _is_own(wanted, present) else None
    quota = await _locked(connection, wanted.project)
    _check_priority(quota, wanted, before)
    own, own_gpus = _max_replicas(wanted), _max_gpus(wanted)
    # What is there stays, and may become smaller.
    if before and own <= _max_replicas(before) and own_gpus <= _max_gpus(before):
        return
    others = await _load_others(connection, wanted.project, service=wanted.name)
    project = wanted.project
    _check_ceiling(project, "replicas", quota.max_replicas, others.replicas, own)
    _check_ceiling(project, "GPUs", quota.max_gpus, others.gpus, own_gpus)


def _check_ceiling(
    project: str, what: str, limit: int | None, used: int | None, own: float
) -> None:
    taken = math.inf if used is None else used
    # Also where some service states none, or this one: infinity is beyond every ceiling.
    if limit is not None and taken + own > limit:
        raise InvalidRequest(
            f"project {project!r} may have {limit} {what} at most, counting its tasks and the max_replicas of its "
            f"services; the others take {_count_text(taken)} of them. Request fewer, or ask an admin for a larger "
            "quota",
            field="spec.scaling.max_replicas",
        )


async def check_task(
    connection: AsyncConnection, wanted: Task, present: Task | None
) -> None:
    """Raise InvalidRequest where the task's priority would rise above its project's ceiling, or no GPU is left."""
    quota = await _locked(connection, wanted.project)
    before = present if _is_own(wanted, present) else None
    _check_priority(quota, wanted, before)
    if quota.max_gpus is None or before is not None:
        return
    used = (await _load_others(connection, wanted.project)).gpus
    if used is None or used >= quota.max_gpus:
        raise InvalidRequest(
            f"project {wanted.project!r} may hold {quota.max_gpus} GPUs at most, and its services and tasks may hold "
            f"{'all' if used is None else used} of them; wait until a task is over, cancel one, lower a service's "
            "max_replicas, or ask an admin for a larger quota",
            field="metadata.project",
        )


async def simulations_left(connection: AsyncConnection, project: str) -> int | None:
    """How many more simulations a project may ask for; None: its quota says nothing. Raises NotFound.

    Until the transaction ends no one else asks for one of that project.
    """
    limit = (await _locked(connection, project)).max_simulations
    if limit is None:
        return None
    return max(limit - (await _load_others(connection, project)).simulations, 0)


async def load_used(connection: AsyncConnection) -> dict[str, QuotaUse]:
    """By project, what its services and tasks may run at most."""
    found = await connection.execute(_USED, {"project": None, "service": None})
    return {row.project: _use(row) for row in found}


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
        "SELECT max_priority, max_replicas, max_gpus, max_simulations FROM project WHERE name = :name FOR NO KEY UPDATE"
    )
    missing = f"no project is called {project!r}"
    row = await one_row(connection, statement, {"name": project}, missing=missing)
    return ProjectQuota.of(row)


async def _load_others(
    connection: AsyncConnection, project: str, *, service: str | None = None
) -> QuotaUse:
    """What a project may run in addition to one service."""
    found = await connection.execute(_USED, {"project": project, "service": service})
    row = found.one_or_none()
    return QuotaUse() if row is None else _use(row)


def _use(row: AnyRow) -> QuotaUse:
    return QuotaUse(
        replicas=None if row.is_open else int(row.replicas),
        replica_gpus=int(row.replica_gpus),
        tasks=row.tasks,
        simulations=row.simulations,
    )


def _max_replicas(service: Service) -> float:
    stated = service.scaling.max_replicas
    return math.inf if stated is None else float(stated)


def _max_gpus(service: Service) -> float:
    return _max_replicas(service) * (1 if service.llm is None else MAX_TP)


def _count_text(used: float) -> str:
    return "all" if math.isinf(used) else f"{used:g}"


# Casts, so that PostgreSQL knows what a null is.
_USED = text(f"""
SELECT p.name AS project, coalesce(s.replicas, 0) AS replicas, coalesce(s.gpus, 0) AS replica_gpus,
       coalesce(s.is_open, false) AS is_open,
       (SELECT count(*) FROM task t WHERE t.project = p.name
          AND t.finished_at IS NULL AND t.cancelled_at IS NULL AND t.deleted_at IS NULL) AS tasks,
       (SELECT count(*) FROM simulation m WHERE m.project = p.name AND m.finished_at IS NULL) AS simulations
FROM project p LEFT JOIN (
    SELECT s.project, sum(v.max_replicas) AS replicas,
           sum(v.max_replicas * CASE WHEN v.llm IS NULL THEN 1 ELSE {MAX_TP} END) AS gpus,
           bool_or(v.max_replicas IS NULL) AS is_open
    FROM service s JOIN service_version v ON v.service = s.name AND v.generation = s.generation
    WHERE s.deleted_at IS NULL AND s.name IS DISTINCT FROM CAST(:service AS text)
    GROUP BY s.project
) s ON s.project = p.name
WHERE CAST(:project AS text) IS NULL OR p.name = :project
""")
