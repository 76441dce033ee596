"""Topic `service_status`: what is wrong with services, in words, and the rates that are expected of them, by name."""

import asyncio

from app.answers.conditions import Condition, first_trouble
from app.answers.status import service_statuses
from app.db.reports import service_board
from app.db.workloads import services
from app.web.topics.topic import Items, Look, Topic
from solvers.types.state import Demand, Json


async def load_service_status(look: Look) -> Items:
    """Services of the projects that the looker sees."""
    async with look.transaction() as connection:
        entries = await services.list_rows(connection, projects=look.projects)
        demands = await service_board.load_newest_demands(connection)
    names = [entry.service.name for entry in entries]
    snapshot = await look.snapshot()
    # Hundreds of services take a while; the loop of the server has other things to do.
    statuses = await asyncio.to_thread(service_statuses, snapshot, names, demands)
    return {
        name: {
            "expected_rps": _expected(demands.get(name)),
            "trouble": _trouble(statuses[name].conditions)
            if name in statuses
            else None,
        }
        for name in names
    }


def _expected(demand: Demand | None) -> Json:
    """The 5th and the 95th percentile of the forecast; None: nothing was forecast."""
    if demand is None or demand.interval_rps is None:
        return None
    return [round(rate, 2) for rate in demand.interval_rps]


def _trouble(conditions: tuple[Condition, ...]) -> Json:
    """One, the first to be read: a row of a list has a line for it, and the service's page has the others."""
    found = first_trouble(conditions)
    if found is None:
        return None
    return {"type": found.type, "reason": found.reason, "message": found.message}


# A snapshot is all that a tick sees: it is not loaded for every second that somebody looks, and takes a second of the
# processor at 200 services, from which pages and the loop of the server must not suffer.
TOPIC = Topic(
    name="service_status",
    load=load_service_status,
    period_s=5.0,
    is_of_cluster=False,
    rest=9.0,
)
