"""Topic `service`: one service as it is now, its replicas, and what was asked for; its past pages ask the API."""

from datetime import timedelta

from app.api.workloads.service_views import service_view
from app.base.errors import NotFound
from app.db.base.tables import AnyRow
from app.db.base.transaction import Connection
from app.db.decisions import policies
from app.db.fleet.windows import load_windows
from app.db.reports import fleet_board as board
from app.db.reports import service_board
from app.db.workloads import services
from app.db.workloads.services import ServiceRow
from app.loop.observe import make_reading
from app.web.topics.services import describe
from app.web.topics.topic import Items, Look, Topic, pick
from solvers.types.state import Json

MAX_VERSIONS = 20


async def load_service(look: Look) -> Items:
    """`now`, `replicas` and `versions`; nothing where there is no such service."""
    now = look.parts.clock.now()
    async with look.transaction() as connection:
        entry = await _visible(connection, look)
        if entry is None:
            return {}
        name = entry.service.name
        settings = await policies.load_current(connection)
        windows = await load_windows(
            connection, now, settings.window_s, (), service=name
        )
        places = [
            place
            for place in await board.load_places(connection, now)
            if place.service == name
        ]
        since = now - timedelta(seconds=settings.stale_after_s)
        replicas = await service_board.load_replicas(
            connection, name, now=now, since=since
        )
        versions = await service_board.load_versions(connection, name, MAX_VERSIONS)
    reading = make_reading(entry.service, windows, now) if windows else None
    present = {
        **describe(entry, reading, places),
        "today": now.date().isoformat(),
        "updated_by": entry.updated_by,
    }
    return {
        "now": {
            **present,
            "generation": entry.generation,
            "manifest": _manifest(entry),
        },
        "replicas": [_replica(row) for row in replicas],
        "versions": [_version(row) for row in versions],
    }


async def _exists(look: Look) -> bool:
    async with look.transaction() as connection:
        # One in a project out of reach does not exist: else a caller that follows it would learn that it does.
        return await _visible(connection, look) is not None


async def _visible(connection: Connection, look: Look) -> ServiceRow | None:
    try:
        entry = await services.get(connection, look.argument)
    except NotFound:
        return None
    return (
        entry
        if look.projects is None or entry.service.project in look.projects
        else None
    )


def _manifest(entry: ServiceRow) -> Json:
    manifest: Json = service_view(entry, None).model_dump(
        mode="json", exclude={"status"}
    )
    return manifest


def _replica(row: AnyRow) -> Json:
    plain = ("gpu", "replica", "gpu_type", "is_planned", "state", "batch")
    return {
        **pick(row, plain),
        **{name: _float(getattr(row, name)) for name in _FIGURES},
    }


_FIGURES = (
    "sm_percent",
    "memory_mib",
    "arrival_rate_rps",
    "clock_mhz",
    "cost_usd_per_hour",
)


def _version(row: AnyRow) -> Json:
    # Every column but those about the version itself, so that a new field of services is shown by itself.
    spec = {
        name: value for name, value in row._mapping.items() if name not in _OF_VERSION
    }
    return {
        "generation": row.generation,
        "at": row.created_at.isoformat(),
        "by": row.created_by,
        "spec": spec,
    }


_OF_VERSION = ("generation", "created_at", "created_by")


def _float(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


TOPIC = Topic(name="service", load=load_service, is_of_cluster=False, exists=_exists)
