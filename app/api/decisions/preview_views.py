"""What-ifs: what the API is asked, and what it answers."""

from typing import Annotated

from pydantic import Field, JsonValue, StringConstraints

from app.api.decisions.plan_views import (
    ChangeView,
    RateView,
    StepView,
    UnservedView,
    ViolationView,
)
from app.api.http.views import View
from app.manifests import objects as manifests
from app.manifests.parts import Name, Strict, TypeName
from app.store.plan_states import PlanState
from solvers.types.outcome import Solution

# Bounded, all of them: a request must not make a problem that no solver can hold.
Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


Price = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
SloMs = Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)]
More = Annotated[int, Field(ge=-100_000, le=100_000)]


class ScenarioBody(Strict):
    """Differences from the live state, all at once; what they come to is one of the answers."""

    name: Annotated[str, StringConstraints(max_length=200)] = Field(
        default="",
        description="Its name in the answer; derived from the differences if empty",
    )
    demand_factor: dict[Name, Factor] = Field(
        default_factory=dict,
        max_length=1000,
        description="Multiplies a service's forecast rate; `all` means every one",
    )
    demand_rps: dict[Name, Factor] = Field(
        default_factory=dict,
        max_length=1000,
        description="A service's rate, instead of the forecast; before factors",
    )
    gpus: dict[TypeName, More] = Field(
        default_factory=dict,
        max_length=100,
        description="GPUs of a type more, or fewer where negative; of any type of the catalogue, at its price",
    )
    price_usd_per_hour: dict[TypeName, Price] = Field(
        default_factory=dict, max_length=100, description="Of one GPU of a type"
    )
    slo_ms: dict[Name, SloMs] = Field(
        default_factory=dict, max_length=1000, description="Latency of a service's SLO"
    )
    services: list[manifests.ServiceManifest] = Field(
        default_factory=list,
        max_length=100,
        description="Added, or in place of those of the same name",
    )
    without: list[Name] = Field(
        default_factory=list, max_length=100, description="Services to remove"
    )


class PreviewRequest(Strict):
    """What shall be different in a what-if: at once, and in each of several scenarios beyond that."""

    services: list[manifests.ServiceManifest] = Field(
        default_factory=list, max_length=100
    )
    without: list[Name] = Field(
        default_factory=list, max_length=100, description="Services to remove"
    )
    demand_factor: dict[Name, Factor] = Field(default_factory=dict, max_length=1000)
    demand_rps: dict[Name, Factor] = Field(default_factory=dict, max_length=1000)
    policy: Annotated[str, StringConstraints(max_length=63)] | None = None
    groups: manifests.Groups | None = Field(
        default=None, description="In place of the groups of the policy in force"
    )
    from_running: bool = Field(
        default=False,
        description="Plan from what is running, as the next tick does; otherwise from an empty fleet",
    )
    scenarios: list[ScenarioBody] = Field(
        default_factory=list,
        max_length=20,
        description="Each is planned on top of the other fields; `answers` ranks them",
    )
    suggest: bool = Field(
        default=False,
        description="Also ask the usual questions: stock, SLOs of the most expensive services, growth",
    )
    alternatives_of: list[Name] = Field(
        default_factory=list,
        max_length=100,
        description="Also ask what the most expensive of these services would cost with a looser SLO, on other GPU "
        "types, and without min_replicas",
    )
    time_limit_s: float = Field(
        default=30.0,
        ge=0.1,
        le=60.0,
        description="How long today's plan and those of all scenarios may take together",
    )


class MixView(View):
    """What a plan gives one service on one GPU type."""

    service: str
    gpu_type: str
    replicas: int
    sm_percent: float = Field(description="Total of all of them; 100 = one whole GPU")


class UnmeasuredView(View):
    """A service that is not planned on a GPU type, since no operating point of it is known there."""

    service: str
    network: str
    gpu_type: str


class AnswerView(View):
    """What one scenario comes to."""

    question: str
    cost_usd_per_hour: float
    difference_usd_per_hour: float = Field(description="Against `today`")
    gpus: dict[str, int] = Field(description="GPUs in use by type")
    mix: list[MixView] = Field(
        description="Where replicas run, by service and GPU type"
    )
    unserved_percent: float = Field(description="Of Σ priority · arrival rate")
    unserved: list[UnservedView]
    lower_bound_usd_per_hour: float | None
    gap_percent: float | None
    solution: Solution | None = Field(
        description="How good the solver says that it is; null: nothing new was solved"
    )
    planned_for: str = Field(
        description="The scenario that this plan was made for: its own, or another's that is better here"
    )
    added_usd_per_hour: float | None = Field(
        description="Price of the GPUs that the scenario adds, used or not; null: it adds none"
    )
    saving_per_usd: float | None = Field(
        description="What it saves against `today` for each USD of that price"
    )
    unmeasured: list[UnmeasuredView] = Field(
        description="Services that might use the added GPUs but have no operating point there; send a Profile of each"
    )


class PreviewView(View):
    """What would be decided."""

    state: PlanState
    reason: str
    solution: Solution | None = Field(
        description="How good the solver says that it is; null: nothing new was solved"
    )
    cost_usd_per_hour: float
    cost_before_usd_per_hour: float | None
    cost_delta_usd_per_hour: float | None
    document: dict[str, JsonValue]
    demands: list[RateView]
    steps: list[StepView]
    violations: list[ViolationView]
    changes: list[ChangeView]
    today: AnswerView | None = Field(
        description="Without any scenario; null if not requested"
    )
    answers: list[AnswerView] = Field(
        description="One per scenario, sorted by unserved load, then by the saving per USD of added GPUs, then by "
        "cost"
    )
