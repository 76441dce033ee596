"""Manifests: the objects that users write, as YAML or JSON. Strict: unknown fields and wild values are refused.

Every manifest has `apiVersion: plimsoll/v1`, a `kind`, `metadata` and a `spec`. The API adds `status` when it answers.
The REST API and the CLI share these classes; `app.api.workloads.service_views` turns them into the solvers' nouns and
back.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

# Under the same names again, so that the API and the CLI import one module for all of them.
from app.manifests.fleet import DataSheet as DataSheet
from app.manifests.fleet import GpuTypeSpec as GpuTypeSpec
from app.manifests.fleet import NodeGpu as NodeGpu
from app.manifests.fleet import NodeSpec as NodeSpec
from app.manifests.parts import NAME_PATTERN as NAME_PATTERN
from app.manifests.parts import PATTERN_RULES as PATTERN_RULES
from app.manifests.parts import PRIORITY_CLASSES as PRIORITY_CLASSES
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
from app.manifests.parts import named_priority as named_priority
from app.manifests.policies import Groups as Groups
from app.manifests.policies import PolicyGroupSpec as PolicyGroupSpec
from app.manifests.policies import PolicyManifestSpec as PolicyManifestSpec
from app.manifests.services import GpuChoice as GpuChoice
from app.manifests.services import LengthsSpec as LengthsSpec
from app.manifests.services import LlmSpec as LlmSpec
from app.manifests.services import ScalingSpec as ScalingSpec
from app.manifests.services import ServiceSpec as ServiceSpec
from app.manifests.services import SloSpec as SloSpec
from app.manifests.services import VariantManifest as VariantManifest
from solvers.types.llm import MAX_CONTEXT, Degree, Precision

API_VERSION = "plimsoll/v1"


class RunSpec(Strict):
    """A benchmark of a language model's server: clients that each send one request at a time."""

    gpu_type: TypeName
    tp: Degree = 1
    dtype: Precision = "bf16"
    clients: float = Field(ge=1, le=100_000, allow_inf_nan=False)
    prompt_tokens: float = Field(
        ge=1, le=MAX_CONTEXT, allow_inf_nan=False, description="Mean"
    )
    output_tokens: float = Field(
        ge=1, le=MAX_CONTEXT, allow_inf_nan=False, description="Mean"
    )
    tpot_ms: float = Field(
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="Mean time from one token to the next",
    )


class NetworkSpec(Strict):
    """A neural network that services run."""

    description: str = Field(default="", max_length=2000)
    parameter_bytes: int | None = Field(default=None, ge=1, le=10**15)
    config: dict[str, Any] | None = Field(
        default=None,
        description="Of a language model that does not ship: the config.json next to its weights, as it is",
    )
    runs: list[RunSpec] = Field(
        default_factory=list,
        max_length=500,
        description="Of a language model: benchmarks of its servers, which correct its sizes; `plimsoll samples "
        "runs` makes them of files of vLLM bench, GuideLLM, AIPerf and GenAI-Perf",
    )


Sigma = Annotated[float, Field(ge=0, le=3, allow_inf_nan=False)]
"""At 3 a time may be off by a factor of 20; with so little knowledge, measure first."""

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
