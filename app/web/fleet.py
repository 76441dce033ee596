"""Topic `fleet`: every GPU with what it carries now, by id."""

from collections import defaultdict
from datetime import timedelta

from app.db import board, policies
from app.db.board import BoardPart
from app.db.tables import AnyRow
from app.db.transaction import transaction
from app.web.feed import Items, Look, Topic
from solvers.state import Json


async def load_fleet(look: Look) -> Items:
    """GPUs by id; what is not known is null."""
    now = look.parts.clock.now()
    async with transaction(look.parts.engine) as connection:
        settings = await policies.load_current(connection)
        since = now - timedelta(seconds=settings.stale_after_s)
        gpus = await board.load_gpus(connection, since)
        parts: dict[str, list[Json]] = defaultdict(list)
        for part in await board.load_parts(connection, since):
            parts[part.gpu].append(_part(part))
    return {gpu.id: _gpu(gpu, parts[gpu.id]) for gpu in gpus}


def _gpu(gpu: AnyRow, parts: list[Json]) -> Json:
    return {
        "node": gpu.node,
        "index": gpu._mapping["index"],  # a Row is a tuple, whose own `index` is a method
        "gpu_type": gpu.gpu_type,
        "healthy": gpu.healthy,
        "cordoned": gpu.cordoned,
        "is_heard": bool(gpu.is_heard),
        "memory_mib": gpu.memory_mib,
        "memory_used_mib": _round(gpu.memory_used_mib),
        "power_cap_w": gpu.power_cap_w,
        "power_w": _round(gpu.power_w),
        "clock_mhz": _round(gpu.clock_mhz),
        "busy_percent": _round(gpu.busy_percent),
        "parts": parts,
    }


def _part(part: BoardPart) -> Json:
    return {
        "kind": part.kind,
        "id": part.id,
        "owner": part.owner,
        "state": part.state,
        "sm_percent": part.sm_percent,
        "batch": part.batch,
        "memory_mib": part.memory_mib,
    }


def _round(value: float | None) -> float | None:
    """To what a bar can show: an item that did not visibly change is not sent again."""
    return None if value is None else round(value)


TOPIC = Topic(name="fleet", load=load_fleet)
