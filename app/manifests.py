"""Manifests: the objects that users write, as YAML or JSON. Strict: unknown fields and wild values are refused.

Every manifest has `apiVersion: plimsoll/v1`, a `kind`, `metadata` and a `spec`. The API adds `status` when it answers.
The REST API and the CLI share these classes; `app.api.conversions` turns them into the solvers' nouns and back.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from solvers.governors import GOVERNORS
from solvers.outcome import LEAST_MOVES, TICK

API_VERSION = "plimsoll/v1"

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
TYPE_NAME_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
PATTERN_RULES = {
    NAME_PATTERN: "1 to 63 lower-case letters, digits and -, with a letter or digit at both ends",
    TYPE_NAME_PATTERN: "1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends",
}
"""What the patterns ask for, in words."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A DNS-1123 label: lower-case letters, digits and hyphens, at most 63."""

TypeName = Annotated[str, StringConstraints(pattern=TYPE_NAME_PATTERN)]
"""GPU types and networks are called as their makers call them: letters, digits, `-`, `_` and `.`, at most 63."""

LabelValue = Annotated[str, StringConstraints(max_length=253)]
Money = Annotated[Decimal, Field(gt=0, le=Decimal(1_000_000), max_digits=14, decimal_places=6)]
Size = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]

PRIORITY_CLASSES = {"critical": 100.0, "standard": 10.0, "batch": 1.0}
"""Named priorities; a higher number wins when GPUs are short."""


class Strict(BaseModel):
    """Base of everything that a user writes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _camel(name: str) -> AliasChoices:
    head, *rest = name.split("_")
    return AliasChoices(name, head + "".join(part.capitalize() for part in rest))


class Metadata(Strict):
    """Who an object is."""

    name: Name
    project: Name = Field(default="default", description="The project that owns the object and pays for it")
    labels: dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], LabelValue] = Field(
        default_factory=dict, max_length=64
    )
    annotations: dict[Annotated[str, StringConstraints(min_length=1, max_length=253)], LabelValue] = Field(
        default_factory=dict, max_length=64
    )
    generation: int | None = Field(default=None, ge=1, description="Set by the server; grows with every change")
    created_at: datetime | None = Field(default=None, description="Set by the server")


class TypeMetadata(Metadata):
    """Who a GPU type, a network or a profile is."""

    name: TypeName


class Slo(Strict):
    """At least `percentile` of the requests finish within `latency_ms`."""

    latency_ms: Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)]
    percentile: Annotated[float, Field(ge=0.5, le=0.999, allow_inf_nan=False)] = 0.99


class Scaling(Strict):
    """Limits and delays of the replica count; delays are in seconds."""

    min_replicas: int = Field(default=0, ge=0, le=10_000, validation_alias=_camel("min_replicas"))
    max_replicas: int | None = Field(default=None, ge=1, le=10_000, validation_alias=_camel("max_replicas"))
    upscale_delay_s: Amount = Field(default=0.0, le=86_400, validation_alias=_camel("upscale_delay_s"))
    downscale_delay_s: Amount = Field(default=60.0, le=86_400, validation_alias=_camel("downscale_delay_s"))
    buffer_replicas: int = Field(
        default=0,
        ge=0,
        le=1000,
        validation_alias=_camel("buffer_replicas"),
        description="Warm spares beyond min_replicas",
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> "Scaling":
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        return self


class GpuChoice(Strict):
    """Which GPU types a service may use."""

    allowed: list[TypeName] | None = Field(default=None, max_length=64, description="Absent: all")
    excluded: list[TypeName] = Field(default_factory=list, max_length=64)


class ServiceSpec(Strict):
    """What a team wants served."""

    network: TypeName
    slo: Slo
    scaling: Scaling = Scaling()
    priority: float = Field(
        default=PRIORITY_CLASSES["standard"],
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Higher wins when GPUs are short; critical = 100, standard = 10, batch = 1",
    )
    gpu_types: GpuChoice = GpuChoice()
    mode: Literal["off", "advise", "approve", "auto"] = Field(
        default="auto",
        description="off: not planned, no replicas; advise: plans that change its replicas are shown only; "
        "approve: they wait for a person; auto: they are pushed. The more cautious of this and the policy's counts",
    )

    @field_validator("priority", mode="before")
    @classmethod
    def _named_priority(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in PRIORITY_CLASSES:
                raise ValueError(f"must be a number or one of {', '.join(PRIORITY_CLASSES)}, not {value!r}")
            return PRIORITY_CLASSES[value]
        return value


class GpuTypeSpec(Strict):
    """One kind of GPU and its price."""

    price_usd_per_hour: Money = Field(description="Price of one whole GPU from now on; earlier hours keep theirs")
    memory_mib: Size
    sm_count: int | None = Field(default=None, ge=1, le=10_000)
    sm_percent_step: float = Field(default=10.0, gt=0, le=100, allow_inf_nan=False)
    idle_w: Amount
    power_cap_w: Size
    clocks_mhz: list[Size] = Field(min_length=1, max_length=256)
    launch_per_neighbour: Amount = 0.0
    launch_base: Amount = 0.0

    @field_validator("clocks_mhz")
    @classmethod
    def _ascending(cls, clocks: list[float]) -> list[float]:
        if sorted(set(clocks)) != clocks:
            raise ValueError("must ascend without repeats")
        return clocks


class NodeGpu(Strict):
    """One GPU of a node."""

    index: int = Field(ge=0, le=63)
    gpu_type: TypeName


class NodeSpec(Strict):
    """One machine with GPUs."""

    gpus: list[NodeGpu] = Field(default_factory=list, max_length=64)
    cordoned: bool = Field(default=False, description="Nothing new is started here; what runs here stays")
    power_cap_w: Size | None = Field(
        default=None, description="Watts that its used GPUs together may draw, idle watts included. Absent: no limit"
    )

    @field_validator("gpus")
    @classmethod
    def _unique_indices(cls, gpus: list[NodeGpu]) -> list[NodeGpu]:
        if len({gpu.index for gpu in gpus}) < len(gpus):
            raise ValueError("two GPUs have the same index")
        return gpus


class NetworkSpec(Strict):
    """A neural network that services run."""

    description: str = Field(default="", max_length=2000)
    parameter_bytes: int | None = Field(default=None, ge=1, le=10**15)


Sigma = Annotated[float, Field(ge=0, le=3, allow_inf_nan=False)]
"""At 3 a time may be off by a factor of 20; whoever knows so little should measure first."""

Row = tuple[float, int, float, float, float, float, float, float, float]


class ProfileSpec(Strict):
    """Measured or estimated operating points of a network on a GPU type; every write makes a new version."""

    network: TypeName
    gpu_type: TypeName
    sensitivity: Amount = 0.0
    provenance: Literal["measured", "scaled", "estimated"] = "measured"
    latency_sigma: Sigma | list[Sigma | None] | None = Field(
        default=None,
        description="Standard deviation of ln(true / stated time), of all rows or of each; planning takes the policy's "
        "fit_quantile of it. Absent: by provenance (measured 0, scaled 0.15, estimated 0.25)",
    )
    rows: list[Row] = Field(
        min_length=1,
        max_length=20_000,
        description="[sm_percent, batch, clock_mhz, transfer_ms, launch_ms, run_ms, memory_mib, power_w, pressure]",
    )


class PolicyGroup(Strict):
    """Services that a policy of their own decides on, with GPUs of their own."""

    name: Name
    policy: str = Field(max_length=63)
    projects: list[Name] = Field(default_factory=list, max_length=100, description="Services of these; empty: of any")
    labels: dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], LabelValue] = Field(
        default_factory=dict, max_length=64, description="Services that have all of these labels"
    )
    mode: Literal["advise", "approve", "auto"] = Field(
        default="auto", description="For its services; the more cautious of this, theirs and the policy's counts"
    )

    @model_validator(mode="after")
    def _chooses(self) -> "PolicyGroup":
        if not self.projects and not self.labels:
            raise ValueError("give projects or labels: a group of all services is what `policy` is for")
        return self


def _unique(groups: list[PolicyGroup]) -> list[PolicyGroup]:
    names = [group.name for group in groups]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two groups are called {repeated[0]!r}; a name says which one is meant")
    return groups


Groups = Annotated[list[PolicyGroup], Field(max_length=16), AfterValidator(_unique)]
"""Groups of services in the order in which they are decided."""


class PolicySpec(Strict):
    """How the control loop decides; every write makes a new version, which each plan records."""

    policy: str = Field(default="joint", max_length=63)
    mode: Literal["off", "advise", "approve", "auto"] = "auto"
    paused: bool = False
    period_s: float = Field(default=5.0, ge=0.5, le=3600, allow_inf_nan=False)
    objective: Literal["min_cost", "max_goodput"] = "min_cost"
    energy_price_usd_per_kwh: Amount = 0.0
    max_replicas_per_gpu: int = Field(default=4, ge=1, le=48)
    migration_cost_usd_per_hour: Amount = 0.0
    headroom: float = Field(default=1.1, ge=1.0, le=10.0, allow_inf_nan=False)
    stale_after_s: float = Field(default=15.0, ge=1.0, le=86_400, allow_inf_nan=False)
    solve_seconds: float = Field(default=TICK.seconds, gt=0, le=600, allow_inf_nan=False)
    solve_work: float = Field(default=TICK.work, gt=0, le=600, allow_inf_nan=False)
    seed: int = Field(default=TICK.seed, ge=0, le=2**31 - 1)
    window_s: float = Field(default=1.0, ge=0.5, le=300, allow_inf_nan=False)
    fit_quantile: float = Field(
        default=0.9,
        ge=0.5,
        le=0.999,
        allow_inf_nan=False,
        description="Execution times are planned at this quantile of what they may be; 0.5: as stated and learned",
    )
    learning: bool = Field(
        default=True, description="Whether served latencies correct the operating points that are planned with"
    )
    hysteresis: float = Field(
        default=TICK.stability.hysteresis,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Fraction of the cost that a rearrangement must save beyond the price of its starts",
    )
    move_budget: float = Field(
        default=TICK.stability.move_budget,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Replicas that one plan may start to save cost, as a fraction of those that run; "
        f"{LEAST_MOVES} are always allowed, and 1 means any number. What demand needs is not counted",
    )
    min_dwell_s: float = Field(
        default=TICK.stability.min_dwell_s,
        ge=0.0,
        le=86_400,
        allow_inf_nan=False,
        description="Seconds for which an arrangement stays before it may be rearranged to save cost; demand is served "
        "at once",
    )
    governor: str | None = Field(
        default=None,
        max_length=63,
        description="Who turns clocks and batches on the nodes within the plan, second by second: "
        f"{', '.join(sorted(GOVERNORS))}. Absent: nobody",
    )
    power_budget_w: Size | None = Field(
        default=None,
        description="Watts that all used GPUs together may draw, idle watts included. Without a governor that holds "
        "power a plan that would draw more is refused; with one, every GPU gets its share as a cap. Absent: no limit",
    )

    groups: Groups = Field(
        default_factory=list,
        description="Services with a policy and GPUs of their own, decided in this order; a service is of the first "
        "group that it fits, and those of none follow `policy`, last",
    )
    approve_switch: bool = Field(
        default=False,
        description="The first plan of another policy than that of the plan in force waits for a person, in any mode",
    )

    @field_validator("governor")
    @classmethod
    def _known_governor(cls, governor: str | None) -> str | None:
        if governor is not None and governor not in GOVERNORS:
            raise ValueError(f"must be one of {', '.join(sorted(GOVERNORS))}, not {governor!r}")
        return governor


class ProjectSpec(Strict):
    """A team and its budget line."""

    description: str = Field(default="", max_length=2000)


class _Manifest(Strict):
    apiVersion: Literal["plimsoll/v1"] = "plimsoll/v1"  # noqa: N815  the field's name in every such manifest


class Project(_Manifest):
    """A team; services, tokens and costs belong to one."""

    kind: Literal["Project"] = "Project"
    metadata: Metadata
    spec: ProjectSpec = ProjectSpec()


class GpuType(_Manifest):
    """A kind of GPU in the catalogue."""

    kind: Literal["GpuType"] = "GpuType"
    metadata: TypeMetadata
    spec: GpuTypeSpec


class Node(_Manifest):
    """A machine with GPUs."""

    kind: Literal["Node"] = "Node"
    metadata: Metadata
    spec: NodeSpec = NodeSpec()


class Network(_Manifest):
    """A neural network."""

    kind: Literal["Network"] = "Network"
    metadata: TypeMetadata
    spec: NetworkSpec = NetworkSpec()


class Profile(_Manifest):
    """Operating points of one network on one GPU type."""

    kind: Literal["Profile"] = "Profile"
    metadata: TypeMetadata
    spec: ProfileSpec


class Service(_Manifest):
    """An inference service with its SLO."""

    kind: Literal["Service"] = "Service"
    metadata: Metadata
    spec: ServiceSpec


class Policy(_Manifest):
    """The control loop's policy."""

    kind: Literal["Policy"] = "Policy"
    metadata: Metadata
    spec: PolicySpec = PolicySpec()


Manifest = Annotated[Project | GpuType | Node | Network | Profile | Service | Policy, Field(discriminator="kind")]
"""Any of the kinds, told apart by `kind`."""

APPLY_ORDER: tuple[str, ...] = ("Project", "GpuType", "Node", "Network", "Profile", "Policy", "Service", "Task")
"""References point backwards in this order, so that one file may hold everything."""
