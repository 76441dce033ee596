"""The demo's figures at its end: from the SQL views for the control plane, from its store for the baseline."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from agents.sim.cluster import ServiceTotals
from app.db.base.transaction import Connection
from app.db.decisions import plans
from app.db.reports import reports
from app.demo.feed import DemoFeed, attainment
from app.demo.report import DemoServiceSummary, Summary
from app.loop.observe import bucket_percentile_ms
from app.loop.tick import TickOutcome
from app.simulate.run.accounting import make_bill

IDLE = "(idle)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCourse:
    """How the run went, apart from load and cost."""

    ticks: Sequence[TickOutcome]
    ended_at: datetime
    wall_s: float
    first_plan_s: float


async def make_summary(
    connection: Connection,
    feed: DemoFeed,
    baseline_totals: Sequence[ServiceTotals],
    course: DemoCourse,
) -> Summary:
    """Everything that the closing report shows. Whole-GPU and memory costs come from `report.cost_by_service_hour`."""
    whole_usd, memory_usd = await _costs(connection)
    totals = {entry.service: entry for entry in feed.cluster.totals()}
    theirs = {entry.service: entry for entry in baseline_totals}
    bill = make_bill(feed.baseline, feed.gpu_types, course.ended_at)
    keeps_ms, looks_ms = await _ticks_ms(connection, course.ticks)
    return Summary(
        trace_s=feed.duration_s,
        wall_s=course.wall_s,
        services=[
            DemoServiceSummary(
                name=service.name,
                requests=totals[service.name].arrivals,
                slo_ms=service.slo.latency_ms,
                percentile=service.slo.percentile,
                attainment=attainment(totals[service.name]) or 0.0,
                latency_ms=bucket_percentile_ms(
                    dict(enumerate(totals[service.name].latency_buckets)),
                    service.slo.percentile,
                ),
                cost_usd=whole_usd[service.name],
                baseline_attainment=attainment(theirs[service.name]) or 0.0,
                baseline_usd=bill.whole_gpu_usd.get(service.name, 0.0),
            )
            for service in feed.services
        ],
        memory_usd=sum(memory_usd.values()),
        keeps_ms=keeps_ms,
        looks_ms=looks_ms,
        plans_pushed=sum(tick.state == "target" for tick in course.ticks),
        first_plan_s=course.first_plan_s,
    )


async def _ticks_ms(
    connection: Connection, ticks: Sequence[TickOutcome]
) -> tuple[list[float], list[float]]:
    """Ticks that kept or changed what runs, and ticks that looked for something cheaper: these prove a bound."""
    looks = {
        plan.id
        for plan in await plans.list_rows(connection)
        if plan.lower_bound_usd_per_hour is not None
    }
    decided = [
        (1000.0 * tick.seconds["total"], tick.plan_id in looks)
        for tick in ticks
        if tick.state is not None
    ]
    return [ms for ms, is_look in decided if not is_look], [
        ms for ms, is_look in decided if is_look
    ]


async def _costs(connection: Connection) -> tuple[dict[str, float], dict[str, float]]:
    """USD by service in whole GPUs and in used memory, without the idle rows."""
    found = await reports.load(connection, "cost_by_service_hour")
    whole: dict[str, float] = defaultdict(float)
    memory: dict[str, float] = defaultdict(float)
    for row in found.rows:
        cells = dict(zip(found.columns, row, strict=True))
        service = cells["service"]
        if isinstance(service, str) and service != IDLE:
            whole[service] += _usd(cells["whole_gpu_cost_usd"])
            memory[service] += _usd(cells["memory_cost_usd"])
    return whole, memory


def _usd(cell: reports.Cell) -> float:
    return float(cell) if isinstance(cell, Decimal) else 0.0
