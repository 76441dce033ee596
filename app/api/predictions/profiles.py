"""Profiles: operating points of a network on a GPU type. Every write that changes something is a new version."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Query, Response

from app.api.http.answers import LIST, READ, WRITE, created
from app.api.http.auth import Admin, Viewer
from app.api.http.body import LargeBodyRoute, resource_router
from app.api.http.known_names import check_gpu_types, check_known
from app.api.http.objects import Conditions, ObjectKind, read, replace
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.base.errors import InvalidRequest, NotFound
from app.db.base.transaction import Connection
from app.db.predictions import profiles
from app.db.predictions.profiles import ProfileRow, StoredProfile
from app.manifests import objects as manifests
from app.manifests.parts import TypeName
from app.manifests.to_types import to_latency_sigma, to_points
from solvers.types.problem import OperatingPoint


class ProfileStatus(View):
    """Which version of a profile this is."""

    id: int
    version: int
    is_current: bool
    source: str


class ProfileView(manifests.ProfileManifest):
    """A profile with its operating points."""

    status: ProfileStatus


class ProfileSummary(View):
    """One version of a profile without its operating points."""

    id: int
    network: str
    gpu_type: str
    version: int
    is_current: bool
    sensitivity: float
    provenance: str
    source: str
    created_at: datetime


def _latency_sigma(profile: StoredProfile) -> float | list[float | None] | None:
    """One figure where all rows have the same."""
    stated = profile.stated_sigma
    # As it was most likely written: one figure for all, or one per row.
    return stated[0] if len(set(stated)) == 1 else list(stated)


def profile_name(network: str, gpu_type: str) -> str:
    """What a profile is called in answers: manifests may call it as they like."""
    return f"{network}.{gpu_type}"[:63].rstrip(".-_")


def profile_view(row: ProfileRow, profile: StoredProfile) -> ProfileView:
    """A stored profile as a manifest."""
    return ProfileView(
        metadata=manifests.TypeMetadata(
            name=profile_name(row.network, row.gpu_type),
            generation=row.version,
            created_at=row.created_at,
        ),
        spec=manifests.ProfileSpec(
            network=row.network,
            gpu_type=row.gpu_type,
            sensitivity=row.sensitivity,
            provenance=row.provenance,
            latency_sigma=_latency_sigma(profile),
            # Stalls, the last of a row, are stated apart: of inference there are none.
            rows=[row[:-1] for row in profile.points.rows],
            stall_ms=_stalls_ms(profile.points.rows),
        ),
        status=ProfileStatus(
            id=row.id, version=row.version, is_current=row.is_current, source=row.source
        ),
    )


def _stalls_ms(rows: Sequence[OperatingPoint]) -> list[float] | None:
    """None where nothing stalls, as for every inference network."""
    stalls_ms = [row.stall_ms for row in rows]
    return stalls_ms if any(stalls_ms) else None


router = resource_router("profiles", prefix="/profiles", route_class=LargeBodyRoute)


@router.get("", responses=LIST)
async def list_profiles(
    context: Viewer, paging: Paging, network: Annotated[TypeName | None, Query()] = None
) -> Page[ProfileSummary]:
    """Versions of profiles, oldest first, without their operating points."""
    async with context.transaction() as connection:
        rows = await profiles.list_profiles(
            connection,
            network_name=network,
            after=paging.after_number or 0,
            limit=paging.fetch,
        )
    return paging.page(rows, view=ProfileSummary.model_validate, key=lambda row: row.id)


@router.get("/{network}/{gpu_type}", responses=READ)
async def get_profile(
    context: Viewer, network: TypeName, gpu_type: TypeName, response: Response
) -> ProfileView:
    """The current version with its operating points."""
    return await read(context, KIND, f"{network}/{gpu_type}", response)


@router.put("/{network}/{gpu_type}", responses=WRITE | created(ProfileView))
async def put_profile(
    context: Admin,
    network: TypeName,
    *,
    gpu_type: TypeName,
    manifest: manifests.ProfileManifest,
    conditions: Conditions,
    response: Response,
) -> ProfileView:
    """Make a new version the current one. The profile is known by its network and GPU type, not by its name."""
    # Checked instead of the name: the pair is what a profile is known by.
    if (manifest.spec.network, manifest.spec.gpu_type) != (network, gpu_type):
        raise InvalidRequest(
            f"the path says {network}/{gpu_type}; network and gpu_type must agree",
            field="spec",
        )
    return await replace(
        context,
        KIND,
        f"{network}/{gpu_type}",
        manifest,
        conditions=conditions,
        response=response,
    )


async def _load(_context: Context, connection: Connection, name: str) -> ProfileView:
    # Neither can hold a slash, by the rule of their names.
    network, gpu_type = name.split("/")
    versions = await profiles.list_profiles(connection, network_name=network)
    current = next(
        (row for row in versions if row.gpu_type == gpu_type and row.is_current), None
    )
    if current is None:
        raise NotFound(f"network {network!r} has no profile on {gpu_type!r}")
    return profile_view(*await profiles.get_profile(connection, current.id))


async def _save(
    context: Context, connection: Connection, manifest: manifests.ProfileManifest
) -> None:
    points = to_points(manifest)
    networks = [row.name for row in await profiles.list_networks(connection)]
    check_known([points.network], networks, what="network", field="spec.network")
    await check_gpu_types(context, connection, [points.gpu_type], field="spec.gpu_type")
    profile = profiles.StoredProfile(
        points=points,
        provenance=manifest.spec.provenance,
        source=context.actor,
        # Kept next to the points, not in them: planners read rows, and what is uncertain is applied before.
        latency_sigma=to_latency_sigma(manifest),
    )
    await profiles.save_profiles(connection, [profile], at=context.now())


KIND: ObjectKind[ProfileView, manifests.ProfileManifest] = ObjectKind(
    name="Profile", notes_labels=True, load=_load, save=_save
)
