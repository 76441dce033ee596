"""Where to send the requests of services: to the gateway, else to the nodes that serve them."""

from fastapi import APIRouter

from app.api.http.answers import LIST, READ
from app.api.http.auth import Viewer
from app.api.http.pages import Paging
from app.api.http.views import Page
from app.api.workloads.endpoint_views import ServiceEndpoints, load_endpoints
from app.api.workloads.services import visible_service
from app.db.workloads import services
from app.manifests.parts import Name

router = APIRouter(tags=["services"])


@router.get("/endpoints", responses=LIST)
async def list_endpoints(context: Viewer, paging: Paging) -> Page[ServiceEndpoints]:
    """Every service's, by name; a gateway follows this list."""
    async with context.transaction() as connection:
        rows = await services.list_rows(
            connection,
            projects=context.caller.projects,
            after=paging.after,
            limit=paging.fetch,
        )
        names = [row.service.name for row in rows]
        found = await load_endpoints(context, connection, names)
    return paging.page(names, view=found.__getitem__, key=str)


@router.get("/services/{name}/endpoints", responses=READ)
async def get_service_endpoints(context: Viewer, name: Name) -> ServiceEndpoints:
    """Where to send a service's requests."""
    async with context.transaction() as connection:
        await visible_service(context, connection, name)
        return (await load_endpoints(context, connection, [name]))[name]
