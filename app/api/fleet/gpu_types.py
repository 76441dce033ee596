"""GPU types and their prices."""

from dataclasses import asdict
from decimal import Decimal

from fastapi import Response

from app.api.http.answers import DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Admin, Viewer
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.objects import (
    Conditions,
    ObjectKind,
    check_name,
    delete,
    list_page,
    read,
    replace,
)
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.db.base.transaction import Connection
from app.db.fleet import gpu_types
from app.db.fleet.gpu_types import GpuTypeRow
from app.manifests import objects as manifests
from app.manifests.parts import TypeName
from app.manifests.to_types import to_gpu_type
from solvers.types.state import ALL_PAID


class GpuTypeStatus(View):
    """What the server knows of a GPU type."""

    provenance: str = ""


class GpuTypeView(manifests.GpuTypeManifest):
    """A GPU type."""

    status: GpuTypeStatus


def gpu_type_view(row: GpuTypeRow) -> GpuTypeView:
    """A stored GPU type as a manifest."""
    noun = row.gpu_type
    return GpuTypeView(
        metadata=manifests.TypeMetadata(
            name=noun.name, labels=dict(row.labels), created_at=row.created_at
        ),
        spec=manifests.GpuTypeSpec(
            # By its shortest text: Decimal(float) would show 0.1 with fifty digits.
            price_usd_per_hour=Decimal(repr(noun.price_usd_per_hour)),
            memory_mib=noun.memory_mib,
            sm_percent_step=noun.sm_percent_step,
            idle_w=noun.idle_w,
            power_cap_w=noun.power_cap_w,
            clocks_mhz=list(noun.clocks_mhz),
            launch_per_neighbour=noun.launch_per_neighbour,
            launch_base=noun.launch_base,
            llm=None if noun.llm is None else manifests.DataSheet(**asdict(noun.llm)),
            paid="all" if noun.paid_count == ALL_PAID else noun.paid_count,
        ),
        status=GpuTypeStatus(provenance=row.provenance),
    )


router = resource_router("gpu-types", prefix="/gpu-types", route_class=ManifestRoute)


@router.get("", responses=LIST)
async def list_gpu_types(context: Viewer, paging: Paging) -> Page[GpuTypeView]:
    """GPU types by name, with the price of now."""
    async with context.transaction() as connection:
        rows = await gpu_types.list_rows(
            connection, context.now(), after=paging.after, limit=paging.fetch
        )
        return await list_page(
            KIND, connection, paging, [gpu_type_view(row) for row in rows]
        )


@router.get("/{name}", responses=READ)
async def get_gpu_type(
    context: Viewer, name: TypeName, response: Response
) -> GpuTypeView:
    """One GPU type, with the price of now."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(GpuTypeView))
async def put_gpu_type(
    context: Admin,
    name: TypeName,
    manifest: manifests.GpuTypeManifest,
    conditions: Conditions,
    response: Response,
) -> GpuTypeView:
    """Create or replace a GPU type; another price holds from now on, earlier hours keep theirs."""
    # The path names the object; a body that names another one is a slip, and must not create a third.
    check_name(name, manifest.metadata)
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_gpu_type(
    context: Admin, name: TypeName, conditions: Conditions
) -> None:
    """Delete a GPU type with its prices and profiles; not while GPUs of it are registered."""
    await delete(context, KIND, name, conditions)


async def _load(context: Context, connection: Connection, name: str) -> GpuTypeView:
    return gpu_type_view(await gpu_types.get(connection, name, context.now()))


async def _save(
    context: Context, connection: Connection, manifest: manifests.GpuTypeManifest
) -> None:
    await gpu_types.save(
        connection,
        to_gpu_type(manifest),
        # A price holds from a moment on, so that the hours before keep what they cost.
        at=context.now(),
        labels=manifest.metadata.labels,
    )


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await gpu_types.remove(connection, name)


KIND: ObjectKind[GpuTypeView, manifests.GpuTypeManifest] = ObjectKind(
    name="GpuType",
    # The planner does not read it, so that the table of GPU types has no column for it.
    noted=frozenset({"sm_count"}),
    load=_load,
    save=_save,
    remove=_remove,
)
