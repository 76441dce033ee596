"""Topics `fleet` and `gauges`: every GPU with what it carries, and what it measures, by id.

They are two, because gauges of all GPUs change every second and what GPUs carry does not.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from operator import attrgetter

from app.db.base.tables import AnyRow
from app.db.base.transaction import Connection
from app.db.decisions import policies
from app.db.reports import fleet_board as board
from app.web.topics.topic import Items, Look, Topic, pick
from solvers.types.state import Json


async def load_fleet(look: Look) -> Items:
    """GPUs by id."""
    async with look.transaction() as connection:
        since = await _since(connection, look)
        gpus = await board.load_gpus(connection, since)
        parts: dict[str, list[Json]] = defaultdict(list)
        for part in await board.load_parts(connection, since):
            parts[part.gpu].append(pick(part, _OF_PART))
    return {gpu.id: _gpu(gpu, parts[gpu.id]) for gpu in gpus}


async def load_gauges(look: Look) -> Items:
    """[memory in use in MiB, W, MHz, busy percent] by GPU; rounded, so that what did not visibly change stays."""
    async with look.transaction() as connection:
        rows = await board.load_gauges(connection, await _since(connection, look))
    # A list and not an object: thousands of GPUs are sent every second.
    gauges = attrgetter("memory_used_mib", "power_w", "clock_mhz", "busy_percent")
    return {
        row.gpu: [None if each is None else round(each) for each in gauges(row)]
        for row in rows
    }


async def _since(connection: Connection, look: Look) -> datetime:
    """What is older is no longer how it is now."""
    settings = await policies.load_current(connection)
    return look.parts.clock.now() - timedelta(seconds=settings.stale_after_s)


def _gpu(gpu: AnyRow, parts: list[Json]) -> Json:
    return {
        "node": gpu.node,
        "index": gpu._mapping[
            "index"
        ],  # a Row is a tuple, whose own `index` is a method
        "gpu_type": gpu.gpu_type,
        "healthy": gpu.healthy,
        "cordoned": gpu.cordoned,
        "is_heard": bool(gpu.is_heard),
        "memory_mib": gpu.memory_mib,
        "power_cap_w": gpu.power_cap_w,
        "parts": parts,
    }


_OF_PART = ("kind", "id", "owner", "state", "sm_percent", "batch", "memory_mib")

TOPIC = Topic(name="fleet", load=load_fleet)
GAUGES = Topic(name="gauges", load=load_gauges)
