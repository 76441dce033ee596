"""Topic `header`: the line at the top of every page, and what is newest, so that pages know when to look again."""

from datetime import datetime

from app.db.decisions import policies
from app.db.reports import fleet_board as board
from app.web.topics.topic import Items, Look, Topic, pick


async def load_header(look: Look) -> Items:
    """One item, `now`."""
    async with look.transaction() as connection:
        settings = await policies.load_current(connection)
        row = await board.load_header(connection)
    return {
        "now": {
            "policy": settings.policy,
            "mode": settings.mode,
            "paused": settings.paused,
            **pick(row, _PLAIN),
            "planned_at": _iso(row.planned_at),
            "decided_at": _iso(row.decided_at),
            # Money is a decimal in the database, which JSON does not have.
            "cost_usd_per_hour": None
            if row.cost_usd_per_hour is None
            else float(row.cost_usd_per_hour),
        }
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


_PLAIN = (
    "target_generation",
    "plan_id",
    "gap_percent",
    "method",
    "newest_plan",
    "waiting",
    "newest_event",
    "nodes",
    "gpus",
    "services",
)

TOPIC = Topic(name="header", load=load_header)
