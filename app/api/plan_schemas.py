"""What the API answers about plans: lists, explanations, differences and what-ifs."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, JsonValue, StringConstraints

from app import manifests
from app.api.schemas import View
from app.control.store import PlanState
from app.manifests import Name, Strict
from solvers.outcome import PlanStatus
from solvers.plan import UnservedReason


class DemandView(View):
    """The arrival rate that a plan was made for."""

    service: str
    at: datetime
    arrival_rate_rps: float
    method: str
    plan_id: int | None


class PlanSummaryView(View):
    """One line of the list of plans."""

    id: int
    at: datetime
    state: PlanState
    policy: str
    policy_version: int
    catalogue_revision: int
    generation: int | None
    parent: int | None
    status: PlanStatus
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float | None
    gap_percent: float | None
    seconds: float
    method: str
    reason: str


class StepView(View):
    """What one technique did."""

    technique: str
    method: str
    status: str
    objective: float | None
    bound: float | None
    seconds: float
    messages: list[str]


class ViolationView(View):
    """One broken rule."""

    rule: str
    severity: str
    where: str
    detail: str


class BoundReplicaView(View):
    """One replica on one GPU."""

    id: str
    service: str
    network: str
    sm_percent: float
    batch: int
    arrival_rate_rps: float
    memory_mib: float


class BoundGpuView(View):
    """One GPU of a plan."""

    id: str
    node: str
    gpu_type: str
    clock_mhz: float
    power_cap_w: float
    replicas: list[BoundReplicaView]


class RateView(View):
    """An arrival rate."""

    service: str
    arrival_rate_rps: float


class PlanView(PlanSummaryView):
    """One plan with everything but the problem that it solves."""

    document: dict[str, JsonValue] = Field(description="The plan with its report, in the contract's JSON")
    gpus: list[BoundGpuView] | None = Field(description="With GPU and replica ids; null: it was not bound")
    steps: list[StepView]
    violations: list[ViolationView]
    demands: list[RateView]


class ChangeView(View):
    """Replicas of one kind that a plan has more or fewer of."""

    service: str
    gpu_type: str
    sm_percent: float
    batch: int
    clock_mhz: float
    before: int
    after: int


class DiffView(View):
    """How two plans differ."""

    before: int | None = Field(description="Plan id; null: nothing ran")
    after: int
    cost_before_usd_per_hour: float | None
    cost_after_usd_per_hour: float
    changes: list[ChangeView]


class UnservedView(View):
    """What a plan leaves out."""

    service: str
    rate_rps: float
    reason: UnservedReason
    replicas_missing: int


Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class PreviewRequest(Strict):
    """What shall be different in a what-if."""

    services: list[manifests.Service] = Field(default_factory=list, max_length=100)
    without: list[Name] = Field(default_factory=list, max_length=100, description="Services that shall be gone")
    demand_factor: dict[Name, Factor] = Field(default_factory=dict, max_length=1000)
    demand_rps: dict[Name, Factor] = Field(default_factory=dict, max_length=1000)
    policy: Annotated[str, StringConstraints(max_length=63)] | None = None


class PreviewView(View):
    """What would be decided."""

    state: PlanState
    reason: str
    status: PlanStatus
    cost_usd_per_hour: float
    cost_before_usd_per_hour: float | None
    cost_delta_usd_per_hour: float | None
    document: dict[str, JsonValue]
    demands: list[RateView]
    steps: list[StepView]
    violations: list[ViolationView]
    changes: list[ChangeView]
