"""Topic `gpu`: one GPU as it is read now, under `now`, and below it everything that it carries or should, by id."""

from collections import defaultdict
from datetime import timedelta

from app.base.errors import NotFound
from app.db.base.tables import AnyRow
from app.db.decisions import policies
from app.db.fleet import nodes
from app.db.reports import gpu_board
from app.web.topics.topic import Items, Look, Topic, pick
from solvers.types.state import Json


async def load_gpu(look: Look) -> Items:
    """Nothing where no GPU is called so; what is not known is null."""
    async with look.transaction() as connection:
        settings = await policies.load_current(connection)
        since = look.parts.clock.now() - timedelta(seconds=settings.stale_after_s)
        gpu = await gpu_board.load_gpu(connection, look.argument, since)
        if gpu is None:
            return {}
        carried = await gpu_board.load_carried(connection, look.argument, since)
        overuses: dict[tuple[str, str], list[Json]] = defaultdict(list)
        # Agents and plans call the same thing by different kinds; see `_used_as`.
        for over in await gpu_board.load_overuses(connection, look.argument):
            overuses[over.kind, over.name].append(_overuse(over))
    parts = {
        f"{row.kind}/{row.id}": _part(row, overuses[_used_as(row.kind), row.id])
        for row in carried
    }
    return {"now": _gpu(gpu), **parts}


async def _exists(look: Look) -> bool:
    async with look.transaction() as connection:
        try:
            await nodes.get_gpu(connection, look.argument)
        except NotFound:
            return False
    return True


def _gpu(row: AnyRow) -> Json:
    return {
        **pick(row, _KNOWN),
        # Rounded, so that what did not visibly change is not sent again.
        **{name: _round(getattr(row, name)) for name in _READ},
        "is_heard": bool(row.is_heard),
        "read_at_s": None if row.read_at_s is None else float(row.read_at_s),
    }


def _part(row: AnyRow, overuses: list[Json]) -> Json:
    return {
        **pick(row, _STATED),
        **{name: _round(getattr(row, name)) for name in _MEASURED},
        "overuses": overuses,
    }


def _overuse(row: AnyRow) -> Json:
    return {
        **pick(row, ("quantity", "granted", "used", "is_estimated")),
        "begun_at": row.begun_at.isoformat(),
    }


def _used_as(kind: str) -> str:
    """What agents call it who say what is used: every task is one."""
    return "replica" if kind == "replica" else "task"


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


_KNOWN = (
    "node",
    "gpu_type",
    "healthy",
    "cordoned",
    "node_cordoned",
    "memory_mib",
    "plan_id",
    "planned_clock_mhz",
)
_READ = (
    "power_cap_w",
    "idle_w",
    "memory_used_mib",
    "power_w",
    "clock_mhz",
    "busy_percent",
)
_STATED = ("kind", "id", "owner", "state", "is_planned", "batch", "is_estimated")
_MEASURED = (
    "sm_percent",
    "memory_mib",
    "planned_rate_rps",
    "served_rps",
    "execution_ms",
    "memory_used_mib",
    "sm_used_percent",
    "power_w",
)

TOPIC = Topic(name="gpu", load=load_gpu, exists=_exists)
