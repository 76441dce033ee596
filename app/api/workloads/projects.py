"""Projects: the tenants. A token that is bound to projects sees only those."""

from collections.abc import Mapping
from dataclasses import asdict

from fastapi import Response
from pydantic import Field

from app.api.http.answers import DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Admin, Viewer
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.objects import (
    Conditions,
    ObjectKind,
    delete,
    list_page,
    read,
    replace,
)
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.base.errors import InvalidRequest, NotFound
from app.db.base.transaction import Connection
from app.db.workloads import projects, quotas
from app.db.workloads.projects import ProjectRow
from app.db.workloads.quotas import ProjectQuota, QuotaUse
from app.manifests import objects as manifests
from app.manifests.parts import Name


class ProjectStatus(View):
    """What of its quota a project uses."""

    max_replicas: int | None = Field(
        description="Replicas that its services may run together; null: one of them states no limit"
    )
    max_gpus: int | None = Field(
        description="That its services and its tasks that are not over may hold together; null: a service states no "
        "max_replicas"
    )
    max_simulations: int = Field(description="Of its simulations, that wait or run")


class ProjectView(manifests.Project):
    """A project."""

    status: ProjectStatus


def project_view(row: ProjectRow, used: Mapping[str, QuotaUse]) -> ProjectView:
    """A stored project as a manifest. `used`: by project, of `quotas.load_used`."""
    own = used.get(row.name, QuotaUse())
    return ProjectView(
        metadata=manifests.Metadata(
            name=row.name,
            project=row.name,
            labels=dict(row.labels),
            created_at=row.created_at,
        ),
        spec=manifests.ProjectSpec(quota=manifests.QuotaSpec(**asdict(row.quota))),
        status=ProjectStatus(
            max_replicas=own.replicas,
            max_gpus=own.gpus,
            max_simulations=own.simulations,
        ),
    )


router = resource_router("projects", prefix="/projects", route_class=ManifestRoute)


@router.get("", responses=LIST)
async def list_projects(context: Viewer, paging: Paging) -> Page[ProjectView]:
    """Projects by name."""
    async with context.transaction() as connection:
        rows = [
            row
            for row in await projects.list_rows(connection, after=paging.after)
            if context.sees(row.name)
        ]
        used = await quotas.load_used(connection)
        return await list_page(
            KIND, connection, paging, [project_view(row, used) for row in rows]
        )


@router.get("/{name}", responses=READ)
async def get_project(context: Viewer, name: Name, response: Response) -> ProjectView:
    """One project."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(ProjectView))
async def put_project(
    context: Admin,
    name: Name,
    manifest: manifests.Project,
    conditions: Conditions,
    response: Response,
) -> ProjectView:
    """Create or replace a project."""
    # Not `check_name`: it refuses `metadata.project`, which a project's answer states as its own name.
    if manifest.metadata.name != name:
        raise InvalidRequest(
            f"is {manifest.metadata.name!r}, the path says {name!r}",
            field="metadata.name",
        )
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_project(context: Admin, name: Name, conditions: Conditions) -> None:
    """Delete a project; not when it has services or ever had."""
    await delete(context, KIND, name, conditions)


async def _load(context: Context, connection: Connection, name: str) -> ProjectView:
    row = next(
        (row for row in await projects.list_rows(connection) if row.name == name), None
    )
    # One answer for both, so that no caller learns which projects there are.
    if row is None or not context.sees(name):
        raise NotFound(f"no project is called {name!r}")
    return project_view(row, await quotas.load_used(connection))


async def _save(
    context: Context, connection: Connection, manifest: manifests.Project
) -> None:
    await projects.save(
        connection,
        manifest.metadata.name,
        at=context.now(),
        labels=manifest.metadata.labels,
        quota=ProjectQuota(**manifest.spec.quota.model_dump()),
    )


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await projects.remove(connection, name)


KIND: ObjectKind[ProjectView, manifests.Project] = ObjectKind(
    name="Project",
    noted=frozenset({"description"}),
    load=_load,
    save=_save,
    remove=_remove,
)
