"""Telemetry of services that no agent of ours serves: gateways and servers push what they count.

It goes into the same windows as the agents' readings, and plans, SLO reports and forecasts follow from both alike.
"""

import hashlib
from collections import Counter
from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field

from agents.base.latency_buckets import BUCKET_COUNT, bucket_of
from agents.base.protocol import ServiceReading
from app.api.http.answers import problems
from app.api.http.auth import Operator
from app.api.http.body import resource_router
from app.api.http.parts import Context
from app.api.workloads.services import visible_service
from app.base.errors import InvalidRequest
from app.db.fleet import pushed_telemetry as pushed
from app.manifests.parts import Name, Strict

router = resource_router("services", prefix="/services")

CLOCKS_S = 5.0
"""By which a source's clock may be ahead of ours."""

MAX_RATE_RPS = 1e6
"""A source counts no more than one machine can pass on; a higher figure is the total of a counter."""

Count = Annotated[int, Field(ge=0, le=10**12)]


class LatencyCount(Strict):
    """Requests of one bucket."""

    up_to_ms: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        description="Upper end of the bucket; absent: no end",
    )
    count: Count = Field(
        description="Requests in this bucket alone, not in those below"
    )


class TelemetryPush(Strict):
    """What one source saw of a service over one window; counts, never rates."""

    source: Name = Field(
        description="Who counts, e.g. a gateway; windows of one source must not overlap"
    )
    window_start: AwareDatetime
    window_s: float = Field(ge=1.0, le=3600.0, allow_inf_nan=False)
    arrivals: Count
    served: Count = Field(description="Requests answered")
    in_slo: Count = Field(description="Of these, within the SLO's latency")
    rejected: Count = Field(
        default=0, description="Requests refused or lost; each is a miss"
    )
    latency_ms: list[LatencyCount] = Field(
        default_factory=list,
        max_length=256,
        description="Latencies of the requests answered, bucket by bucket",
    )


class TelemetryReceipt(BaseModel):
    """What became of a window."""

    service: str
    source: str
    window_start: datetime
    stored: bool = Field(description="False: the identical window already existed")


@router.post("/{name}/telemetry", responses=problems(400, 404, 409, 413, 415))
async def push_telemetry(
    context: Operator, name: Name, said: TelemetryPush
) -> TelemetryReceipt:
    """Add one window of one source to what is known of a service. The same window again changes nothing."""
    _check(context, said)
    reading = ServiceReading(
        service=name,
        arrivals=said.arrivals,
        served=said.served,
        in_slo=said.in_slo,
        rejected=said.rejected,
        latency_buckets=_buckets(said.latency_ms),
    )
    window = pushed.Pushed(
        source=said.source,
        start_s=said.window_start.timestamp(),
        window_s=said.window_s,
        reading=reading,
        # By what it says: the same window sent again is known, and another one at its place is refused.
        sha256=hashlib.sha256(said.model_dump_json().encode()).digest(),
    )
    async with context.transaction() as connection:
        await visible_service(context, connection, name)
        stored = await pushed.save(connection, window, context.now())
    return TelemetryReceipt(
        service=name, source=said.source, window_start=window.start, stored=stored
    )


def _check(context: Context, said: TelemetryPush) -> None:
    """Raise InvalidRequest for what cannot be."""
    age_s = context.now().timestamp() - said.window_start.timestamp()
    # A window that is still open would be counted again when it has ended.
    if age_s + CLOCKS_S < said.window_s:
        raise InvalidRequest(
            "the window has not ended yet; push it after its end", field="window_start"
        )
    # What was pushed is remembered a little longer than this, so that no window can be counted twice.
    if age_s > pushed.OLDEST_S:
        raise InvalidRequest(
            f"the window began more than {pushed.OLDEST_S:g} s ago",
            field="window_start",
        )
    for field in ("arrivals", "served", "rejected"):
        _check_rate(field, getattr(said, field), said.window_s)
    if said.in_slo > said.served:
        raise InvalidRequest(
            f"{said.in_slo} requests in time are more than {said.served} served",
            field="in_slo",
        )
    if (counted := sum(entry.count for entry in said.latency_ms)) > said.served:
        raise InvalidRequest(
            f"the buckets hold {counted} requests, more than {said.served} served",
            field="latency_ms",
        )


def _check_rate(field: str, count: int, window_s: float) -> None:
    if count > MAX_RATE_RPS * window_s:
        raise InvalidRequest(
            f"{count} in {window_s:g} s are more than {MAX_RATE_RPS:,.0f} requests per second, which no source passes "
            "on; push what this window alone counted, not the total of a counter",
            field=field,
        )


def _buckets(entries: list[LatencyCount]) -> tuple[tuple[int, int], ...]:
    """Counts by our own buckets: each in the one that holds its upper end, so that no latency looks shorter."""
    counts: Counter[int] = Counter()
    for entry in entries:
        counts[
            # The last bucket has no upper end, like the source's own.
            BUCKET_COUNT - 1 if entry.up_to_ms is None else bucket_of(entry.up_to_ms)
        ] += entry.count
    return tuple(sorted((+counts).items()))
