"""Rows of the database → what the API answers."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from app.answers.status import ServiceStatus
from app.api.http.views import ConditionView, View
from app.db.workloads.services import ServiceRow
from app.learn.choose_forecasts import ForecastView
from app.manifests import objects as manifests
from solvers.types.llm import LlmTerms
from solvers.types.state import Service


class ReadingView(View):
    """What the agents saw of a service in the last minute."""

    arrival_rate_rps: float
    served_rps: float
    latency_ms: float | None = Field(description="At the SLO's percentile")
    attainment: float | None = Field(
        description="Share of requests that met the SLO, 0 to 1"
    )
    age_s: float


class ServiceStatusView(View):
    """What is known of a service."""

    observed_generation: int = Field(
        description="Generation of the manifest that the plan in force was made for, or last kept for; 0: none yet. "
        "Where it is less than `metadata.generation`, the conditions still describe an older manifest"
    )
    replicas: dict[str, int] = Field(description="Replicas in the target by GPU type")
    planned_rate_rps: float
    endpoint: str | None = Field(
        description="Send requests here; see `/services/{name}/endpoints`"
    )
    reading: ReadingView | None
    conditions: list[ConditionView]


class ServiceView(manifests.ServiceManifest):
    """A service."""

    status: ServiceStatusView | None = Field(
        default=None, description="null for a service created just now"
    )


def service_view(
    row: ServiceRow, status: ServiceStatus | None, endpoint: str | None = None
) -> ServiceView:
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
        status=None
        if status is None
        else _service_status(row.observed_generation, status, endpoint),
    )


def _service_spec(noun: Service) -> manifests.ServiceSpec:
    allowed = None if noun.allowed_gpu_types is None else list(noun.allowed_gpu_types)
    return manifests.ServiceSpec(
        network=noun.network,
        variants=[manifests.VariantManifest(**asdict(each)) for each in noun.variants],
        accuracy_floor=noun.accuracy_floor,
        kind="inference" if noun.llm is None else "llm",
        slo=_slo(noun),
        llm=_llm(noun.llm),
        scaling=manifests.ScalingSpec(**asdict(noun.scaling)),
        priority=noun.priority,
        gpu_types=manifests.GpuChoice(
            allowed=allowed, excluded=list(noun.excluded_gpu_types)
        ),
        mode=noun.mode.value,
        survive=noun.survival.loss if noun.survival else None,
        survive_share=noun.survival.share if noun.survival else None,
        anti_affinity=list(noun.anti_affinity),
    )


def _slo(noun: Service) -> manifests.SloSpec:
    tokens = noun.token_slo
    if tokens is None:
        return manifests.SloSpec(**asdict(noun.slo))
    # As a manifest states it that leaves the default out: nothing seems lost.
    itl = None if tokens.itl == "token" else tokens.itl
    return manifests.SloSpec(**asdict(tokens) | {"itl": itl, "budget": noun.slo.budget})


def _llm(terms: LlmTerms | None) -> manifests.LlmSpec | None:
    if terms is None:
        return None
    return manifests.LlmSpec(
        dtype=terms.precision,
        # Learned ones belong to the status, not to what was stated.
        lengths=None
        if terms.learns_lengths
        else manifests.LengthsSpec(
            prompt=terms.prompt_tokens,
            output=terms.output_tokens,
            spread=terms.spread,
        ),
        max_model_len=terms.max_model_len,
        tp=terms.tp,
    )


def _service_status(
    observed_generation: int, status: ServiceStatus, endpoint: str | None
) -> ServiceStatusView:
    return ServiceStatusView(
        observed_generation=observed_generation,
        replicas=dict(status.replicas),
        planned_rate_rps=status.planned_rate_rps,
        endpoint=endpoint,
        reading=None
        if status.reading is None
        else ReadingView.model_validate(status.reading),
        conditions=[
            ConditionView.model_validate(condition) for condition in status.conditions
        ],
    )


class QuantileView(View):
    """One quantile of the arrival rate."""

    level: float = Field(
        description="Probability that the rate stays below this, 0 to 1"
    )
    rate_rps: float


class ScoreView(View):
    """How a technique did in back-tests, as means over its forecasts; those of yesterday count half."""

    technique: str
    forecasts: float = Field(
        description="How many were judged; a fraction, because older ones count less"
    )
    pinball_rps: float = Field(
        description="Pinball loss at the level that plans serve, 0.95; the lowest one wins"
    )
    coverage: float = Field(
        description="Share of windows below the forecast of that level; ideally 0.95"
    )
    interval_coverage: float = Field(
        description="Share of the windows within the 90 % interval"
    )
    error_rps: float = Field(
        description="Mean distance of the median from the observed rate"
    )
    observed_rps: float = Field(description="Mean observed rate")
    margin: float = Field(
        description="Factor on the technique's spread that would have reached the level"
    )


class ServiceForecast(View):
    """What the control loop expects of a service, and what that rests on."""

    service: str
    technique: str = Field(
        description="The one that was chosen by back-tests; `burst_aware` before the first one"
    )
    margin: float = Field(
        description="Factor on the technique's spread that the back-tests ask for, 1 or more"
    )
    room_factor: float = Field(
        description="The multiple of the median that plans carry; it rises with the part of the SLO's error "
        "budget that is spent"
    )
    floor_rps: float = Field(
        description="Plans carry at least this rate, for bursts that come before replicas have started; 0: none"
    )
    telemetry: Literal["heard", "stopped", "never"] = Field(
        description="heard: nodes report on the service, even without requests. stopped: they no longer do. never: not "
        "in any window that the loop reads. Without reports the planned rate stays"
    )
    silent_for_s: float | None = Field(
        description="Since the end of the latest reported window; null: the loop reads none"
    )
    horizon_s: float = Field(description="How far ahead plans, and this forecast, look")
    quantiles: list[QuantileView] = Field(
        description="Of the arrival rate at the horizon, without room, lowest level first. All rates 0: a quiet "
        "service. Empty: nothing is reported"
    )
    scores: list[ScoreView] = Field(
        description="Back-test of every technique, least loss first; empty before one"
    )
    judged_at: datetime | None = Field(
        description="The scores include everything up to then; null: never judged"
    )


def service_forecast(found: ForecastView) -> ServiceForecast:
    """A service's forecast, its back-tests with the least loss first."""
    judged = sorted(
        # By name among equals, so that the order does not change from call to call.
        found.scores.items(),
        key=lambda item: (item[1].pinball_rps, item[0]),
    )
    return ServiceForecast(
        service=found.service,
        technique=found.technique,
        margin=found.margin,
        room_factor=found.room.factor,
        floor_rps=found.room.floor_rps,
        telemetry=found.telemetry,
        silent_for_s=found.silent_for_s,
        horizon_s=found.horizon_s,
        quantiles=[
            QuantileView(level=level, rate_rps=rate_rps)
            # No rates where telemetry is missing.
            for level, rate_rps in zip(found.levels, found.rates_rps, strict=False)
        ],
        scores=[ScoreView(technique=name, **asdict(score)) for name, score in judged],
        judged_at=datetime.fromtimestamp(found.judged_until_s, UTC)
        if found.judged_until_s
        else None,
    )
