"""What the API answers beyond the manifests, and what it asks for beyond them."""

from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from app import manifests
from app.control.status import ConditionType, Truth
from app.db.tokens import Scope
from app.manifests import Name, Strict

Item = TypeVar("Item")


class View(BaseModel):
    """Base of everything that is only answered."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Page(View, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next_cursor: str | None = Field(default=None, description="Give it as `cursor` for the next page; null: the last")


class FieldProblem(View):
    """One field that is wrong."""

    pointer: str | None = Field(default=None, description="JSON pointer into the body")
    parameter: str | None = Field(default=None, description="Name of the query, path or header parameter")
    detail: str


class Problem(View):
    """An error as RFC 9457 has it."""

    type: str = Field(description="Stable URI of the kind of problem")
    title: str
    status: int
    detail: str = Field(description="What is wrong here, and what to do")
    instance: str = Field(description="Path of the request")
    code: str = Field(description="Last part of `type`")
    request_id: str = Field(description="Also in the X-Request-ID header and in the audit")
    errors: list[FieldProblem] = []


class GpuTypeStatus(View):
    """What the server knows of a GPU type."""

    provenance: str = ""


class GpuTypeView(manifests.GpuType):
    """A GPU type."""

    status: GpuTypeStatus


class NodeStatus(View):
    """What a node's agent last said."""

    last_seen_at: datetime | None
    silent_for_s: float
    agent_version: str
    observed_generation: int = Field(description="Generation of the command in force; 0 = none")
    clock_skew_s: float = Field(description="Seconds by which the agent's clock is ahead")
    problems: list[str]
    healthy_gpus: int


class NodeView(manifests.Node):
    """A node."""

    status: NodeStatus


class GpuView(View):
    """One physical GPU."""

    id: str
    node: str
    gpu_type: str
    index: int
    healthy: bool
    cordoned: bool


class GpuReading(View):
    """One GPU over one step of time: means."""

    at: datetime = Field(description="When the step began")
    power_w: float
    memory_used_mib: float
    clock_mhz: float
    busy_percent: float | None = Field(description="Null: the driver does not say, as of MIG slices")


class GpuReadings(View):
    """What was read of one GPU; steps without a reading are left out."""

    gpu: str
    step_s: int
    readings: list[GpuReading]


class PredictionView(View):
    """How well the times of a network on one GPU type are known; errors are shares, 0.02 = 2 %."""

    gpu_type: str
    profile_version: int
    provenance: str
    source: str
    technique: str | None = Field(description="Of the latency fit in force; null: nothing was fitted")
    cross_validated_error: float | None
    samples: int
    correction: float | None = Field(description="Learned true over stated time, of all rows; null: not served yet")
    error: float | None = Field(description="Of the corrected times, over the last half minute of serving")
    band: float | None = Field(description="Errors above it raise the alarm")
    alarm_since: datetime | None = Field(description="Since when the drift alarm stands")


class NetworkStatus(View):
    """What the server knows of a network."""

    gpu_types: list[str] = Field(description="GPU types that it has a profile on")
    predictions: list[PredictionView] | None = Field(
        default=None, description="How well its times are known, by GPU type; null in lists"
    )


class NetworkView(manifests.Network):
    """A network."""

    status: NetworkStatus


class ProfileStatus(View):
    """Which version of a profile this is."""

    id: int
    version: int
    is_current: bool
    source: str


class ProfileView(manifests.Profile):
    """A profile with its operating points."""

    status: ProfileStatus


class ProfileSummary(View):
    """One version of a profile without its operating points."""

    id: int
    network: str
    gpu_type: str
    version: int
    is_current: bool
    sensitivity: float
    provenance: str
    source: str
    created_at: datetime


class ConditionView(View):
    """One statement about a service."""

    type: ConditionType
    status: Truth
    reason: str
    message: str


class ReadingView(View):
    """What the agents saw of a service in the last minute."""

    arrival_rate_rps: float
    served_rps: float
    latency_ms: float | None = Field(description="At the SLO's percentile")
    attainment: float | None = Field(description="Share of requests that met the SLO, 0 to 1")
    age_s: float


class ServiceStatusView(View):
    """What is known of a service."""

    observed_generation: int
    replicas: dict[str, int] = Field(description="Replicas in the target by GPU type")
    planned_rate_rps: float
    reading: ReadingView | None
    conditions: list[ConditionView]


class ServiceView(manifests.Service):
    """A service."""

    status: ServiceStatusView | None = Field(default=None, description="null for a service created just now")


class PolicyStatus(View):
    """Which version of the policy this is."""

    version: int
    created_at: datetime | None = None
    created_by: str = ""


class PolicyView(manifests.Policy):
    """The control loop's policy."""

    status: PolicyStatus


class EventView(View):
    """One line of the audit."""

    id: int
    at: datetime
    actor: str
    kind: str
    subject: str
    reason: str
    plan_id: int | None
    request_id: str | None
    before: JsonValue
    after: JsonValue


class ReportView(View):
    """One reporting view; the same view is there for SQL users in schema `report`."""

    name: str
    time_column: str | None = Field(description="Column that `since` and `until` cut; null: they cut nothing")


class ReportRows(View):
    """Rows of a reporting view."""

    name: str
    columns: list[str]
    rows: list[list[JsonValue]] = Field(description="Values in the order of `columns`; times in ISO 8601")
    next_cursor: str | None = None


class TokenRequest(Strict):
    """A token that is wanted."""

    name: Name
    scope: Scope
    projects: list[Name] | None = Field(default=None, min_length=1, max_length=100, description="Absent: all")
    expires_at: AwareDatetime | None = None


class TokenView(View):
    """What is known of a token."""

    id: str
    name: str
    scope: Scope
    projects: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewTokenView(TokenView):
    """A token that was made just now."""

    secret: str | None = Field(description="Shown this once; null when the request is repeated")


class CallerView(View):
    """Who is calling."""

    token_id: str
    name: str
    scope: Scope
    projects: list[str] | None


class HealthView(View):
    """Whether this process can work."""

    status: Literal["ok", "unavailable"]
    checks: dict[str, str] = Field(default_factory=dict, description="`ok`, or what is wrong, by part")
