"""What the API answers to the question why a plan is as it is."""

from typing import Literal

from pydantic import Field

from app.api.decisions.plan_views import (
    ChangeView,
    StepView,
    UnservedView,
    ViolationView,
)
from app.api.http.views import View
from app.store.plan_states import PlanState
from solvers.explain.types import Basis, ChangeKind, ReliefKind, Rule
from solvers.types.outcome import PriceUnit


class BindingView(View):
    """A limit that keeps some of a service's replicas from carrying more."""

    rule: Rule
    replicas: int = Field(description="How many of them")
    detail: str


class MovesView(View):
    """What the way from the plan before costs."""

    replicas_started: int
    replicas_stopped: int
    migration_cost_usd_per_hour: float


class GpuTypeExplanationView(View):
    """How much of a GPU type is used, and what more of it would be worth."""

    gpu_type: str
    used: int
    count: int | None = Field(description="null: unlimited")
    price_usd_per_hour: float
    worth_of_one_more: float | None = Field(
        description="What one more GPU would save at most, its own price paid, in `price_unit`; 0 while some are unused"
    )


class UseView(View):
    """How much of a GPU's limit is used."""

    rule: Rule
    used: float = Field(description="Percent, MiB, watts or replicas")
    limit: float
    is_full: bool = Field(description="Nothing more fits because of it")


class EarningView(View):
    """What one replica carries and what that is worth."""

    service: str
    sm_percent: float
    batch: int
    arrival_rate_rps: float
    capacity_rps: float
    earns: float = Field(description="At the prices of its service, in `price_unit`")


class PatternReplicaView(View):
    """One replica of a GPU that might have been."""

    service: str
    sm_percent: float
    batch: int
    arrival_rate_rps: float = Field(description="Load that it could carry")


class AlternativeView(View):
    """Another use of one GPU that was not chosen."""

    change: ChangeKind
    gpu_type: str
    clock_mhz: float
    replicas: list[PatternReplicaView]
    price: float
    earns: float
    loss: float = Field(description="Added cost of a plan with it, in `price_unit`")


class GpuExplanationView(View):
    """Why some GPUs run what they run."""

    gpu_type: str
    count: int
    clock_mhz: float
    unit: PriceUnit
    price: float
    stock_price: float = Field(
        description="What one more GPU of the type would save; using this one forgoes it"
    )
    replicas: list[EarningView]
    loss: float = Field(description="Price + stock price − earnings")
    uses: list[UseView]
    alternatives: list[AlternativeView] = Field(
        description="Least loss first; only in thorough explanations"
    )


class ReliefView(View):
    """A limit, how it might be loosened, and what that would save."""

    kind: ReliefKind
    subject: str
    words: str
    saving: float
    basis: Basis = Field(
        description="price: the most that one unit more can save; first_order: from the extra load that the plan's "
        "own replicas could carry; relaxation: solved again with fractions of GPUs"
    )


class ShortfallView(View):
    """What one service lacks after a loss."""

    service: str
    rate_rps: float = Field(description="Load that no survivor can carry")
    share: float = Field(description="Of its arrival rate, 0 to 1")


class LossView(View):
    """One GPU or node whose loss would leave something unserved."""

    kind: Literal["gpu", "node"]
    words: str
    gpus: int
    shortfalls: list[ShortfallView] = Field(description="The largest share first")


class LossesView(View):
    """What single losses would do: requests move to the replicas that are left, and nothing new starts yet."""

    gpus: int
    harmful_gpus: int = Field(description="GPUs whose loss alone would do harm")
    nodes: int
    harmful_nodes: int
    worst: list[LossView]


class ReplicaGroupView(View):
    """Replicas of one service that are alike."""

    gpu_type: str
    count: int
    sm_percent: float
    batch: int
    clock_mhz: float
    arrival_rate_rps: float
    capacity_rps: float | None
    execution_ms: float | None
    neighbours: list[str]
    tp: int = Field(default=1, description="GPUs of one node that each spans")
    max_num_batched_tokens: int | None = Field(
        default=None, description="Of language models: tokens of a step"
    )


class ServiceExplanationView(View):
    """Why a service got what it got."""

    service: str
    demand_rps: float | None
    planned_rps: float
    capacity_rps: float | None
    replicas: list[ReplicaGroupView]
    unserved: list[UnservedView]
    limit: str = Field(
        description="What determines the number of its replicas, as text"
    )
    bindings: list[BindingView] = Field(
        description="What limits the load of its replicas"
    )
    worth_per_rps: float | None = Field(
        description="What a request per second that a replica carries is worth, in `price_unit`"
    )
    price_per_rps: float | None = Field(
        description="What one more request per second costs: less, where a replica has room for it"
    )
    price_per_replica: float | None = Field(
        description="Cost of one more replica in min_replicas; below 0: saving of one more in max_replicas"
    )


class ExplanationView(View):
    """Why a plan is as it is."""

    plan_id: int
    state: PlanState
    summary: str = Field(
        description="Without costs and reasons for a token that is bound to projects"
    )
    steps: list[StepView]
    messages: list[str]
    violations: list[ViolationView]
    services: list[ServiceExplanationView]
    changes: list[ChangeView]
    moves: MovesView | None = Field(
        description="null for a token that is bound to projects"
    )
    cost_usd_per_hour: float | None = Field(
        description="Of the whole plan; null for a token that is bound to projects"
    )
    lower_bound_usd_per_hour: float | None = Field(
        description="Proven: no plan that serves as much costs less; null as the cost is"
    )
    gap_percent: float | None
    price_unit: PriceUnit | None = Field(
        description="Unit of prices: USD per hour; weighted requests per second where not all can be served, "
        "or nothing can be saved; null: nothing is priced"
    )
    gpu_types: list[GpuTypeExplanationView]
    gpus: list[GpuExplanationView] = Field(
        description="The most expensive kinds of GPUs"
    )
    kinds_left_out: int
    reliefs: list[ReliefView] = Field(
        description="Limits that could be loosened, largest saving first"
    )
    losses: LossesView | None = Field(
        description="null: unknown, or the token is bound to projects"
    )
