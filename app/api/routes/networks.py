"""Networks: what services run."""

from fastapi import Response

from app import manifests
from app.api.answers import DELETE, LIST, READ, WRITE, created
from app.api.auth import Admin, Viewer
from app.api.body import resource_router
from app.api.conversions import network_view
from app.api.objects import Conditions, Kind, check_name, delete, list_page, read, replace
from app.api.pages import Paging
from app.api.parts import Context
from app.api.predictions import load_predictions
from app.api.schemas import NetworkView, Page
from app.db import profiles
from app.db.transaction import Connection
from app.manifests import TypeName

router = resource_router("networks", prefix="/networks")


@router.get("", responses=LIST)
async def list_networks(context: Viewer, paging: Paging) -> Page[NetworkView]:
    """Networks by name."""
    async with context.transaction() as connection:
        rows = await profiles.list_networks(connection, after=paging.after, limit=paging.fetch)
        return await list_page(KIND, connection, paging, [network_view(row) for row in rows])


@router.get("/{name}", responses=READ)
async def get_network(context: Viewer, name: TypeName, response: Response) -> NetworkView:
    """One network."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(NetworkView))
async def put_network(
    context: Admin, name: TypeName, manifest: manifests.Network, conditions: Conditions, response: Response
) -> NetworkView:
    """Create or replace a network."""
    check_name(name, manifest.metadata)
    return await replace(context, KIND, name, manifest, conditions=conditions, response=response)


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_network(context: Admin, name: TypeName, conditions: Conditions) -> None:
    """Delete a network with its profiles; not when a service runs it or ever did."""
    await delete(context, KIND, name, conditions)


async def _load(_context: Context, connection: Connection, name: str) -> NetworkView:
    row = await profiles.get_network(connection, name)
    return network_view(row, await load_predictions(connection, name))


async def _save(context: Context, connection: Connection, manifest: manifests.Network) -> None:
    await profiles.save_network(
        connection,
        manifest.metadata.name,
        at=context.now(),
        description=manifest.spec.description,
        labels=manifest.metadata.labels,
    )


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await profiles.remove_network(connection, name)


KIND: Kind[NetworkView, manifests.Network] = Kind(
    name="Network", noted=frozenset({"parameter_bytes"}), load=_load, save=_save, remove=_remove
)
