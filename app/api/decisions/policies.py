"""The control loop's policy: one object, `default`, whose every change is a new version; pause and resume.

Its groups name projects, and its versions who changed it: a token that is bound to projects does not read it.
"""

from dataclasses import asdict
from dataclasses import replace as with_values
from datetime import datetime
from typing import Annotated

from fastapi import Path, Request, Response

from app.api.http.answers import ACT, LIST, READ, WRITE, created
from app.api.http.auth import Admin, ClusterOperator, ClusterViewer
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.known_names import check_parameters, check_policy
from app.api.http.objects import (
    POLICY_NAME,
    Conditions,
    ObjectKind,
    check_name,
    read,
    replace,
    with_notes,
)
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.base.errors import NotFound
from app.db.base.transaction import Connection, lock_object
from app.db.decisions import policies
from app.db.decisions.policies import PolicyRow
from app.manifests import objects as manifests
from app.manifests.parts import Name
from app.manifests.to_types import to_settings
from app.store.store import PolicySettings


class PolicyStatus(View):
    """Which version of the policy this is."""

    version: int
    created_at: datetime | None = None
    created_by: str = ""


class PolicyView(manifests.PolicyManifest):
    """The control loop's policy."""

    status: PolicyStatus


def policy_view(settings: PolicySettings, row: PolicyRow | None) -> PolicyView:
    """The settings as a manifest; `row` is None for the defaults, which were never saved."""
    # Every field of the manifest is one of the settings, by the same name.
    spec = {
        name: getattr(settings, name)
        for name in manifests.PolicyManifestSpec.model_fields
    }
    groups = [
        {**asdict(group), "labels": dict(group.labels)} for group in settings.groups
    ]
    return PolicyView(
        metadata=manifests.Metadata(
            name=POLICY_NAME,
            generation=settings.version,
            created_at=row.created_at if row else None,
        ),
        spec=manifests.PolicyManifestSpec.model_validate(
            {**spec, "mode": settings.mode.value, "groups": groups}
        ),
        status=PolicyStatus(
            version=settings.version,
            created_at=row.created_at if row else None,
            created_by=row.created_by if row else "",
        ),
    )


router = resource_router("policies", prefix="/policies", route_class=ManifestRoute)

PolicyName = Annotated[Name, Path(description=f"`{POLICY_NAME}`, the only one")]


@router.get("", responses=LIST)
async def list_policies(context: ClusterViewer) -> Page[PolicyView]:
    """All policies: the one that there is."""
    async with context.transaction() as connection:
        seen = await _load(context, connection, POLICY_NAME)
        return Page(items=await with_notes(KIND, connection, [seen]))


@router.get("/{name}", responses=READ)
async def get_policy(
    context: ClusterViewer, name: PolicyName, response: Response
) -> PolicyView:
    """The version in force."""
    return await read(context, KIND, name, response)


@router.get("/{name}/versions", responses=READ)
async def list_policy_versions(
    context: ClusterViewer, name: PolicyName, paging: Paging
) -> Page[PolicyView]:
    """Every version that was saved, newest first."""
    _check_exists(name)
    async with context.transaction() as connection:
        rows = await policies.list_rows(
            connection, before=paging.after_number, limit=paging.fetch
        )
    return paging.page(
        rows,
        view=lambda row: policy_view(row.settings, row),
        key=lambda row: row.settings.version,
    )


@router.put("/{name}", responses=WRITE | created(PolicyView))
async def put_policy(
    context: Admin,
    name: PolicyName,
    manifest: manifests.PolicyManifest,
    conditions: Conditions,
    response: Response,
) -> PolicyView:
    """Put a new version in force. The policy always exists, so If-Match is always needed."""
    _check_exists(name)
    check_name(name, manifest.metadata)
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.post("/{name}/pause", response_model=PolicyView, responses=ACT)
async def pause_policy(
    context: ClusterOperator,
    name: PolicyName,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Let the loop decide nothing; nodes keep what they have."""
    return await _set_paused(context, name, request, key, paused=True)


@router.post("/{name}/resume", response_model=PolicyView, responses=ACT)
async def resume_policy(
    context: ClusterOperator,
    name: PolicyName,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Let the loop decide again."""
    return await _set_paused(context, name, request, key, paused=False)


async def _set_paused(
    context: Context, name: str, request: Request, key: str | None, *, paused: bool
) -> Response:
    _check_exists(name)

    async def work(connection: Connection) -> PolicyView:
        await lock_object(connection, KIND.name, name)
        present = await policies.load_current(connection)
        # Pausing twice makes no second version.
        if present.paused is not paused:
            saved = await _save_settings(
                context, connection, with_values(present, paused=paused)
            )
            await context.audit(
                connection,
                "PolicyPaused" if paused else "PolicyResumed",
                f"policy/{name}",
                before={"version": present.version},
                after={"version": saved.version},
            )
        return await _load(context, connection, name)

    return await once(context, request, key, work)


def _check_exists(name: str) -> None:
    if name != POLICY_NAME:
        raise NotFound(f"no policy object is called {name!r}; there is {POLICY_NAME!r}")


async def _load(_context: Context, connection: Connection, name: str) -> PolicyView:
    _check_exists(name)
    rows = await policies.list_rows(connection, limit=1)
    return (
        policy_view(rows[0].settings, rows[0])
        if rows
        else policy_view(PolicySettings(), None)
    )


async def _save(
    context: Context, connection: Connection, manifest: manifests.PolicyManifest
) -> None:
    check_policy(manifest.spec.policy, field="spec.policy")
    check_parameters(manifest.spec.parameters, field="spec.parameters")
    for index, group in enumerate(manifest.spec.groups):
        check_policy(group.policy, field=f"spec.groups[{index}].policy")
    wanted = to_settings(manifest)
    present = await policies.load_current(connection)
    # Compared without the version: applying the same file again must not make one.
    if with_values(wanted, version=present.version) != present:
        await _save_settings(context, connection, wanted)


async def _save_settings(
    context: Context, connection: Connection, settings: PolicySettings
) -> PolicySettings:
    """A first version would look like the defaults, which were never saved: those are written down before."""
    if not await policies.list_rows(connection, limit=1):
        await policies.save(
            connection, PolicySettings(), at=context.now(), actor="defaults"
        )
    return await policies.save(
        connection, settings, at=context.now(), actor=context.actor
    )


KIND: ObjectKind[PolicyView, manifests.PolicyManifest] = ObjectKind(
    name="Policy", notes_labels=True, load=_load, save=_save
)
