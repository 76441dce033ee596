"""Shapes of telemetry that is pushed for services which no agent of ours serves."""

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field

from app.manifest_parts import Strict
from app.manifests import Name

Count = Annotated[int, Field(ge=0, le=10**12)]


class LatencyCount(Strict):
    """Requests of one bucket."""

    up_to_ms: float | None = Field(
        default=None, gt=0, le=1e9, allow_inf_nan=False, description="Upper end of the bucket; absent: no end"
    )
    count: Count = Field(description="Requests in this bucket alone, not in those below")


class TelemetryPush(Strict):
    """What one source saw of a service over one window; counts, never rates."""

    source: Name = Field(description="Who counts, e.g. a gateway: its windows must not overlap")
    window_start: AwareDatetime
    window_s: float = Field(ge=1.0, le=3600.0, allow_inf_nan=False)
    arrivals: Count
    served: Count = Field(description="Requests answered")
    in_slo: Count = Field(description="Of them within the SLO's latency")
    rejected: Count = Field(default=0, description="Requests refused or lost; each is a miss")
    latency_ms: list[LatencyCount] = Field(
        default_factory=list, max_length=256, description="Latencies of the requests answered, bucket by bucket"
    )


class TelemetryReceipt(BaseModel):
    """What became of a window."""

    service: str
    source: str
    window_start: datetime
    stored: bool = Field(description="False: the very same was there already")
