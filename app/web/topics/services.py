"""Topic `services`: every service with what it promised, what it does now and what it costs, by name."""

from collections import defaultdict
from collections.abc import Sequence

from app.db.base.tables import AnyRow
from app.db.decisions import policies
from app.db.fleet.windows import load_windows
from app.db.reports import fleet_board as board
from app.db.workloads import services
from app.db.workloads.services import ServiceRow
from app.loop.observe import make_reading, windows_by_service
from app.web.topics.topic import Items, Look, Topic
from solvers.types.state import Json, ServiceObservation


async def load_services(look: Look) -> Items:
    """Services of the projects that the looker sees; without a reading its fields are null."""
    now = look.parts.clock.now()
    async with look.transaction() as connection:
        settings = await policies.load_current(connection)
        entries = await services.list_rows(connection, projects=look.projects)
        windows = windows_by_service(
            await load_windows(connection, now, settings.window_s, ())
        )
        places: dict[str, list[AnyRow]] = defaultdict(list)
        for place in await board.load_places(connection, now):
            places[place.service].append(place)
    found = {}
    for entry in entries:
        # A service that was never reported has no window; its fields are null.
        seen = windows[entry.service.name]
        reading = make_reading(entry.service, seen, now) if seen else None
        found[entry.service.name] = describe(entry, reading, places[entry.service.name])
    return found


def describe(
    entry: ServiceRow, reading: ServiceObservation | None, places: Sequence[AnyRow]
) -> dict[str, Json]:
    """One service as pages show it. `places`: its replicas by GPU type, of `board.load_places`."""
    service = entry.service
    return {
        "project": service.project,
        "network": service.network,
        "slo_ms": service.slo.latency_ms,
        "slo_itl_ms": None if service.token_slo is None else service.token_slo.itl_ms,
        "percentile": service.slo.percentile,
        "replicas": {place.gpu_type: place.replicas for place in places},
        "planned_rate_rps": round(sum(place.planned_rate_rps for place in places), 2),
        "cost_usd_per_hour": round(
            float(sum(place.cost_usd_per_hour for place in places)), 4
        ),
        "rate_rps": None if reading is None else round(reading.arrival_rate_rps, 2),
        "latency_ms": None if reading is None else reading.latency_ms,
        "attainment": None if reading is None else reading.attainment,
        "age_s": None if reading is None else round(reading.age_s),
    }


TOPIC = Topic(name="services", load=load_services, is_of_cluster=False)
