"""The cluster's metrics: nodes, GPUs, services, costs, read from the database when they are scraped.

Every process of the API says the same, so scraping one of several is enough. What a scrape finds is kept for a moment:
many scrapers cost as much as one. What does not exist any more has no series.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast

from agents.base.exposition import ScrapePage, times
from app.api.caches.cluster_families import FAMILIES, MAX_SERIES
from app.api.caches.desired_replicas import load_desired
from app.db.base.tables import AnyRow
from app.db.base.transaction import Connection, Engine, transaction
from app.db.decisions import policies
from app.db.fleet.windows import load_windows
from app.db.reports import cluster_figures
from app.db.reports import fleet_board as board
from app.db.reports.cluster_figures import Hour
from app.db.reports.fleet_board import BoardPart
from app.db.workloads import services, tasks
from app.db.workloads.services import ServiceRow
from app.loop.observe import make_reading, windows_by_service
from app.store.store import PolicySettings
from solvers.types.state import ServiceObservation

KEPT_S = 5.0
MIB = 1024.0 * 1024.0
MHZ = 1e6


@dataclass(slots=True)
class ClusterPage:
    """The newest page, and who makes the next one."""

    text: bytes = b""
    made_s: float = float("-inf")
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self, engine: Engine, now: datetime) -> bytes:
        """The page, at most KEPT_S old. Raises Unavailable."""
        async with self.turn:
            # Looked at under the lock: a caller that waited for a page that another made takes it as it is.
            clock_s = asyncio.get_running_loop().time()
            if clock_s - self.made_s > KEPT_S:
                self.text = await make_page(engine, now)
                self.made_s = clock_s
            return self.text


async def make_page(engine: Engine, now: datetime) -> bytes:
    """Everything that is known now."""
    page = ScrapePage(FAMILIES)
    async with transaction(engine) as connection:
        settings = await policies.load_current(connection)
        # Older readings say nothing of now, and have no series.
        since = now - timedelta(seconds=settings.stale_after_s)
        gpus = await board.load_gpus(connection, since)
        gauges = {row.gpu: row for row in await board.load_gauges(connection, since)}
        parts = await board.load_parts(connection, since)
        await _add_cluster(page, connection, settings, now)
        await _add_totals(page, connection, since, gpus=len(gpus))
        nodes = await cluster_figures.load_nodes(connection, MAX_SERIES)
        _add_nodes(page, nodes, settings, now)
        _add_gpus(page, gpus, await cluster_figures.load_target_gpus(connection))
        _add_gauges(page, gpus[:MAX_SERIES], gauges)
        await _add_services(page, connection, _Seen(settings, now, gpus, parts))
    return page.text()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was loaded already."""

    settings: PolicySettings
    now: datetime
    gpus: Sequence[AnyRow]
    parts: Sequence[BoardPart]

    @property
    def hour(self) -> datetime:
        return self.now.replace(minute=0, second=0, microsecond=0)


async def _add_cluster(
    page: ScrapePage, connection: Connection, settings: PolicySettings, now: datetime
) -> None:
    header = await board.load_header(connection)
    page.add("plimsoll_loop_paused", settings.paused)
    page.add("plimsoll_policy_info", 1, settings.policy, settings.mode)
    page.add("plimsoll_plans_waiting", header.waiting)
    if header.renumbered_at is not None:
        page.add(
            "plimsoll_renumbered_timestamp_seconds", header.renumbered_at.timestamp()
        )
    if header.decided_at is not None:
        page.add("plimsoll_plan_age_seconds", (now - header.decided_at).total_seconds())
    for row in await tasks.count_by_phase(connection):
        page.add("plimsoll_tasks", row.tasks, row.kind, row.phase)


async def _add_totals(
    page: ScrapePage, connection: Connection, since: datetime, *, gpus: int
) -> None:
    """What counts all of the cluster, also what is beyond the series that are shown."""
    totals = await cluster_figures.load_totals(connection, since)
    for kind, number in (
        ("node", totals.nodes),
        ("gpu", gpus),
        ("service", totals.services),
    ):
        page.add("plimsoll_left_out", max(0, number - MAX_SERIES), kind)
    # Both states always have a series: an alert must see 0, and not nothing.
    page.add("plimsoll_cluster_nodes", totals.heard, "heard")
    page.add("plimsoll_cluster_nodes", totals.nodes - totals.heard, "silent")


def _add_nodes(
    page: ScrapePage, nodes: Sequence[AnyRow], settings: PolicySettings, now: datetime
) -> None:
    for node in nodes:
        seen_at = node.last_seen_at
        silent_s = None if seen_at is None else (now - seen_at).total_seconds()
        is_heard = silent_s is not None and silent_s <= settings.stale_after_s
        for name, value in (
            ("silent_seconds", silent_s),
            ("heard", is_heard),
            ("cordoned", node.cordoned),
            ("problems", node.problems),
            ("clock_skew_seconds", node.clock_skew_s),
            ("wanted_generation", node.wanted_generation),
            ("observed_generation", node.observed_generation),
            ("command_refused", node.last_ack in ("refused", "failed")),
        ):
            page.add(f"plimsoll_node_{name}", value, node.id)


def _add_gpus(
    page: ScrapePage, gpus: Sequence[AnyRow], planned: Sequence[AnyRow]
) -> None:
    used = {row.gpu for row in planned}
    states = Counter(
        (gpu.gpu_type, _gpu_state(gpu, is_used=gpu.id in used)) for gpu in gpus
    )
    for (gpu_type, state), count in sorted(states.items()):
        page.add("plimsoll_cluster_gpus", count, gpu_type, state)
    for gpu in gpus[:MAX_SERIES]:
        labels = (gpu.node, gpu.id, gpu.gpu_type)
        page.add("plimsoll_gpu_healthy", gpu.healthy, *labels)
        page.add("plimsoll_gpu_memory_bytes", gpu.memory_mib * MIB, *labels)
    for row in planned[:MAX_SERIES]:
        for name, value in (
            ("sm_granted_ratio", float(row.sm_percent) / 100.0),
            ("power_limit_watts", row.power_cap_w),
            ("clock_limit_hertz", row.clock_mhz * MHZ),
        ):
            page.add(f"plimsoll_gpu_{name}", value, row.node, row.gpu, row.gpu_type)


def _add_gauges(
    page: ScrapePage, gpus: Sequence[AnyRow], gauges: Mapping[str, AnyRow]
) -> None:
    """What was measured lately."""
    for gpu in (gpu for gpu in gpus if gpu.id in gauges):
        gauge = gauges[gpu.id]
        labels = (gpu.node, gpu.id, gpu.gpu_type)
        page.add("plimsoll_gpu_power_watts", gauge.power_w, *labels)
        page.add("plimsoll_gpu_clock_hertz", times(gauge.clock_mhz, MHZ), *labels)
        if gauge.busy_percent is not None:
            page.add("plimsoll_gpu_busy_ratio", gauge.busy_percent / 100.0, *labels)
        used_bytes = times(gauge.memory_used_mib, MIB)
        page.add("plimsoll_gpu_memory_used_bytes", used_bytes, *labels)


def _gpu_state(gpu: AnyRow, *, is_used: bool) -> str:
    if not gpu.healthy:
        return "unhealthy"
    if is_used:
        return "used"
    return "cordoned" if gpu.cordoned else "free"


async def _add_services(page: ScrapePage, connection: Connection, seen: _Seen) -> None:
    rows = await services.list_rows(connection, limit=MAX_SERIES)
    projects = {row.service.name: row.service.project for row in rows}
    windows = windows_by_service(
        await load_windows(connection, seen.now, seen.settings.window_s, ())
    )
    for row in rows:
        own = windows[row.service.name]
        reading = make_reading(row.service, own, seen.now) if own else None
        _add_reading(page, row, reading, seen.settings.stale_after_s)
    places = await board.load_places(connection, seen.now)
    _add_places(page, places, projects)
    types = {cast(str, gpu.gpu_type) for gpu in seen.gpus}
    desired = await load_desired(connection, rows, places, seen.settings, types)
    for (service, gpu_type), count in desired.items():
        labels = (projects[service], service, gpu_type)
        page.add("plimsoll_service_desired_replicas", count, *labels)
    _add_replicas(page, seen, projects)
    _add_hour(page, await cluster_figures.load_hour(connection, seen.hour), projects)


def _add_reading(
    page: ScrapePage,
    row: ServiceRow,
    reading: ServiceObservation | None,
    stale_after_s: float,
) -> None:
    service = row.service
    labels = (service.project, service.name)
    page.add("plimsoll_service_slo_seconds", service.slo.latency_ms / 1000.0, *labels)
    page.add("plimsoll_service_slo_ratio", service.slo.percentile, *labels)
    is_stale = reading is None or reading.age_s > stale_after_s
    page.add("plimsoll_service_telemetry_stale", is_stale, *labels)
    if reading is None:
        return
    page.add("plimsoll_service_telemetry_age_seconds", max(0.0, reading.age_s), *labels)
    # Old figures are left out, not repeated: a chart shows a gap where nothing was measured.
    if not is_stale:
        for name, value in (
            ("arrivals_per_second", reading.arrival_rate_rps),
            ("latency_seconds", times(reading.latency_ms, 0.001)),
            ("slo_compliance_ratio", reading.attainment),
        ):
            page.add(f"plimsoll_service_{name}", value, *labels)


def _add_places(
    page: ScrapePage, places: Sequence[AnyRow], projects: Mapping[str, str]
) -> None:
    planned: dict[str, float] = dict.fromkeys(projects, 0.0)
    for place in (place for place in places if place.service in projects):
        labels = (projects[place.service], place.service)
        planned[place.service] += place.planned_rate_rps
        cost = float(place.cost_usd_per_hour)
        page.add("plimsoll_service_cost_usd_per_hour", cost, *labels, place.gpu_type)
    # Also of services without a replica, with 0: else "planned less than arrives" could not be asked.
    for service, rate_rps in planned.items():
        page.add(
            "plimsoll_service_planned_requests_per_second",
            rate_rps,
            projects[service],
            service,
        )


def _add_replicas(page: ScrapePage, seen: _Seen, projects: Mapping[str, str]) -> None:
    types = {gpu.id: cast(str, gpu.gpu_type) for gpu in seen.gpus}
    # By id: one that spans GPUs is a part of each.
    standing = {
        part.id: (part.owner, types[part.gpu], part.state)
        for part in seen.parts
        if part.kind == "replica" and part.gpu in types and part.owner in projects
    }
    counts = Counter(standing.values())
    for (service, gpu_type, state), count in sorted(counts.items()):
        page.add(
            "plimsoll_service_current_replicas",
            count,
            projects[service],
            service,
            gpu_type,
            state,
        )


def _add_hour(
    page: ScrapePage, hours: Mapping[tuple[str, str], Hour], projects: Mapping[str, str]
) -> None:
    """`(idle)` and `(tasks)` are no services, but have costs."""
    for (project, service), hour in hours.items():
        if service in projects or service.startswith("("):
            for name, value in (
                ("requests_total", hour.arrivals),
                ("served_total", hour.served),
                ("in_slo_total", hour.in_slo),
                ("rejected_total", hour.rejected),
                ("gone_total", hour.gone),
                ("unmeasured_total", hour.unmeasured),
                ("cost_usd_total", hour.cost_usd),
                ("hour_energy_joules", hour.energy_j),
            ):
                page.add(f"plimsoll_service_{name}", value, project, service)
