"""Topic `nodes`: every node with what its agent last said, and the generation that it should follow, by name."""

from app.db.base.tables import AnyRow
from app.db.decisions import policies
from app.db.fleet import nodes
from app.db.fleet.nodes import NodeRow
from app.db.reports import gpu_board
from app.web.topics.topic import Items, Look, Topic
from solvers.types.state import Json


async def load_nodes(look: Look) -> Items:
    """Nodes by name. When a node was last heard is told of silent ones only: of the others it would change always."""
    async with look.transaction() as connection:
        settings = await policies.load_current(connection)
        rows = await nodes.list_rows(connection, look.parts.clock.now())
        wanted = {row.node: row for row in await gpu_board.load_generations(connection)}
    return {
        row.node.id: _node(row, wanted.get(row.node.id), settings.stale_after_s)
        for row in rows
    }


def _node(row: NodeRow, wanted: AnyRow | None, stale_after_s: float) -> Json:
    is_heard = row.last_seen_at is not None and row.node.silent_for_s < stale_after_s
    return {
        "is_heard": is_heard,
        "last_seen_at": None
        if is_heard or row.last_seen_at is None
        else row.last_seen_at.isoformat(),
        "cordoned": row.node.cordoned,
        "is_draining": row.node.drain_in_s is not None,
        "power_cap_w": row.node.power_cap_w,
        "agent_version": row.agent_version,
        "generation": row.observed_generation,
        "wanted_generation": None if wanted is None else wanted.generation,
        "said": None if wanted is None else wanted.status,
        "detail": "" if wanted is None else wanted.detail,
        # To a tenth: a clock moves all the time, and each change would be sent.
        "clock_skew_s": round(row.clock_skew_s, 1),
        "problems": list(row.problems),
        "labels": dict(row.labels),
        "gpus": [
            _gpu(gpu.id, gpu.gpu_type, healthy=gpu.healthy, cordoned=gpu.cordoned)
            for gpu in row.gpus
        ],
    }


def _gpu(name: str, gpu_type: str, *, healthy: bool, cordoned: bool) -> Json:
    return {"id": name, "gpu_type": gpu_type, "healthy": healthy, "cordoned": cordoned}


TOPIC = Topic(name="nodes", load=load_nodes)
