"""What the API answers about budgets."""

from datetime import datetime

from pydantic import Field

from app import budget_manifests
from app.api.schemas import View

MOST_DEGRADED = 100


class DegradedView(View):
    """One service that is planned for less."""

    service: str
    demand_percent: float = Field(description="Of its demand that it is planned for")


class BudgetStatusView(View):
    """How a budget stands in its present period; the figures are those of report.budget_status."""

    since: datetime
    until: datetime
    spent_usd: float
    spent_percent: float
    usd_per_hour: float = Field(description="What the plan in force costs it per hour")
    projected_usd: float = Field(description="Spent when the period ends, if that plan stays")
    degraded_services: int = Field(default=0, description="How many are planned for less because of it")
    degraded: list[DegradedView] = Field(
        default_factory=list, max_length=MOST_DEGRADED, description="The first of them, by name"
    )


class BudgetView(budget_manifests.Budget):
    """A budget."""

    status: BudgetStatusView
