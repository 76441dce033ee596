"""Topic `simulations`: every simulation that is kept, with how far it is, by id; what it came to pages ask the API."""

from app.db.decisions import simulations
from app.db.decisions.simulations import SimulationRow
from app.web.topics.topic import Items, Look, Topic
from solvers.types.state import Json


async def load_simulations(look: Look) -> Items:
    """All of them: their number is bounded."""
    async with look.transaction() as connection:
        rows = await simulations.list_rows(connection)
    return {str(row.id): _item(row) for row in rows}


def _item(row: SimulationRow) -> Json:
    times = (row.created_at, row.started_at, row.finished_at)
    created_at, started_at, finished_at = (
        None if each is None else each.isoformat() for each in times
    )
    return {
        "name": row.name,
        "asked_by": row.asked_by,
        "policies": list(row.policies),
        "seeds": len(row.seeds),
        "duration_s": row.duration_s,
        "state": row.state,
        "progress": round(row.progress, 3),
        "error": row.error,
        "created_at": created_at,
        "started_at": started_at,
        "finished_at": finished_at,
    }


TOPIC = Topic(name="simulations", load=load_simulations, period_s=1.0)
