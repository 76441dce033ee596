"""The past of one service and of one GPU, in as many steps as a chart can show."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, Field

from app.api.http.answers import READ
from app.api.http.auth import ClusterViewer, Viewer
from app.api.http.views import View
from app.api.workloads.services import visible_service
from app.base.errors import InvalidRequest
from app.db.decisions import policies
from app.db.fleet import nodes
from app.db.reports import history
from app.db.reports.history import HistorySteps, ServiceStep
from app.loop.forecast import horizon_s
from app.loop.observe import bucket_percentile_ms
from app.manifests.parts import Name

MIN_S = 60
MAX_STEPS = 360
"""More than one per two pixels of a chart says nothing."""
STEPS_S = (1, 2, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800)
"""Lengths of which every hour or a day is a multiple; 360 of the longest are 45 days, beyond it is in whole days."""
DAY_S = 86_400
MAX_LAST_S = 366 * DAY_S
"""As long as any rate can be kept."""
RATE_STEP_S = 300
"""Requests that are no longer kept by window are kept by five minutes."""


class ServiceHistoryPoint(View):
    """One service over one step; null: nothing of it is known."""

    at: datetime = Field(description="When the step began")
    rate_rps: float | None = Field(description="Requests that came, mean")
    latency_ms: float | None = Field(
        description="At the SLO's percentile; null where it is no longer kept"
    )
    attainment: float | None = Field(
        description="Share of the requests that met the SLO; of the whole hour where latencies are no longer kept"
    )
    planned_rps: float | None = Field(description="Rate that plans were made for, mean")
    low_rps: float | None = Field(description="5th percentile of its forecasts, mean")
    high_rps: float | None = Field(description="95th percentile of its forecasts, mean")


class ServiceHistory(View):
    """A service's past; steps of which nothing is known are left out."""

    service: str
    since: datetime = Field(description="Start of the first step")
    until: datetime = Field(description="End of the newest window that is over")
    step_s: float
    points: list[ServiceHistoryPoint] = Field(description="Oldest first")


class GpuReadingView(View):
    """One GPU over one step of time: means."""

    at: datetime = Field(description="When the step began")
    power_w: float | None = Field(description="Null: the driver does not tell it")
    memory_used_mib: float | None = Field(description="The same")
    clock_mhz: float | None = Field(description="The same")
    busy_percent: float | None = Field(description="The same, as of MIG slices")


class GpuReadings(View):
    """What was read of one GPU; steps without a reading are left out."""

    gpu: str
    since: datetime = Field(description="Start of the first step")
    until: datetime
    step_s: float = Field(
        description=f"Of steps over {history.SAMPLED_S} s the first {history.SAMPLED_S} s are read"
    )
    readings: list[GpuReadingView] = Field(description="Oldest first")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPeriod:
    """From when to when, as it was asked."""

    since: datetime | None
    until: datetime | None
    last_s: int

    def span(self, now: datetime, max_days: int) -> tuple[datetime, datetime]:
        """Without `until` up to now, without `since` the last seconds of it. Raises InvalidRequest."""
        until = min(self.until or now, now)
        since = self.since or until - timedelta(seconds=self.last_s)
        if until - since < timedelta(seconds=MIN_S):
            raise InvalidRequest(
                "`since` must be at least a minute before `until`, and not in the future",
                field="since",
            )
        # A minute of grace: a request for all that is kept should not fail on the way here.
        if now - since > timedelta(days=max_days, minutes=1):
            raise InvalidRequest(
                f"this is kept for {max_days} days only: ask for a later `since`",
                field="since",
            )
        return since, until


def _asked(
    since: Annotated[
        AwareDatetime | None, Query(description="Absent: `last_s` before `until`")
    ] = None,
    until: Annotated[AwareDatetime | None, Query(description="Absent: now")] = None,
    last_s: Annotated[int, Query(ge=MIN_S, le=MAX_LAST_S)] = 3600,
) -> AskedPeriod:
    return AskedPeriod(since=since, until=until, last_s=last_s)


Period: TypeAlias = Annotated[AskedPeriod, Depends(_asked)]

router = APIRouter()


@router.get("/services/{name}/history", responses=READ, tags=["services"])
async def get_service_history(
    context: Viewer, name: Name, period: Period
) -> ServiceHistory:
    """Requests, latency, SLO and forecasts of a service over time, in at most 360 steps."""
    now, keep = context.now(), context.parts.retention
    since, until = period.span(now, keep.rates_days)
    async with context.transaction() as connection:
        slo = (await visible_service(context, connection, name)).service.slo
        settings = await policies.load_current(connection)
        are_windows_kept = now - since <= timedelta(hours=keep.windows_hours, minutes=1)
        step_s = _service_step_s(
            since, until, settings.window_s if are_windows_kept else None
        )
        # The window that is open has only a part of its requests.
        end = min(until, now - timedelta(seconds=settings.window_s))
        steps = HistorySteps(since=_first(since, step_s), until=end, step_s=step_s)
        found = await history.load_service(
            connection, name, steps, horizon_s=horizon_s(settings)
        )
    return ServiceHistory(
        service=name,
        since=steps.since,
        until=steps.until,
        step_s=step_s,
        points=[_point(step, slo.percentile) for step in found],
    )


@router.get("/gpus/{node}/{gpu}/readings", responses=READ, tags=["gpus"])
async def list_readings(
    context: ClusterViewer, node: Name, gpu: Name, period: Period
) -> GpuReadings:
    """What was read of one GPU over time, in at most 360 steps."""
    name = f"{node}/{gpu}"
    since, until = period.span(context.now(), context.parts.retention.observations_days)
    step_s = _step_s(since, until, STEPS_S[0])
    steps = HistorySteps(since=_first(since, step_s), until=until, step_s=step_s)
    async with context.transaction() as connection:
        # For its 404: a GPU that never was has no readings either, and an empty chart would hide the typo.
        await nodes.get_gpu(connection, name)
        rows = await history.load_gpu(connection, name, steps)
    return GpuReadings(
        gpu=name,
        since=steps.since,
        until=steps.until,
        step_s=step_s,
        readings=[GpuReadingView.model_validate(row) for row in rows],
    )


def _step_s(since: datetime, until: datetime, min_s: float) -> float:
    """The shortest step of those that are so long and few enough."""
    wanted_s = max(min_s, (until - since).total_seconds() / MAX_STEPS)
    whole_days_s = DAY_S * ceil(wanted_s / DAY_S)
    return next((step_s for step_s in STEPS_S if step_s >= wanted_s), whole_days_s)


def _service_step_s(since: datetime, until: datetime, window_s: float | None) -> float:
    """`window_s`: the windows' length; None where they are not kept for as long."""
    # Older requests are known by five minutes only.
    if window_s is None:
        return _step_s(since, until, RATE_STEP_S)
    # Single windows say little.
    step_s = _step_s(since, until, 15)
    # No window may lie in two steps; in long ones that makes no difference.
    return step_s if step_s >= RATE_STEP_S else window_s * ceil(step_s / window_s)


def _first(since: datetime, step_s: float) -> datetime:
    """Steps begin at multiples of their length, so that every answer names the same ones."""
    return datetime.fromtimestamp(ceil(since.timestamp() / step_s) * step_s, UTC)


def _point(step: ServiceStep, percentile: float) -> ServiceHistoryPoint:
    buckets = dict(enumerate(step.latency_buckets))
    return ServiceHistoryPoint(
        at=step.start,
        rate_rps=_rounded(step.rate_rps),
        latency_ms=bucket_percentile_ms(buckets, percentile),
        attainment=step.attainment,
        planned_rps=_rounded(step.planned_rps),
        low_rps=_rounded(step.low_rps),
        high_rps=_rounded(step.high_rps),
    )


def _rounded(rate_rps: float | None) -> float | None:
    return None if rate_rps is None else round(float(rate_rps), 2)
