"""Apply: many manifests at once, all of them or none; or a dry run, which goes the same way and is taken back."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Self

from fastapi import Query, Response
from pydantic import BaseModel, Field, JsonValue, StringConstraints, model_validator

from app.answers.status import slo_objection
from app.api.decisions.policies import put_policy
from app.api.fleet.gpu_types import put_gpu_type
from app.api.fleet.nodes import put_node
from app.api.http.answers import WRITE
from app.api.http.auth import Allowed, Operator
from app.api.http.body import LargeBodyRoute, resource_router
from app.api.http.objects import Preconditions, metadata_of
from app.api.http.parts import Context, WriteBatch
from app.api.http.views import View
from app.api.operations.webhooks import put_webhook
from app.api.predictions.networks import put_network
from app.api.predictions.profiles import put_profile
from app.api.workloads.budgets import put_budget
from app.api.workloads.projects import put_project
from app.api.workloads.services import put_service
from app.api.workloads.tasks import put_task
from app.base.errors import InvalidRequest, PlimsollError
from app.db.base.transaction import (
    Connection,
    check_deferred,
    lock_object,
    translated,
)
from app.db.postgres_store import PostgresStore
from app.manifests import budgets as budget_manifests
from app.manifests import objects as manifests
from app.manifests import tasks as task_manifests
from app.manifests import webhooks as webhook_manifests
from app.manifests.parts import Strict
from app.manifests.to_types import to_service
from app.store.store import Snapshot
from solvers.types.errors import InvalidInput
from solvers.types.state import Service

router = resource_router("apply", prefix="/apply", route_class=LargeBodyRoute)

MAX_OBJECTS = 1000
"""Each is some ten queries, for which the transaction stays open, and a lock, of which there are some thousands."""

Put = Callable[..., Awaitable[BaseModel]]
"""How one object of a kind is written."""

PUTS: Mapping[str, Put] = {
    "projects": put_project,
    "gpu_types": put_gpu_type,
    "nodes": put_node,
    "networks": put_network,
    "profiles": put_profile,
    "policies": put_policy,
    "budgets": put_budget,
    "webhooks": put_webhook,
    "services": put_service,
    "tasks": put_task,
}
"""By the field of the body, in the order of writing: an object may name those of kinds before its own."""

JUDGED_BY = frozenset({"gpu_types", "nodes", "networks", "profiles", "policies"})
"""What decides whether a service's SLO can be kept."""


class ManifestBundle(Strict):
    """Manifests by kind."""

    projects: list[manifests.Project] = Field(default=[], max_length=MAX_OBJECTS)
    gpu_types: list[manifests.GpuTypeManifest] = Field(
        default=[], max_length=MAX_OBJECTS
    )
    nodes: list[manifests.NodeManifest] = Field(default=[], max_length=MAX_OBJECTS)
    networks: list[manifests.Network] = Field(default=[], max_length=MAX_OBJECTS)
    profiles: list[manifests.ProfileManifest] = Field(
        default=[], max_length=MAX_OBJECTS
    )
    policies: list[manifests.PolicyManifest] = Field(default=[], max_length=MAX_OBJECTS)
    budgets: list[budget_manifests.BudgetManifest] = Field(
        default=[], max_length=MAX_OBJECTS
    )
    webhooks: list[webhook_manifests.Webhook] = Field(
        default=[], max_length=MAX_OBJECTS
    )
    services: list[manifests.ServiceManifest] = Field(
        default=[], max_length=MAX_OBJECTS
    )
    tasks: list[task_manifests.TaskManifest] = Field(default=[], max_length=MAX_OBJECTS)
    etags: dict[
        Annotated[str, StringConstraints(max_length=200)],
        Annotated[str, StringConstraints(max_length=200)],
    ] = Field(
        default={},
        max_length=MAX_OBJECTS,
        description="ETags of the versions that you read, or `*` for any, by path below /api/v1, as `services/chat`; "
        "an object without one must be new",
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        count = sum(len(getattr(self, field)) for field in PUTS)
        if count > MAX_OBJECTS:
            raise ValueError(
                f"{count} objects exceed the limit of {MAX_OBJECTS}; apply fewer files at once"
            )
        return self


class AppliedView(View):
    """One object after it was written, or as it would be."""

    path: str = Field(description="Below /api/v1")
    is_created: bool = Field(description="false: it existed before")
    object: dict[str, JsonValue] = Field(description="As its own path returns it")


class ApplyView(View):
    """What was written."""

    dry_run: bool = Field(description="true: nothing was stored")
    objects: list[AppliedView] = Field(description="In the order of writing")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEntry:
    """One manifest of a bundle and where it stands."""

    field: str
    index: int
    manifest: BaseModel

    @property
    def names(self) -> dict[str, str]:
        """What it is known by in its path, by parameter: a profile by its network and GPU type."""
        if isinstance(self.manifest, manifests.ProfileManifest):
            spec = self.manifest.spec
            return {"network": spec.network, "gpu_type": spec.gpu_type}
        return {"name": metadata_of(self.manifest).name}

    @property
    def path(self) -> str:
        """Below /api/v1."""
        return "/".join((self.field.replace("_", "-"), *self.names.values()))

    @property
    def lock(self) -> tuple[str, str]:
        """Kind and name, as the object's own writer locks it (`app.api.http.objects.replace`)."""
        kind = type(self.manifest).model_fields["kind"].default
        return kind, "/".join(self.names.values())


@router.post("", responses=WRITE)
async def apply_manifests(
    context: Operator,
    wanted: ManifestBundle,
    *,
    dry_run: Annotated[
        bool, Query(description="Check everything as for a write, but store nothing")
    ] = False,
    force: Annotated[
        bool, Query(description="Accept SLOs that no operating point can meet")
    ] = False,
) -> ApplyView:
    """Create or replace objects, all of them or none, in the order of the fields. The first refusal ends it.

    Each is checked as a PUT of it would be, by the same rights, quotas and ETags.
    """
    entries = list(_entries(wanted))
    objections: Mapping[str, str | None] = {}
    if wanted.services and not force and not _fields(entries) & JUDGED_BY:
        # Before the transaction, where it can be: it takes milliseconds for each, in which no lock should be held.
        services = [to_service(manifest) for manifest in wanted.services]
        objections = await asyncio.to_thread(
            _slo_objections, await context.snapshot(), services
        )
    try:
        async with context.transaction() as connection:
            # All before the first write, in one order for everybody: writes lock the cluster's row, too, for which
            # somebody may wait who holds one of these.
            for kind, name in sorted({entry.lock for entry in entries}):
                await lock_object(connection, kind, name)
            batch = _batch(context, connection, objections)
            within = replace(context, batch=batch)
            objects = [
                await _write(within, entry, wanted, force=force) for entry in entries
            ]
            _count_changes(context, batch, dry_run=dry_run)
            if dry_run:
                await check_deferred(connection)
                raise _RollBack
    except _RollBack:
        objects = [_without_secret(one) for one in objects]
    return ApplyView(dry_run=dry_run, objects=objects)


class _RollBack(Exception):
    """Ends the transaction of a dry run without a commit."""


def _without_secret(one: AppliedView) -> AppliedView:
    """What a dry run tells of a new webhook: its secret would be another one."""
    status = one.object.get("status")
    if not isinstance(status, dict) or "secret" not in status:
        return one
    shown = {**one.object, "status": {**status, "secret": None}}
    return one.model_copy(update={"object": shown})


def _fields(entries: Iterable[BundleEntry]) -> set[str]:
    return {entry.field for entry in entries}


def _slo_objections(
    snapshot: Snapshot, services: Iterable[Service]
) -> dict[str, str | None]:
    return {service.name: slo_objection(snapshot, service) for service in services}


def _batch(
    context: Context, connection: Connection, objections: Mapping[str, str | None]
) -> WriteBatch:
    async def load() -> Snapshot:
        # A store of its own: what this one remembers may be taken back.
        store = PostgresStore(context.parts.engine)
        return await store.read_snapshot(connection, context.now())

    return WriteBatch(connection=connection, load_snapshot=load, objections=objections)


def _entries(wanted: ManifestBundle) -> Iterator[BundleEntry]:
    for field in PUTS:
        for index, manifest in enumerate(getattr(wanted, field)):
            yield BundleEntry(field=field, index=index, manifest=manifest)


async def _write(
    context: Context, entry: BundleEntry, wanted: ManifestBundle, *, force: bool
) -> AppliedView:
    put = PUTS[entry.field]
    etag = wanted.etags.get(entry.path)
    response = Response()
    try:
        _rule(put).require(context.caller)
        # Here, and not around the transaction alone: what the database refuses is told with its object, too.
        with translated():
            seen = await put(
                context,
                **entry.names,
                manifest=entry.manifest,
                conditions=Preconditions(etag, None if etag else "*"),
                response=response,
                **_forced(entry, force),
            )
    except (PlimsollError, InvalidInput) as error:
        raise _located(error, entry) from error.__cause__
    return AppliedView(
        path=entry.path,
        is_created=response.status_code == 201,
        object=seen.model_dump(mode="json"),
    )


def _forced(entry: BundleEntry, force: bool) -> dict[str, bool]:
    """Services alone have a check that may be forced."""
    return {"force": force} if entry.field == "services" else {}


def _rule(put: Put) -> Allowed:
    """Who may write such an object: what the function's own parameter says."""
    annotation = inspect.signature(put).parameters["context"].annotation
    (depends,) = annotation.__metadata__
    rule = depends.dependency
    assert isinstance(rule, Allowed)
    return rule


def _located(
    error: PlimsollError | InvalidInput, entry: BundleEntry
) -> PlimsollError | InvalidInput:
    """The same error with its object."""
    place = f"{entry.field}[{entry.index}]"
    if isinstance(error, InvalidInput):
        return InvalidRequest(error.problem, field=_below(place, error.field))
    if isinstance(error, InvalidRequest):
        return InvalidRequest(
            error.detail,
            field=_below(place, error.field),
            others=[(_below(place, field), wrong) for field, wrong in error.others],
            may_force=error.may_force,
        )
    # Of its own class still, by which the status of the answer is chosen.
    error.args = (f"{entry.path}: {error}",)
    return error


def _below(place: str, field: str) -> str:
    return f"{place}.{field}" if field else place


def _count_changes(context: Context, batch: WriteBatch, *, dry_run: bool) -> None:
    """Raise TooMany, which takes all back, where a project's services change too often."""
    pace, now_s = context.parts.service_changes, time.monotonic()
    # One of each project, however many services it changes: one transaction makes one plan too old.
    for project in batch.changed_projects:
        pace.check(project, 1.0, now_s)
    if not dry_run:
        for project in batch.changed_projects:
            pace.take(project, 1.0, now_s)
