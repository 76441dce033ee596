"""Projects: the tenants. A token that is bound to projects sees only those."""

from fastapi import Response

from app.api.http.answers import DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Admin, Viewer
from app.api.http.body import resource_router
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
from app.api.http.views import Page
from app.base.errors import InvalidRequest, NotFound
from app.db.base.transaction import Connection
from app.db.workloads import projects
from app.db.workloads.projects import ProjectRow
from app.manifests import objects as manifests
from app.manifests.parts import Name


def project_view(row: ProjectRow) -> manifests.Project:
    """A stored project as a manifest."""
    return manifests.Project(
        metadata=manifests.Metadata(
            name=row.name,
            project=row.name,
            labels=dict(row.labels),
            created_at=row.created_at,
        )
    )


router = resource_router("projects", prefix="/projects")


@router.get("", responses=LIST)
async def list_projects(context: Viewer, paging: Paging) -> Page[manifests.Project]:
    """Projects by name."""
    async with context.transaction() as connection:
        rows = [
            row
            for row in await projects.list_rows(connection, after=paging.after)
            if context.sees(row.name)
        ]
        return await list_page(
            KIND, connection, paging, [project_view(row) for row in rows]
        )


@router.get("/{name}", responses=READ)
async def get_project(
    context: Viewer, name: Name, response: Response
) -> manifests.Project:
    """One project."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(manifests.Project))
async def put_project(
    context: Admin,
    name: Name,
    manifest: manifests.Project,
    conditions: Conditions,
    response: Response,
) -> manifests.Project:
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


async def _load(
    context: Context, connection: Connection, name: str
) -> manifests.Project:
    row = next(
        (row for row in await projects.list_rows(connection) if row.name == name), None
    )
    # One answer for both, so that nobody learns which projects there are.
    if row is None or not context.sees(name):
        raise NotFound(f"no project is called {name!r}")
    return project_view(row)


async def _save(
    context: Context, connection: Connection, manifest: manifests.Project
) -> None:
    await projects.save(
        connection,
        manifest.metadata.name,
        at=context.now(),
        labels=manifest.metadata.labels,
    )


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await projects.remove(connection, name)


KIND: ObjectKind[manifests.Project, manifests.Project] = ObjectKind(
    name="Project",
    noted=frozenset({"description"}),
    load=_load,
    save=_save,
    remove=_remove,
)
