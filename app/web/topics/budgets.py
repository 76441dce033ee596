"""Topic `budgets`: what is left of every service's error budget, and how fast it burns, by name."""

from collections import defaultdict
from collections.abc import Sequence

from app.db.base.tables import AnyRow
from app.db.reports import service_board
from app.web.topics.topic import Items, Look, Topic
from solvers.types.state import Json


async def load_budgets(look: Look) -> Items:
    """Figures of report.slo_budget as they are there; null without requests."""
    async with look.transaction() as connection:
        rows = await service_board.load_budgets(connection, look.projects)
    periods: dict[str, list[AnyRow]] = defaultdict(list)
    for row in rows:
        periods[row.service].append(row)
    return {service: _budget(found) for service, found in periods.items()}


def _budget(periods: Sequence[AnyRow]) -> Json:
    # The budget is that of thirty days; the shorter periods only say how fast it burns.
    month = next(row for row in periods if row.period == "30 d")
    used = month.budget_used_percent
    since = month.counted_since
    return {
        "left_percent": None if used is None else float(100 - used),
        "counted_since": None if since is None else since.isoformat(),
        "burn": {
            row.period: None if row.burn_rate is None else float(row.burn_rate)
            for row in periods
        },
        "alerts": [row.period for row in periods if row.is_alerting],
    }


# 0.2 s of the database at 200 services (bench.slo_budget): once in ten seconds is little, and soon enough for hours.
TOPIC = Topic(name="budgets", load=load_budgets, period_s=10.0, is_of_cluster=False)
