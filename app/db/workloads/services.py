"""Services: what their teams asked for, by generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Select, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from app.db.base.tables import (
    AnyRow,
    gpu_type,
    network,
    project,
    service,
    service_version,
)
from solvers.types.state import Mode, Scaling, Service, Slo, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRow:
    """A service in its present generation."""

    service: Service
    generation: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
    updated_at: datetime
    updated_by: str


async def load_all(connection: AsyncConnection) -> tuple[Service, ...]:
    """Every service that is not deleted, by name."""
    return tuple(_noun(row) for row in await connection.execute(_present()))


async def list_rows(
    connection: AsyncConnection,
    *,
    projects: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    after: str = "",
    limit: int | None = None,
) -> tuple[ServiceRow, ...]:
    """Services by name; of some projects, and with all of some labels, where given."""
    statement = _present().where(service.c.name > after).limit(limit)
    if projects is not None:
        statement = statement.where(service.c.project.in_(projects))
    if labels:
        statement = statement.where(service_version.c.labels.contains(dict(labels)))
    return tuple(_row(row) for row in await connection.execute(statement))


async def get(connection: AsyncConnection, name: str) -> ServiceRow:
    """One service. Raises NotFound."""
    row = (
        await connection.execute(_present().where(service.c.name == name))
    ).one_or_none()
    if row is None:
        raise NotFound(f"no service is called {name!r}")
    return _row(row)


async def save(
    connection: AsyncConnection,
    noun: Service,
    *,
    at: datetime,
    actor: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    expected_generation: int | None = None,
) -> int:
    """Create or replace a service; returns its generation, which stays when nothing changes.

    `expected_generation`: the one that the caller saw, 0 = it must not exist yet, None = whatever it is.
    Raises PreconditionFailed; Conflict for a name that another project has; InvalidRequest for unknown names.
    """
    await _check_names(connection, noun)
    locked = await connection.execute(
        select(service).where(service.c.name == noun.name).with_for_update()
    )
    row = locked.one_or_none()
    is_there = row is not None and row.deleted_at is None
    _check_generation(
        noun.name,
        row.generation if row is not None and is_there else 0,
        expected_generation,
    )
    specification = {
        **_specification(noun),
        "labels": dict(noun.labels if labels is None else labels),
        "annotations": dict(annotations or {}),
    }
    if row is None:
        generation = 1
        await connection.execute(
            insert(service).values(
                name=noun.name, project=noun.project, generation=1, created_at=at
            )
        )
    else:
        if is_there and row.project != noun.project:
            raise Conflict(
                f"project {row.project!r} has a service {noun.name!r}; names are unique in the cluster"
            )
        if is_there and await _is_unchanged(
            connection, noun.name, row.generation, specification
        ):
            return int(row.generation)
        generation = row.generation + 1
        values = {"project": noun.project, "generation": generation, "deleted_at": None}
        if not is_there:
            values["created_at"] = at
        await connection.execute(
            update(service).where(service.c.name == noun.name).values(**values)
        )
    await connection.execute(
        insert(service_version).values(
            service=noun.name,
            generation=generation,
            created_at=at,
            created_by=actor,
            **specification,
        )
    )
    return generation


async def remove(
    connection: AsyncConnection,
    name: str,
    *,
    at: datetime,
    expected_generation: int | None = None,
) -> None:
    """Delete a service; its history stays. Raises NotFound, PreconditionFailed."""
    found = await connection.execute(
        select(service.c.generation)
        .where(service.c.name == name, service.c.deleted_at.is_(None))
        .with_for_update()
    )
    generation = found.scalar_one_or_none()
    if generation is None:
        raise NotFound(f"no service is called {name!r}")
    _check_generation(name, generation, expected_generation)
    await connection.execute(
        update(service).where(service.c.name == name).values(deleted_at=at)
    )


def _present() -> Select[*tuple[Any, ...]]:
    """Services that are not deleted, in their present generation."""
    return (
        select(
            service.c.name,
            service.c.project,
            service.c.created_at.label("first_at"),
            service_version,
        )
        .join(
            service_version,
            (service_version.c.service == service.c.name)
            & (service_version.c.generation == service.c.generation),
        )
        .where(service.c.deleted_at.is_(None))
        .order_by(service.c.name)
    )


def _check_generation(name: str, present: int, expected: int | None) -> None:
    if expected is not None and expected != present:
        stands = f"is at generation {present}" if present else "does not exist"
        raise PreconditionFailed(
            f"service {name!r} {stands}, not at {expected}; read it again and repeat the change"
        )


async def _check_names(connection: AsyncConnection, noun: Service) -> None:
    wanted = (
        ("project", project.c.name, [noun.project]),
        ("network", network.c.name, [noun.network]),
        ("variants", network.c.name, [each.network for each in noun.variants]),
        ("allowed_gpu_types", gpu_type.c.name, list(noun.allowed_gpu_types or ())),
        ("excluded_gpu_types", gpu_type.c.name, list(noun.excluded_gpu_types)),
    )
    for field_name, column, names in wanted:
        if not names:
            continue
        known = set(
            (
                await connection.execute(select(column).where(column.in_(names)))
            ).scalars()
        )
        for name in names:
            if name not in known:
                raise InvalidRequest(f"there is no {name!r}", field=field_name)


def _specification(noun: Service) -> dict[str, object]:
    return {
        "network": noun.network,
        "slo_latency_ms": noun.slo.latency_ms,
        "slo_percentile": noun.slo.percentile,
        "min_replicas": noun.scaling.min_replicas,
        "max_replicas": noun.scaling.max_replicas,
        "upscale_delay_s": noun.scaling.upscale_delay_s,
        "downscale_delay_s": noun.scaling.downscale_delay_s,
        "buffer_replicas": noun.scaling.buffer_replicas,
        "priority": noun.priority,
        "allowed_gpu_types": None
        if noun.allowed_gpu_types is None
        else list(noun.allowed_gpu_types),
        "excluded_gpu_types": list(noun.excluded_gpu_types),
        "mode": noun.mode.value,
        "variants": [[each.network, each.accuracy] for each in noun.variants],
        "accuracy_floor": noun.accuracy_floor,
    }


async def _is_unchanged(
    connection: AsyncConnection,
    name: str,
    generation: int,
    specification: Mapping[str, object],
) -> bool:
    of_generation = (service_version.c.service == name) & (
        service_version.c.generation == generation
    )
    present = (
        await connection.execute(select(service_version).where(of_generation))
    ).one()
    return all(getattr(present, key) == value for key, value in specification.items())


def _noun(row: AnyRow) -> Service:
    return Service(
        name=row.name,
        project=row.project,
        network=row.network,
        slo=Slo(latency_ms=row.slo_latency_ms, percentile=row.slo_percentile),
        scaling=Scaling(
            min_replicas=row.min_replicas,
            max_replicas=row.max_replicas,
            upscale_delay_s=row.upscale_delay_s,
            downscale_delay_s=row.downscale_delay_s,
            buffer_replicas=row.buffer_replicas,
        ),
        priority=row.priority,
        allowed_gpu_types=None
        if row.allowed_gpu_types is None
        else tuple(row.allowed_gpu_types),
        excluded_gpu_types=tuple(row.excluded_gpu_types),
        mode=Mode(row.mode),
        variants=tuple(
            Variant(network=network, accuracy=accuracy)
            for network, accuracy in row.variants
        ),
        accuracy_floor=row.accuracy_floor,
        labels=tuple(sorted(row.labels.items())),
    )


def _row(row: AnyRow) -> ServiceRow:
    return ServiceRow(
        service=_noun(row),
        generation=row.generation,
        labels=row.labels,
        annotations=row.annotations,
        created_at=row.first_at,
        updated_at=row.created_at,
        updated_by=row.created_by,
    )
