"""Networks: what services run."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Response
from pydantic import Field

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
from app.base.errors import InvalidRequest
from app.db.base.transaction import Connection
from app.db.predictions import fits, health, profiles, samples
from app.db.predictions.fits import FitRow
from app.db.predictions.profiles import NetworkRow, ProfileRow
from app.manifests import objects as manifests
from app.manifests.parts import TypeName
from app.store.store import FitHealth
from solvers.llm.config_json import architecture_from_config
from solvers.types.errors import InvalidInput
from solvers.types.llm import StatedRun


class PredictionView(View):
    """How well the times of a network on one GPU type are known; errors are shares, 0.02 = 2 %."""

    gpu_type: str
    profile_version: int
    provenance: str
    source: str
    technique: str | None = Field(
        description="Of the latency fit in force; null: nothing was fitted"
    )
    cross_validated_error: float | None
    samples: int
    correction: float | None = Field(
        description="Learned true over stated time, of all rows; null: not served yet"
    )
    error: float | None = Field(
        description="Of the corrected times, over the last half minute of serving"
    )
    band: float | None = Field(description="Errors above it raise the alarm")
    alarm_since: datetime | None = Field(description="Start of the present drift alarm")


class NetworkStatus(View):
    """What the server knows of a network."""

    gpu_types: list[str] = Field(description="GPU types that it has a profile on")
    predictions: list[PredictionView] | None = Field(
        default=None,
        description="How accurately its times are known, by GPU type; null in lists",
    )


class NetworkView(manifests.Network):
    """A network."""

    status: NetworkStatus


def network_view(
    row: NetworkRow, predictions: Sequence[PredictionView] | None = None
) -> NetworkView:
    """A stored network as a manifest; in lists without its predictions."""
    return NetworkView(
        metadata=manifests.TypeMetadata(
            name=row.name, labels=dict(row.labels), created_at=row.created_at
        ),
        spec=manifests.NetworkSpec(
            description=row.description,
            config=None if row.config is None else dict(row.config),
            runs=[_run_spec(each) for each in row.runs],
        ),
        status=NetworkStatus(
            gpu_types=list(row.gpu_types),
            # Lists leave them out: each takes four queries, and a list may have hundreds of networks.
            predictions=None if predictions is None else list(predictions),
        ),
    )


def _run_spec(run: Mapping[str, Any]) -> manifests.RunSpec:
    fields = dict(run)
    dtype = fields.pop("precision")
    return manifests.RunSpec(**fields, dtype=dtype)


router = resource_router("networks", prefix="/networks", route_class=ManifestRoute)


@router.get("", responses=LIST)
async def list_networks(context: Viewer, paging: Paging) -> Page[NetworkView]:
    """Networks by name."""
    async with context.transaction() as connection:
        rows = await profiles.list_networks(
            connection, after=paging.after, limit=paging.fetch
        )
        return await list_page(
            KIND, connection, paging, [network_view(row) for row in rows]
        )


@router.get("/{name}", responses=READ)
async def get_network(
    context: Viewer, name: TypeName, response: Response
) -> NetworkView:
    """One network."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(NetworkView))
async def put_network(
    context: Admin,
    name: TypeName,
    manifest: manifests.Network,
    conditions: Conditions,
    response: Response,
) -> NetworkView:
    """Create or replace a network."""
    check_name(name, manifest.metadata)
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_network(
    context: Admin, name: TypeName, conditions: Conditions
) -> None:
    """Delete a network with its profiles; not when a service runs it or ever did."""
    await delete(context, KIND, name, conditions)


async def _load(_context: Context, connection: Connection, name: str) -> NetworkView:
    row = await profiles.get_network(connection, name)
    # One network is shown with them: here a person looks whether its times can be trusted.
    return network_view(row, await load_predictions(connection, name))


async def _save(
    context: Context, connection: Connection, manifest: manifests.Network
) -> None:
    _check_config(manifest.spec.config)
    await profiles.save_network(
        connection,
        manifest.metadata.name,
        at=context.now(),
        description=manifest.spec.description,
        labels=manifest.metadata.labels,
        config=manifest.spec.config,
        runs=[
            StatedRun(**each.model_dump(exclude={"dtype"}), precision=each.dtype)
            for each in manifest.spec.runs
        ],
    )


def _check_config(config: Mapping[str, Any] | None) -> None:
    """Raise InvalidRequest for a configuration that does not tell what the network is made of."""
    if config is None:
        return
    try:
        architecture_from_config(config)
    except InvalidInput as error:
        raise InvalidRequest(str(error), field="spec.config") from error


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await profiles.remove_network(connection, name)


KIND: ObjectKind[NetworkView, manifests.Network] = ObjectKind(
    name="Network",
    noted=frozenset({"parameter_bytes"}),
    load=_load,
    save=_save,
    remove=_remove,
)


async def load_predictions(
    connection: Connection, network: str
) -> list[PredictionView]:
    """One entry per GPU type that the network has a profile on, by GPU type."""
    versions = await profiles.list_profiles(connection, network_name=network)
    fitted = {
        row.gpu_type: row
        for row in await fits.list_rows(connection, network=network, current_only=True)
        # Fits of power and memory have errors of their own, which say nothing of times.
        if row.quantity == "latency_ms"
    }
    counted = {
        row.gpu_type: row.samples
        for row in await samples.count(connection, network=network)
    }
    served = {
        row.group.gpu_type: row for row in await health.load_all(connection, network)
    }
    current = sorted(
        (row for row in versions if row.is_current), key=lambda row: row.gpu_type
    )
    return [
        _view(
            row,
            fitted.get(row.gpu_type),
            counted.get(row.gpu_type, 0),
            served.get(row.gpu_type),
        )
        for row in current
    ]


def _view(
    profile: ProfileRow, fit: FitRow | None, sampled: int, served: FitHealth | None
) -> PredictionView:
    now = None if served is None else served.now
    # None of it is known of a network that was never served: the fields are null then, not 0.
    since_s = None if now is None else now.alarm_since_s
    return PredictionView(
        gpu_type=profile.gpu_type,
        profile_version=profile.version,
        provenance=profile.provenance,
        source=profile.source,
        technique=None if fit is None else fit.technique,
        cross_validated_error=None if fit is None else fit.cross_validated_error,
        samples=sampled,
        # The belief is about the logarithm of true over stated time; its first mean is that of all rows together.
        correction=None if now is None else math.exp(now.belief.mean[0]),
        error=None if now is None else now.error,
        band=None if now is None else now.band,
        alarm_since=None if since_s is None else datetime.fromtimestamp(since_s, UTC),
    )
