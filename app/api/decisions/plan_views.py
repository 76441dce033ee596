"""What the API answers about plans: lists, explanations, differences and what-ifs."""

from datetime import datetime

from pydantic import Field, JsonValue

from app.api.http.views import View
from app.store.plan_states import PlanState
from solvers.types.outcome import Solution
from solvers.types.plan import UnservedReason


class DemandView(View):
    """The arrival rate that a plan was made for."""

    service: str
    at: datetime
    arrival_rate_rps: float
    method: str
    plan_id: int | None
    low_rps: float | None = Field(
        default=None,
        description="5th percentile of the forecast behind it; null where it is no forecast",
    )
    high_rps: float | None = Field(
        default=None, description="95th percentile of the forecast"
    )


class PlanSummaryView(View):
    """One line of the list of plans."""

    id: int
    at: datetime
    state: PlanState = Field(description="What became of it")
    policy: str
    policy_version: int
    catalogue_revision: int
    generation: int | None
    parent: int | None
    solution: Solution | None = Field(
        description="How good the solver says that it is; null: nothing new was solved"
    )
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float | None
    gap_percent: float | None
    seconds: float
    method: str = Field(
        description="How the policy found it; the policy's own name if it has only one method"
    )
    reason: str = Field(
        description="Why it was kept, refused or lost, or what it was made for"
    )
    replaced_by: int | None = Field(
        description="The newer proposal that took the place of a withdrawn one"
    )


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


class LlmSettingsView(View):
    """How a language model's replica is started."""

    gpus: list[str] = Field(description="All that it spans, that of its entry first")
    max_num_batched_tokens: int = Field(description="Tokens of a step")
    max_num_seqs: int
    max_model_len: int
    precision: str | None = Field(description="null: as the weights are published")


class BoundReplicaView(View):
    """One replica."""

    id: str
    service: str
    network: str
    sm_percent: float
    batch: int
    arrival_rate_rps: float
    memory_mib: float
    llm: LlmSettingsView | None = None


class BoundTaskView(View):
    """One task on what a GPU's replicas leave over."""

    name: str = Field(
        description="Its name on nodes, which a task's status shows as `id`"
    )
    network: str
    batch: int
    sm_percent: float
    memory_mib: float
    is_resident: bool = Field(
        description="false: swapped out, it holds nothing of the GPU"
    )


class BoundGpuView(View):
    """One GPU of a plan."""

    id: str
    node: str
    gpu_type: str
    clock_mhz: float
    power_cap_w: float
    replicas: list[BoundReplicaView]
    tasks: list[BoundTaskView] = Field(default_factory=list)
    held_by: str | None = Field(
        default=None,
        description="A language model's replica that spans this GPU and stands on another one",
    )


class RateView(View):
    """An arrival rate."""

    service: str
    arrival_rate_rps: float


class PlanView(PlanSummaryView):
    """One plan with everything but the problem that it solves."""

    document: dict[str, JsonValue] = Field(
        description="The plan with its report, in the contract's JSON"
    )
    gpus: list[BoundGpuView] | None = Field(
        description="With GPU and replica ids; null: it was not bound"
    )
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
    tp: int = Field(default=1, description="GPUs that each of them spans")


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


class RestoreView(View):
    """An earlier plan that is put back in force."""

    plan: PlanSummaryView = Field(
        description="The plan that was recorded and approved; the next tick pushes it"
    )
    restored_plan_id: int
    mode_before: str
    mode: str = Field(description="The policy's new mode: approve if it was auto")
    warnings: list[str] = Field(
        description="Promises that it does not keep at the present demand"
    )
