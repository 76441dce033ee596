"""Comparing policies: what the API is asked, and what it answers."""

from typing import Annotated

from pydantic import Field, StringConstraints

from app.api.schemas import View
from app.manifests import Strict

PolicyWord = Annotated[str, StringConstraints(max_length=63)]


class CompareRequest(Strict):
    """Which policies shall plan the same problem."""

    policies: list[PolicyWord] = Field(default_factory=list, max_length=50, description="Empty: all that there are")
    time_limit_s: float = Field(default=30.0, ge=0.1, le=60.0, description="How long all plans may take together")


class PolicyPlanView(View):
    """What the plan of one policy comes to."""

    policy: str
    status: str = Field(description="How the plan was found; `failed`: there is none")
    reason: str = Field(description="Why there is none")
    cost_usd_per_hour: float | None
    lower_bound_usd_per_hour: float | None
    gpus: int
    gpus_by_type: dict[str, int]
    replicas: int
    starts: int = Field(description="Replicas that do not run yet")
    unserved_percent: float = Field(description="Of Σ priority · arrival rate")
    worst_slack_percent: float | None = Field(
        description="Room of the fullest replica within its SLO, in percent of what it may carry; below 0: it is asked "
        "for more; null: nothing runs"
    )
    worst_service: str = Field(description="Whose replica that is")
    violations: int = Field(description="Rules that the plan breaks")
    first_violation: str
    seconds: float


class CompareView(View):
    """The policies side by side."""

    in_force: str = Field(description="The policy that the loop follows now")
    policies: list[PolicyPlanView] = Field(description="In the order in which they were asked for")
