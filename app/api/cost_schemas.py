"""What the API answers about cost."""

from datetime import datetime

from pydantic import Field

from app.api.schemas import View
from app.db.costs import By, Step


class CostPoint(View):
    """One layer in one step of time."""

    at: datetime = Field(description="Start of the hour or day, UTC")
    name: str
    cost_usd: float


class CostTotal(View):
    """One layer over the whole period."""

    name: str = Field(description="Service, project or GPU type; `(idle)`: nobody was given it; `(tasks)`: no service")
    gpu_hours: float = Field(description="Hours of whole GPUs, by SM percent")
    cost_usd: float = Field(description="Price × time × SM percent")
    whole_gpu_cost_usd: float = Field(description="Its part of the whole bills, where nothing is idle")


class CostView(View):
    """Costs over time; the sums are those of the SQL views."""

    by: By
    step: Step
    since: datetime = Field(description="Start of the first hour")
    until: datetime = Field(description="Start of the first hour that is not counted any more")
    points: list[CostPoint] = Field(description="By time, then by name; what cost nothing in a step is left out")
    totals: list[CostTotal] = Field(description="Dearest first, idle last")
    cost_usd: float = Field(description="The bill: sum of all totals")
    idle_cost_usd: float
    without_sharing_usd: float = Field(
        description="What the same services would have cost, each alone on the fewest whole GPUs of the same types "
        "that hold the SM percents that it had (report.cost_without_sharing_hour)"
    )
