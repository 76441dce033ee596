"""What the API answers about budgets."""

from datetime import datetime

from pydantic import Field

from app import budget_manifests
from app.api.schemas import View


class BudgetStatusView(View):
    """How a budget stands in its present period; the figures are those of report.budget_status."""

    since: datetime
    until: datetime
    spent_usd: float
    spent_percent: float
    usd_per_hour: float = Field(description="What the plan in force costs it per hour")
    projected_usd: float = Field(description="Spent when the period ends, if that plan stays")


class BudgetView(budget_manifests.Budget):
    """A budget."""

    status: BudgetStatusView
