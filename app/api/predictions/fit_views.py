"""Samples as they are sent, and fits and what became of them as the API answers them."""

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, Field, JsonValue

from app.api.http.views import View
from app.manifests.parts import Size, Strict, TypeName
from app.measurements.curves import CURVE_POINTS

Batch = Annotated[float, Field(ge=1, le=65_536, allow_inf_nan=False)]
Percent = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]

MAX_SAMPLES = 5000
MAX_NEIGHBOURS = 16
MAX_CURVES = 8
MAX_MEASURED = 500


class NeighbourIn(Strict):
    """A replica that shared the GPU."""

    network: TypeName
    batch: Batch
    sm_percent: Percent


class SampleIn(Strict):
    """One measurement: under which conditions, and what was measured."""

    gpu_type: TypeName
    batch: Batch
    sm_percent: Percent
    clock_mhz: Size | None = Field(
        default=None, description="Absent: the GPU type's highest"
    )
    time_quota_percent: Percent = 100.0
    power_limit_w: Size | None = None
    neighbours: list[NeighbourIn] = Field(
        default_factory=list, max_length=MAX_NEIGHBOURS
    )
    latency_ms: Size = Field(description="Mean execution time of one full batch")
    power_w: Size | None = Field(
        default=None, description="Of the whole GPU, idle power included"
    )
    memory_mib: Size | None = None
    l2_util_percent: (
        Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None
    ) = None
    measured_at: AwareDatetime | None = Field(
        default=None,
        description="Two equal measurements count twice only with different times",
    )


class SamplesRequest(Strict):
    """Measurements of one network. Sending them again changes nothing."""

    source: str = Field(
        default="", max_length=200, description="Who measured, and with what"
    )
    samples: list[SampleIn] = Field(min_length=1, max_length=MAX_SAMPLES)


class SamplesAdded(View):
    """What became of samples."""

    received: int
    added: int = Field(description="Samples that were new")


class SamplesRemoved(View):
    """How many samples were forgotten."""

    removed: int


class FitView(View):
    """One version of a fit; errors are shares, 0.02 = 2 %."""

    id: int
    network: str = Field(description="Empty: all networks on the GPU type")
    gpu_type: str
    quantity: str
    version: int
    is_current: bool
    technique: str
    training_error: float
    cross_validated_error: float | None = Field(
        description="Mean over held-out samples; null: too few to hold any out"
    )
    cross_validated_error_p90: float | None
    sample_count: int
    source: str
    created_at: datetime


class FitDocument(FitView):
    """A fit with its coefficients."""

    document: JsonValue = Field(
        description="As `plimsoll fit` writes it and `plimsoll predict` reads it"
    )


class SettingView(View):
    """What stays the same along curves; null: no sample says it."""

    clock_mhz: float | None
    time_quota_percent: float
    power_limit_w: float | None


class CurveView(View):
    """What the fit says of one batch, from the least to the largest SM percent that was measured."""

    batch: float
    points: list[tuple[float, float]] = Field(
        max_length=CURVE_POINTS, description="[SM percent, latency in ms]"
    )


class MeasuredView(View):
    """One sample next to the curves."""

    batch: float
    sm_percent: float
    latency_ms: float
    fitted_ms: float | None = Field(
        description="What the fit predicts for these conditions; null: there is no fit, or the sample had neighbours"
    )
    is_on_curve: bool = Field(
        description="Alone and at `setting`, so that its batch's curve is about it"
    )


class CurvesView(View):
    """How the fit of a network's latency on one GPU type meets its samples."""

    network: str
    gpu_type: str
    fit: FitView | None = Field(description="In force; null: none")
    setting: SettingView | None = Field(description="null: nothing was measured")
    curves: list[CurveView] = Field(max_length=MAX_CURVES)
    measured: list[MeasuredView] = Field(
        max_length=MAX_MEASURED, description="Newest samples, in the order they came"
    )
    samples: int = Field(description="All that are known of it on this GPU type")


class VerdictView(View):
    """Whether a fit's operating points were put in force on one GPU type."""

    gpu_type: str
    applied: bool
    reason: str


class RefitView(View):
    """What a refit made."""

    network: str
    fits: list[FitView] = Field(description="In force now")
    verdicts: list[VerdictView]
