"""Services: what their teams asked for, by generation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, insert, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from app.db.base.rows import one_row
from app.db.base.tables import (
    AnyRow,
    cluster,
    gpu_type,
    network,
    project,
    service,
    service_version,
)
from solvers.types.llm import LlmTerms
from solvers.types.state import Mode, Scaling, Service, Slo, Variant
from solvers.types.survival import Survival


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRow:
    """A service in its present generation."""

    service: Service
    generation: int
    observed_generation: int
    """The one that the plan in force was made for, or last kept for; 0 = none yet."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
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
    statement = _present(_OBSERVED).where(service.c.name > after).limit(limit)
    if projects is not None:
        statement = statement.where(service.c.project.in_(projects))
    if labels:
        statement = statement.where(service_version.c.labels.contains(dict(labels)))
    return tuple(_row(row) for row in await connection.execute(statement))


async def get(connection: AsyncConnection, name: str) -> ServiceRow:
    """One service. Raises NotFound."""
    statement = _present(_OBSERVED).where(service.c.name == name)
    missing = f"no service is called {name!r}"
    return _row(await one_row(connection, statement, missing=missing))


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
    Raises PreconditionFailed; Conflict for a name that another project has or had; InvalidRequest for unknown names.
    """
    await _check_names(connection, noun)
    locked = await connection.execute(
        select(service).where(service.c.name == noun.name).with_for_update()
    )
    row = locked.one_or_none()
    # Also where it is deleted: rates, windows and reports are kept by name for good, and would be the new owner's.
    if row is not None and row.project != noun.project:
        # Which project that is stays unsaid: the caller's token may not reach it.
        raise Conflict(
            f"the name {noun.name!r} belongs to another project, which has or had a service of that name; "
            "choose another one"
        )
    # A deleted service keeps its row and its generations: one that comes back continues to count.
    present = row if row is not None and row.deleted_at is None else None
    _check_generation(
        noun.name, present.generation if present else 0, expected_generation
    )
    specification = {
        **_specification(noun),
        "labels": dict(noun.labels if labels is None else labels),
        "annotations": dict(annotations or {}),
    }
    # Applied again, a manifest must not move the catalogue's revision: plans that wait would be lost.
    if present and await _is_unchanged(connection, present, specification):
        return int(present.generation)
    generation = 1 if row is None else int(row.generation) + 1
    values = {"project": noun.project, "generation": generation, "deleted_at": None}
    if present is None:
        values["created_at"] = at
    await _put(connection, noun.name, values, is_known=row is not None)
    await connection.execute(
        insert(service_version).values(
            service=noun.name,
            generation=generation,
            created_at=at,
            created_by=actor,
            # As the row of the service has just raised it: a plan that was made from an older one does not know this.
            catalogue_revision=select(cluster.c.catalogue_revision).scalar_subquery(),
            **specification,
        )
    )
    return generation


async def _put(
    connection: AsyncConnection,
    name: str,
    values: Mapping[str, object],
    *,
    is_known: bool,
) -> None:
    statement = (
        update(service).where(service.c.name == name)
        if is_known
        else insert(service).values(name=name)
    )
    await connection.execute(statement.values(**values))


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
    # Marked, not deleted: bills and audit lines of past hours refer to it.
    await connection.execute(
        update(service).where(service.c.name == name).values(deleted_at=at)
    )


def _present(*also: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Services that are not deleted, in their present generation."""
    return (
        select(
            service.c.name,
            service.c.project,
            service.c.created_at.label("first_at"),
            service_version,
            *also,
        )
        .join(
            service_version,
            (service_version.c.service == service.c.name)
            & (service_version.c.generation == service.c.generation),
        )
        .where(service.c.deleted_at.is_(None))
        .order_by(service.c.name)
    )


# A plan that is kept was decided on again and found right, but where nothing could be decided (method keep), or where
# the loop waits for a person's word on another one.
_OBSERVED: ColumnElement[int] = literal_column("""
(SELECT coalesce(max(v.generation), 0) FROM service_version v
 WHERE v.service = service.name AND v.catalogue_revision <= (
     SELECT p.catalogue_revision FROM plan p
     WHERE p.state = 'target' OR p.state = 'kept' AND p.method <> 'keep' AND NOT EXISTS (
         SELECT FROM plan w JOIN cluster c
             ON w.parent = c.target_generation AND w.catalogue_revision = c.catalogue_revision
         WHERE w.state IN ('proposed', 'approved'))
     ORDER BY p.id DESC LIMIT 1))
""").label("observed_generation")


def _check_generation(name: str, present: int, expected: int | None) -> None:
    if expected is not None and expected != present:
        stands = f"is at generation {present}" if present else "does not exist"
        raise PreconditionFailed(
            f"service {name!r} {stands}, not at {expected}; read it again and repeat the change"
        )


async def _check_names(connection: AsyncConnection, noun: Service) -> None:
    # Foreign keys would refuse most of these, too, but without saying which field is wrong.
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
        found = await connection.execute(select(column).where(column.in_(names)))
        known = set(found.scalars())
        for name in names:
            if name not in known:
                raise InvalidRequest(f"there is no {name!r}", field=field_name)


def _specification(noun: Service) -> dict[str, object]:
    return {
        "network": noun.network,
        "slo_latency_ms": noun.slo.latency_ms,
        "slo_percentile": noun.slo.percentile,
        "slo_budget": noun.slo.budget,
        # Its fields have columns of their names.
        **asdict(noun.scaling),
        "priority": noun.priority,
        # Null and an empty list differ: any type, and none.
        "allowed_gpu_types": None
        if noun.allowed_gpu_types is None
        else list(noun.allowed_gpu_types),
        "excluded_gpu_types": list(noun.excluded_gpu_types),
        "mode": noun.mode.value,
        "variants": [[each.network, each.accuracy] for each in noun.variants],
        "accuracy_floor": noun.accuracy_floor,
        "survive": noun.survival.loss if noun.survival else None,
        "survive_share": noun.survival.share if noun.survival else None,
        "anti_affinity": list(noun.anti_affinity),
        "llm": asdict(noun.llm) if noun.llm else None,
    }


async def _is_unchanged(
    connection: AsyncConnection, present: AnyRow, specification: Mapping[str, object]
) -> bool:
    of_generation = select(service_version).where(
        service_version.c.service == present.name,
        service_version.c.generation == present.generation,
    )
    version = (await connection.execute(of_generation)).one()
    return all(getattr(version, key) == value for key, value in specification.items())


def _noun(row: AnyRow) -> Service:
    return Service(
        name=row.name,
        project=row.project,
        network=row.network,
        slo=Slo(
            latency_ms=row.slo_latency_ms,
            percentile=row.slo_percentile,
            budget=row.slo_budget,
        ),
        scaling=Scaling(
            **{each.name: row._mapping[each.name] for each in fields(Scaling)}
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
        survival=None
        if row.survive is None
        else Survival(loss=row.survive, share=row.survive_share),
        anti_affinity=tuple(row.anti_affinity),
        llm=None if row.llm is None else LlmTerms(**row.llm),
        # Sorted: JSON objects come back in an order of PostgreSQL's own, and equal services must be equal here.
        labels=tuple(sorted(row.labels.items())),
    )


def _row(row: AnyRow) -> ServiceRow:
    return ServiceRow(
        service=_noun(row),
        generation=row.generation,
        observed_generation=row.observed_generation,
        labels=row.labels,
        annotations=row.annotations,
        # The first generation's time is the service's; `row.created_at` is that of the newest change.
        created_at=row.first_at,
        updated_by=row.created_by,
    )
