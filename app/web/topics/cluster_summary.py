"""Topic `header`: the line at the top of every page, and what is newest, so that pages know when to look again."""

from app.db.base.transaction import transaction
from app.db.decisions import policies
from app.db.reports import fleet_board as board
from app.web.topics.feed import Items, Look, Topic


async def load_header(look: Look) -> Items:
    """One item, `now`."""
    async with transaction(look.parts.engine) as connection:
        settings = await policies.load_current(connection)
        row = await board.load_header(connection)
    known = {name: getattr(row, name) for name in _PLAIN}
    times = {
        name: None if getattr(row, name) is None else getattr(row, name).isoformat()
        for name in _TIMES
    }
    amounts = {
        name: None if getattr(row, name) is None else float(getattr(row, name))
        for name in _AMOUNTS
    }
    decides = {
        "policy": settings.policy,
        "mode": settings.mode,
        "paused": settings.paused,
    }
    return {"now": {**decides, **known, **times, **amounts}}


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
_TIMES = ("planned_at", "decided_at")
_AMOUNTS = ("cost_usd_per_hour",)

TOPIC = Topic(name="header", load=load_header)
