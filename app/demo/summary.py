"""The demo's figures at its end: from the SQL views for the control plane, from its targets for the baseline."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from agents.sim.queues.tally import ServiceTotals
from app.db.base.transaction import Connection
from app.db.decisions import plans
from app.db.reports import reports
from app.demo.feed import attainment
from app.demo.report import DemoServiceSummary, Summary
from app.demo.scenario import demo_services
from app.loop.observe import bucket_percentile_ms
from app.loop.tick import TickOutcome
from app.simulate.run.accounting import Bill
from solvers.types.state import Service

IDLE = "(idle)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCourse:
    """How the run went, apart from what the database knows."""

    trace_s: float
    """How much of the load was simulated."""
    duration_s: float
    """How much there is."""
    totals: Sequence[ServiceTotals]
    migration_usd: float
    """The GPUs that plans had left while a replica served on there."""
    baseline_totals: Sequence[ServiceTotals]
    baseline_bill: Bill
    baseline_migration_usd: float
    ticks: Sequence[TickOutcome]
    wall_s: float
    first_plan_s: float


async def make_summary(connection: Connection, course: DemoCourse) -> Summary:
    """Everything that the closing report shows. Costs come from `report.cost_by_service_hour`."""
    # From the views that users have, so that the demo's figures are those of their own queries.
    usd = await _costs(connection)
    ours = {entry.service: entry for entry in course.totals}
    theirs = {entry.service: entry for entry in course.baseline_totals}
    keeps_ms, looks_ms = await _ticks_ms(connection, course.ticks)
    return Summary(
        trace_s=course.trace_s,
        duration_s=course.duration_s,
        wall_s=course.wall_s,
        services=[
            _service_summary(
                service,
                ours[service.name],
                cost_usd=usd[service.name],
                baseline_attainment=attainment(theirs[service.name]) or 0.0,
                # It has no database.
                baseline_usd=course.baseline_bill.whole_gpu_usd.get(service.name, 0.0),
            )
            for service in demo_services()
        ],
        migration_usd=course.migration_usd,
        baseline_migration_usd=course.baseline_migration_usd,
        keeps_ms=keeps_ms,
        looks_ms=looks_ms,
        plans_pushed=sum(tick.state == "target" for tick in course.ticks),
        first_plan_s=course.first_plan_s,
    )


def _service_summary(
    service: Service,
    total: ServiceTotals,
    *,
    cost_usd: float,
    baseline_attainment: float,
    baseline_usd: float,
) -> DemoServiceSummary:
    percentile = service.slo.percentile
    return DemoServiceSummary(
        name=service.name,
        requests=total.arrivals,
        slo_ms=service.slo.latency_ms,
        percentile=percentile,
        attainment=attainment(total) or 0.0,
        latency_ms=bucket_percentile_ms(
            dict(enumerate(total.latency_buckets)), percentile
        ),
        cost_usd=cost_usd,
        baseline_attainment=baseline_attainment,
        baseline_usd=baseline_usd,
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
        # A tick that held (no telemetry yet, say) decided nothing: its time would flatter the figures.
        if tick.state is not None
    ]
    keeps_ms = [ms for ms, is_look in decided if not is_look]
    looks_ms = [ms for ms, is_look in decided if is_look]
    return keeps_ms, looks_ms


async def _costs(connection: Connection) -> dict[str, float]:
    """USD by service in whole GPUs, without the idle rows."""
    found = await reports.load(connection, "cost_by_service_hour")
    entire: dict[str, float] = defaultdict(float)
    for row in found.rows:
        cells = dict(zip(found.columns, row, strict=True))
        service = cells["service"]
        # Idle time is shared out in the whole-GPU cost already.
        if isinstance(service, str) and service != IDLE:
            entire[service] += _usd(cells["whole_gpu_cost_usd"])
    return entire


def _usd(cell: reports.Cell) -> float:
    return float(cell) if isinstance(cell, Decimal) else 0.0
