"""GPU types and their prices."""

from fastapi import Response

from app import manifests
from app.api.answers import DELETE, LIST, READ, WRITE, created
from app.api.auth import Admin, Viewer
from app.api.body import resource_router
from app.api.conversions import gpu_type_view
from app.api.objects import Conditions, Kind, check_name, delete, list_page, read, replace
from app.api.pages import Paging
from app.api.parts import Context
from app.api.schemas import GpuTypeView, Page
from app.db import gpu_types
from app.db.transaction import Connection
from app.manifests import TypeName
from app.nouns import to_gpu_type

router = resource_router("gpu-types", prefix="/gpu-types")


@router.get("", responses=LIST)
async def list_gpu_types(context: Viewer, paging: Paging) -> Page[GpuTypeView]:
    """GPU types by name, with the price of now."""
    async with context.transaction() as connection:
        rows = await gpu_types.list_rows(connection, context.now(), after=paging.after, limit=paging.fetch)
        return await list_page(KIND, connection, paging, [gpu_type_view(row) for row in rows])


@router.get("/{name}", responses=READ)
async def get_gpu_type(context: Viewer, name: TypeName, response: Response) -> GpuTypeView:
    """One GPU type, with the price of now."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(GpuTypeView))
async def put_gpu_type(
    context: Admin, name: TypeName, manifest: manifests.GpuType, conditions: Conditions, response: Response
) -> GpuTypeView:
    """Create or replace a GPU type; another price holds from now on, earlier hours keep theirs."""
    check_name(name, manifest.metadata)
    return await replace(context, KIND, name, manifest, conditions=conditions, response=response)


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_gpu_type(context: Admin, name: TypeName, conditions: Conditions) -> None:
    """Delete a GPU type with its prices and profiles; not while GPUs of it are registered."""
    await delete(context, KIND, name, conditions)


async def _load(context: Context, connection: Connection, name: str) -> GpuTypeView:
    return gpu_type_view(await gpu_types.get(connection, name, context.now()))


async def _save(context: Context, connection: Connection, manifest: manifests.GpuType) -> None:
    await gpu_types.save(connection, to_gpu_type(manifest), at=context.now(), labels=manifest.metadata.labels)


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await gpu_types.remove(connection, name)


KIND: Kind[GpuTypeView, manifests.GpuType] = Kind(
    name="GpuType", noted=frozenset({"sm_count"}), load=_load, save=_save, remove=_remove
)
