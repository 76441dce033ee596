"""Profiles: operating points of a network on a GPU type. Every write that changes something is a new version."""

from typing import Annotated

from fastapi import Query, Response

from app import manifests
from app.api.answers import LIST, READ, WRITE, created
from app.api.auth import Admin, Viewer
from app.api.body import resource_router
from app.api.conversions import check_known, profile_view
from app.api.objects import Conditions, Kind, read, replace
from app.api.pages import Paging
from app.api.parts import Context
from app.api.schemas import Page, ProfileSummary, ProfileView
from app.db import gpu_types, profiles
from app.db.transaction import Connection
from app.errors import InvalidRequest, NotFound
from app.manifests import TypeName
from app.nouns import to_latency_sigma, to_points

router = resource_router("profiles", prefix="/profiles")


@router.get("", responses=LIST)
async def list_profiles(
    context: Viewer, paging: Paging, network: Annotated[TypeName | None, Query()] = None
) -> Page[ProfileSummary]:
    """Versions of profiles, oldest first, without their operating points."""
    async with context.transaction() as connection:
        rows = await profiles.list_profiles(
            connection, network_name=network, after=paging.after_number or 0, limit=paging.fetch
        )
    return paging.page(rows, view=ProfileSummary.model_validate, key=lambda row: row.id)


@router.get("/{network}/{gpu_type}", responses=READ)
async def get_profile(context: Viewer, network: TypeName, gpu_type: TypeName, response: Response) -> ProfileView:
    """The current version with its operating points."""
    return await read(context, KIND, f"{network}/{gpu_type}", response)


@router.put("/{network}/{gpu_type}", responses=WRITE | created(ProfileView))
async def put_profile(
    context: Admin,
    network: TypeName,
    gpu_type: TypeName,
    manifest: manifests.Profile,
    conditions: Conditions,
    response: Response,
) -> ProfileView:
    """Make a new version the current one. The profile is known by its network and GPU type, not by its name."""
    if (manifest.spec.network, manifest.spec.gpu_type) != (network, gpu_type):
        raise InvalidRequest(f"the path says {network}/{gpu_type}; network and gpu_type must agree", field="spec")
    return await replace(context, KIND, f"{network}/{gpu_type}", manifest, conditions=conditions, response=response)


async def _load(_context: Context, connection: Connection, name: str) -> ProfileView:
    network, gpu_type = name.split("/")
    versions = await profiles.list_profiles(connection, network_name=network)
    current = next((row for row in versions if row.gpu_type == gpu_type and row.is_current), None)
    if current is None:
        raise NotFound(f"network {network!r} has no profile on {gpu_type!r}")
    return profile_view(*await profiles.get_profile(connection, current.id))


async def _save(context: Context, connection: Connection, manifest: manifests.Profile) -> None:
    points = to_points(manifest)
    networks = [row.name for row in await profiles.list_networks(connection)]
    types = [row.gpu_type.name for row in await gpu_types.list_rows(connection, context.now())]
    check_known([points.network], networks, what="network", field="spec.network")
    check_known([points.gpu_type], types, what="GPU type", field="spec.gpu_type")
    profile = profiles.Profile(
        points=points,
        provenance=manifest.spec.provenance,
        source=context.actor,
        latency_sigma=to_latency_sigma(manifest),
    )
    await profiles.save_profiles(connection, [profile], at=context.now())


KIND: Kind[ProfileView, manifests.Profile] = Kind(name="Profile", notes_labels=True, load=_load, save=_save)
