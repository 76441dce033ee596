"""Rows of the database → what the API answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal

from app import manifests
from app.api.forecast_schemas import QuantileView, ScoreView, ServiceForecast
from app.api.schemas import (
    ConditionView,
    GpuTypeStatus,
    GpuTypeView,
    NetworkStatus,
    NetworkView,
    NodeStatus,
    NodeView,
    PolicyStatus,
    PolicyView,
    PredictionView,
    ProfileStatus,
    ProfileView,
    ReadingView,
    ServiceStatusView,
    ServiceView,
)
from app.control.forecasts import ForecastView
from app.control.status import ServiceStatus
from app.control.store import PolicySettings
from app.db.gpu_types import GpuTypeRow
from app.db.nodes import NodeRow
from app.db.policies import PolicyRow
from app.db.profiles import NetworkRow, Profile, ProfileRow
from app.db.projects import ProjectRow
from app.db.services import ServiceRow
from app.errors import InvalidRequest, no_such
from solvers.state import Service

POLICY_NAME = "default"
"""There is one policy object for now; per-project policies would be others."""


def service_view(row: ServiceRow, status: ServiceStatus | None) -> ServiceView:
    """A stored service as a manifest with its status."""
    return ServiceView(
        metadata=manifests.Metadata(
            name=row.service.name,
            project=row.service.project,
            labels=dict(row.labels),
            annotations=dict(row.annotations),
            generation=row.generation,
            created_at=row.created_at,
        ),
        spec=_service_spec(row.service),
        status=None if status is None else _service_status(row.generation, status),
    )


def _service_spec(noun: Service) -> manifests.ServiceSpec:
    allowed = None if noun.allowed_gpu_types is None else list(noun.allowed_gpu_types)
    return manifests.ServiceSpec(
        network=noun.network,
        variants=[manifests.Variant(network=each.network, accuracy=each.accuracy) for each in noun.variants],
        accuracy_floor=noun.accuracy_floor,
        slo=manifests.Slo(latency_ms=noun.slo.latency_ms, percentile=noun.slo.percentile),
        scaling=manifests.Scaling(
            min_replicas=noun.scaling.min_replicas,
            max_replicas=noun.scaling.max_replicas,
            upscale_delay_s=noun.scaling.upscale_delay_s,
            downscale_delay_s=noun.scaling.downscale_delay_s,
            buffer_replicas=noun.scaling.buffer_replicas,
        ),
        priority=noun.priority,
        gpu_types=manifests.GpuChoice(allowed=allowed, excluded=list(noun.excluded_gpu_types)),
        mode=noun.mode.value,
    )


def _service_status(generation: int, status: ServiceStatus) -> ServiceStatusView:
    return ServiceStatusView(
        observed_generation=generation,
        replicas=dict(status.replicas),
        planned_rate_rps=status.planned_rate_rps,
        reading=None if status.reading is None else ReadingView.model_validate(status.reading),
        conditions=[ConditionView.model_validate(condition) for condition in status.conditions],
    )


def service_forecast(found: ForecastView) -> ServiceForecast:
    """A service's forecast, its back-tests with the least loss first."""
    judged = sorted(found.scores.items(), key=lambda item: (item[1].pinball_rps, item[0]))
    return ServiceForecast(
        service=found.service,
        technique=found.technique,
        margin=found.margin,
        telemetry=found.telemetry,
        silent_for_s=found.silent_for_s,
        horizon_s=found.horizon_s,
        quantiles=[
            QuantileView(level=level, rate_rps=rate_rps)
            # No rates where telemetry is missing.
            for level, rate_rps in zip(found.levels, found.rates_rps, strict=False)
        ],
        scores=[ScoreView(technique=name, **asdict(score)) for name, score in judged],
        judged_at=datetime.fromtimestamp(found.judged_until_s, UTC) if found.judged_until_s else None,
    )


def gpu_type_view(row: GpuTypeRow) -> GpuTypeView:
    """A stored GPU type as a manifest."""
    noun = row.gpu_type
    return GpuTypeView(
        metadata=manifests.TypeMetadata(name=noun.name, labels=dict(row.labels), created_at=row.created_at),
        spec=manifests.GpuTypeSpec(
            price_usd_per_hour=Decimal(repr(noun.price_usd_per_hour)),
            memory_mib=noun.memory_mib,
            sm_percent_step=noun.sm_percent_step,
            idle_w=noun.idle_w,
            power_cap_w=noun.power_cap_w,
            clocks_mhz=list(noun.clocks_mhz),
            launch_per_neighbour=noun.launch_per_neighbour,
            launch_base=noun.launch_base,
        ),
        status=GpuTypeStatus(provenance=row.provenance),
    )


def node_gpu_types(manifest: manifests.Node) -> dict[int, str]:
    """The types of a node's GPUs by index; slices (MIG) leave gaps between them."""
    return {gpu.index: gpu.gpu_type for gpu in sorted(manifest.spec.gpus, key=lambda gpu: gpu.index)}


def node_view(row: NodeRow) -> NodeView:
    """A stored node as a manifest with what its agent last said."""
    return NodeView(
        metadata=manifests.Metadata(name=row.node.id, labels=dict(row.labels), created_at=row.created_at),
        spec=manifests.NodeSpec(
            gpus=[manifests.NodeGpu(index=gpu.index, gpu_type=gpu.gpu_type) for gpu in row.gpus],
            cordoned=row.node.cordoned,
            power_cap_w=row.node.power_cap_w,
        ),
        status=NodeStatus(
            last_seen_at=row.last_seen_at,
            silent_for_s=row.node.silent_for_s,
            agent_version=row.agent_version,
            observed_generation=row.observed_generation,
            clock_skew_s=row.clock_skew_s,
            problems=list(row.problems),
            healthy_gpus=sum(gpu.healthy for gpu in row.gpus),
        ),
    )


def network_view(row: NetworkRow, predictions: Sequence[PredictionView] | None = None) -> NetworkView:
    """A stored network as a manifest; in lists without its predictions."""
    return NetworkView(
        metadata=manifests.TypeMetadata(name=row.name, labels=dict(row.labels), created_at=row.created_at),
        spec=manifests.NetworkSpec(description=row.description),
        status=NetworkStatus(
            gpu_types=list(row.gpu_types), predictions=None if predictions is None else list(predictions)
        ),
    )


def _latency_sigma(profile: Profile) -> float | list[float | None] | None:
    """One figure where all rows have the same."""
    stated = profile.stated_sigma
    return stated[0] if len(set(stated)) == 1 else list(stated)


def profile_name(network: str, gpu_type: str) -> str:
    """What a profile is called in answers: manifests may call it as they like."""
    return f"{network}.{gpu_type}"[:63].rstrip(".-_")


def profile_view(row: ProfileRow, profile: Profile) -> ProfileView:
    """A stored profile as a manifest."""
    return ProfileView(
        metadata=manifests.TypeMetadata(
            name=profile_name(row.network, row.gpu_type), generation=row.version, created_at=row.created_at
        ),
        spec=manifests.ProfileSpec(
            network=row.network,
            gpu_type=row.gpu_type,
            sensitivity=row.sensitivity,
            provenance=row.provenance,
            latency_sigma=_latency_sigma(profile),
            rows=list(profile.points.rows),
        ),
        status=ProfileStatus(id=row.id, version=row.version, is_current=row.is_current, source=row.source),
    )


def project_view(row: ProjectRow) -> manifests.Project:
    """A stored project as a manifest."""
    return manifests.Project(
        metadata=manifests.Metadata(name=row.name, project=row.name, labels=dict(row.labels), created_at=row.created_at)
    )


def policy_view(settings: PolicySettings, row: PolicyRow | None) -> PolicyView:
    """The settings as a manifest; `row` is None for the defaults that nobody saved."""
    spec = {name: getattr(settings, name) for name in manifests.PolicySpec.model_fields}
    groups = [{**asdict(group), "labels": dict(group.labels)} for group in settings.groups]
    return PolicyView(
        metadata=manifests.Metadata(
            name=POLICY_NAME, generation=settings.version, created_at=row.created_at if row else None
        ),
        spec=manifests.PolicySpec.model_validate({**spec, "mode": settings.mode.value, "groups": groups}),
        status=PolicyStatus(
            version=settings.version,
            created_at=row.created_at if row else None,
            created_by=row.created_by if row else "",
        ),
    )


def parse_selector(selector: str | None) -> Mapping[str, str]:
    """Labels that are wanted: `tier=web,team=nlp`. Raises InvalidRequest."""
    if not selector:
        return {}
    wanted: dict[str, str] = {}
    for part in selector.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise InvalidRequest("`label_selector` must read `name=value`, several joined by commas")
        wanted[name] = value
    return wanted


def check_known(names: Sequence[str], known: Sequence[str], *, what: str, field: str) -> None:
    """Raise InvalidRequest, which lists what exists, for the first name that does not."""
    for name in names:
        if name not in known:
            raise InvalidRequest(no_such(what, name, known), field=field)
