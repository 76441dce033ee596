"""Manifests: the objects that users write, as YAML or JSON. Strict: unknown fields and wild values are refused.

Every manifest has `apiVersion: plimsoll/v1`, a `kind`, `metadata` and a `spec`. The API adds `status` when it answers.
The REST API and the CLI share these classes; `app.api.workloads.service_views` turns them into the solvers' nouns and
back.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

# Under the same names again, so that the API and the CLI import one module for all of them.
from app.manifests.fleet import GpuTypeSpec as GpuTypeSpec
from app.manifests.fleet import NodeGpu as NodeGpu
from app.manifests.fleet import NodeSpec as NodeSpec
from app.manifests.parts import NAME_PATTERN as NAME_PATTERN
from app.manifests.parts import PATTERN_RULES as PATTERN_RULES
from app.manifests.parts import TYPE_NAME_PATTERN as TYPE_NAME_PATTERN
from app.manifests.parts import Amount as Amount
from app.manifests.parts import LabelValue as LabelValue
from app.manifests.parts import Metadata as Metadata
from app.manifests.parts import Money as Money
from app.manifests.parts import Name as Name
from app.manifests.parts import Size as Size
from app.manifests.parts import Strict as Strict
from app.manifests.parts import SurvivalSpec as SurvivalSpec
from app.manifests.parts import TypeMetadata as TypeMetadata
from app.manifests.parts import TypeName as TypeName
from app.manifests.parts import camel
from app.manifests.policies import Groups as Groups
from app.manifests.policies import PolicyGroupSpec as PolicyGroupSpec
from app.manifests.policies import PolicyManifestSpec as PolicyManifestSpec

API_VERSION = "plimsoll/v1"

PRIORITY_CLASSES = {"critical": 100.0, "standard": 10.0, "batch": 1.0}
"""Named priorities; a higher number wins when GPUs are short."""


def named_priority(value: Any) -> Any:
    """The number of a named priority; whatever has no name as it is. Raises ValueError."""
    # A number stays a number; pydantic checks it next.
    if not isinstance(value, str):
        return value
    if value not in PRIORITY_CLASSES:
        raise ValueError(
            f"must be a number or one of {', '.join(PRIORITY_CLASSES)}, not {value!r}"
        )
    return PRIORITY_CLASSES[value]


class SloSpec(Strict):
    """At least `percentile` of the requests finish within `latency_ms`."""

    latency_ms: Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)]
    # Below the median a promise means little; above 0.999 it takes thousands of requests to measure it.
    percentile: Annotated[float, Field(ge=0.5, le=0.999, allow_inf_nan=False)] = 0.99


class ScalingSpec(Strict):
    """Limits and delays of the replica count; delays are in seconds."""

    min_replicas: int = Field(
        default=0, ge=0, le=10_000, validation_alias=camel("min_replicas")
    )
    max_replicas: int | None = Field(
        default=None, ge=1, le=10_000, validation_alias=camel("max_replicas")
    )
    upscale_delay_s: Amount = Field(
        default=0.0, le=86_400, validation_alias=camel("upscale_delay_s")
    )
    downscale_delay_s: Amount = Field(
        default=60.0, le=86_400, validation_alias=camel("downscale_delay_s")
    )
    buffer_replicas: int = Field(
        default=0,
        ge=0,
        le=1000,
        validation_alias=camel("buffer_replicas"),
        description="Replicas beyond min_replicas that always run",
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> "ScalingSpec":
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}"
            )
        return self


class GpuChoice(Strict):
    """Which GPU types a service may use."""

    allowed: list[TypeName] | None = Field(
        default=None, max_length=64, description="Absent: all"
    )
    excluded: list[TypeName] = Field(default_factory=list, max_length=64)


class VariantManifest(Strict):
    """One network that can do the work, and how well."""

    network: TypeName
    accuracy: float = Field(
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="As you state it; compared with the floor",
    )


class ServiceSpec(SurvivalSpec):
    """What a team wants served."""

    network: TypeName
    variants: list[VariantManifest] = Field(
        default_factory=list,
        max_length=16,
        description="Networks that may serve it, including `network`; policy `joint` takes the cheapest that reaches "
        "accuracy_floor, others take `network`",
    )
    accuracy_floor: float = Field(
        default=0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Variants below it are never chosen",
    )
    slo: SloSpec
    scaling: ScalingSpec = ScalingSpec()
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
    anti_affinity: list[TypeName] = Field(
        default_factory=list,
        max_length=16,
        description="Labels of the project's own: services with a common one never share a GPU",
    )

    @field_validator("priority", mode="before")
    @classmethod
    def _named_priority(cls, value: Any) -> Any:
        return named_priority(value)

    @field_validator("variants")
    @classmethod
    def _has_its_network(
        cls, variants: list[VariantManifest], info: ValidationInfo
    ) -> list[VariantManifest]:
        # The network is absent here where it failed its own check, which is reported already.
        names = [each.network for each in variants]
        own = info.data.get("network")
        if len(set(names)) < len(names):
            raise ValueError("have the same network twice")
        if names and own is not None and own not in names:
            raise ValueError(f"must include {own}, with its accuracy")
        return variants

    @field_validator("accuracy_floor")
    @classmethod
    def _is_reached(cls, floor: float, info: ValidationInfo) -> float:
        accuracy = {
            each.network: each.accuracy for each in info.data.get("variants", [])
        }
        own = info.data.get("network")
        # Variants that failed their own check are absent: one complaint is enough.
        if not accuracy and floor > 0.0 and "variants" in info.data:
            raise ValueError("applies only to variants; leave it out without them")
        if own in accuracy and accuracy[own] < floor:
            raise ValueError(
                f"{own} has {accuracy[own]:g}; take a network above the floor, or lower it"
            )
        return floor


class NetworkSpec(Strict):
    """A neural network that services run."""

    description: str = Field(default="", max_length=2000)
    parameter_bytes: int | None = Field(default=None, ge=1, le=10**15)


Sigma = Annotated[float, Field(ge=0, le=3, allow_inf_nan=False)]
"""At 3 a time may be off by a factor of 20; whoever knows so little should measure first."""

# By position: a profile has thousands of rows, whose names would be most of its text.
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
    stall_ms: list[Amount] | None = Field(
        default=None,
        description="Of training, by row: by how much it lengthens the 99th percentile of a neighbour's batches beyond "
        "what it does to their mean. Absent: 0",
    )


class QuotaSpec(Strict):
    """Ceilings; what is there when they are lowered stays, and cannot grow. Absent: none."""

    max_priority: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Of each service and task; also critical, standard or batch",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Replicas that its services may run together, counted by max_replicas, which each must then state",
    )
    max_gpus: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="GPUs that its services and tasks may hold together: one for each replica of max_replicas, and "
        "one for each unfinished task",
    )
    max_simulations: int | None = Field(
        default=None,
        ge=0,
        le=1_000,
        description="Simulations that may wait or run; without it, tokens bound to projects cannot request simulations",
    )

    @field_validator("max_priority", mode="before")
    @classmethod
    def _named_priority(cls, value: Any) -> Any:
        return named_priority(value)


class ProjectSpec(Strict):
    """A team and its budget line."""

    description: str = Field(default="", max_length=2000)
    quota: QuotaSpec = QuotaSpec()


class _Manifest(Strict):
    apiVersion: Literal["plimsoll/v1"] = "plimsoll/v1"  # noqa: N815  the field's name in every such manifest


class Project(_Manifest):
    """A team; services, tokens and costs belong to one."""

    kind: Literal["Project"] = "Project"
    metadata: Metadata
    spec: ProjectSpec = ProjectSpec()


class GpuTypeManifest(_Manifest):
    """A kind of GPU in the catalogue."""

    kind: Literal["GpuType"] = "GpuType"
    metadata: TypeMetadata
    spec: GpuTypeSpec


class NodeManifest(_Manifest):
    """A machine with GPUs."""

    kind: Literal["Node"] = "Node"
    metadata: Metadata
    spec: NodeSpec = NodeSpec()


class Network(_Manifest):
    """A neural network."""

    kind: Literal["Network"] = "Network"
    metadata: TypeMetadata
    spec: NetworkSpec = NetworkSpec()


class ProfileManifest(_Manifest):
    """Operating points of one network on one GPU type."""

    kind: Literal["Profile"] = "Profile"
    metadata: TypeMetadata
    spec: ProfileSpec


class ServiceManifest(_Manifest):
    """An inference service with its SLO."""

    kind: Literal["Service"] = "Service"
    metadata: Metadata
    spec: ServiceSpec


class PolicyManifest(_Manifest):
    """The control loop's policy."""

    kind: Literal["Policy"] = "Policy"
    metadata: Metadata
    spec: PolicyManifestSpec = PolicyManifestSpec()


Manifest = Annotated[
    Project
    | GpuTypeManifest
    | NodeManifest
    | Network
    | ProfileManifest
    | ServiceManifest
    | PolicyManifest,
    # By the kind alone, so that a complaint is about that kind's fields and not about all seven.
    Field(discriminator="kind"),
]
"""Any of the kinds, told apart by `kind`."""

APPLY_ORDER: tuple[str, ...] = (
    "Project",
    "GpuType",
    "Node",
    "Network",
    "Profile",
    "Policy",
    # After the projects that it names, before what it may stop.
    "Budget",
    "Webhook",
    "Service",
    "Task",
)
"""References point backwards in this order, so that one file may hold everything."""
