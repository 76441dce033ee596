"""Parts of a scenario: fleet, services, tasks, faults, policies. Each is strict by itself."""

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from agents.base.protocol import DEFAULT_PROJECT
from agents.sim.spec import BUSIEST
from app.manifests.objects import ServiceSpec, VariantManifest
from app.manifests.parts import NAME_PATTERN, LabelValue, Name, Strict, TypeName
from app.manifests.policies import PolicyManifestSpec
from app.simulate.scenario.load import Positive, Seconds, ServiceLoad
from solvers.types.state import TaskKind


def _one_line(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError(
            f"must be printable, on one line, without blanks at its ends, not {name!r}"
        )
    return name


# Labels are shown in tables, in the terminal and in SVG: a line break would spoil all three.
PolicyName = Annotated[
    str, Field(min_length=1, max_length=63), AfterValidator(_one_line)
]
Priority = Annotated[
    float,
    Field(gt=0, le=1_000_000, allow_inf_nan=False, description="Higher goes first"),
]


# Pools and not nodes: a fleet of a thousand GPUs is some lines, and its nodes' names follow from them.
class NodePool(Strict):
    """Equal nodes, called `<name>-1`, `<name>-2`, ..."""

    name: Name
    gpu_type: TypeName
    nodes: int = Field(default=1, ge=1, le=10_000)
    gpus_per_node: int = Field(default=1, ge=1, le=64)
    launch_s: Seconds = Field(
        default=10.0,
        description="From the start of a replica until it is ready",
    )
    owned: bool = Field(
        default=False,
        description="Its GPUs are paid for whether they are used or not; all pools of a type together",
    )


class SimulatedService(ServiceSpec):
    """A service as its manifest states it, and who asks for it."""

    name: Name
    project: Name = DEFAULT_PROJECT
    labels: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Groups are chosen by them",
    )
    load: ServiceLoad


class TaskWork(Strict):
    """What one iteration of a task is."""

    network: TypeName
    batch: int = Field(
        ge=1,
        le=65_536,
        description="Examples or inputs per iteration; must be a profiled batch size",
    )


class SimulatedTask(TaskWork):
    """Training, or an offline job: iterations on what services leave over, until it is done."""

    name: Name
    project: Name = DEFAULT_PROJECT
    kind: TaskKind
    iterations: int = Field(ge=1, le=10**9)
    submit_s: Seconds = 0.0
    deadline_s: Positive | None = Field(
        default=None,
        description="When it should be done; absent: whenever",
    )
    priority: Priority = 1.0
    weight: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Above 0.5 its latency counts, else its throughput",
    )
    variants: list[VariantManifest] = Field(
        default_factory=list,
        max_length=16,
        description="Networks that may do it",
    )
    accuracy_floor: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Variants below it are never chosen",
    )

    @model_validator(mode="after")
    def _variants_fit(self) -> Self:
        # Its own accuracy is stated nowhere else, and the choice compares accuracies.
        if self.variants and self.network not in [
            each.network for each in self.variants
        ]:
            raise ValueError(
                f"variants must have its own network {self.network}, with its accuracy, among them"
            )
        if self.accuracy_floor > max(
            (each.accuracy for each in self.variants), default=self.accuracy_floor
        ):
            raise ValueError(
                f"no variant reaches accuracy_floor {self.accuracy_floor:g}; lower it"
            )
        return self

    @model_validator(mode="after")
    def _deadline_is_later(self) -> Self:
        if self.deadline_s is not None and self.deadline_s <= self.submit_s:
            raise ValueError(
                f"its deadline is at {self.deadline_s:g} s, but it is submitted at {self.submit_s:g} s only"
            )
        return self


class TaskList(Strict):
    """Tasks called `<name>-1`, `<name>-2`, ..., made of the jobs of a list (`plimsoll trace import philly | alibaba`).

    A job becomes as many iterations as would take its duration alone on a whole GPU of the reference type, at its
    highest clock, times the job's share of a GPU. A task uses one GPU, so more of them count as one.
    """

    # 63 characters of a name, less a dash and the digits of a number.
    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=55)]
    project: Name = DEFAULT_PROJECT
    file: PurePath = Field(description="Relative to the scenario's own file")
    kind: TaskKind
    networks: list[TaskWork] = Field(
        min_length=1,
        max_length=100,
        description="Jobs get them in turn",
    )
    first: int = Field(
        default=1,
        ge=1,
        description="Number of the list's job that is submitted at start_s",
    )
    most: int = Field(
        default=100,
        ge=1,
        le=2000,
        description="Number of jobs; those after the end are left out",
    )
    start_s: Seconds = Field(default=0.0, description="When the first one is submitted")
    time_scale: Positive = Field(
        default=1.0,
        description="Submissions and durations go this many times as fast",
    )
    deadline_factor: Positive | None = Field(
        default=None,
        description="Deadlines come this multiple of the job's duration after submission; absent: none",
    )
    gpu_type: TypeName | None = Field(
        default=None,
        description="Reference type; absent: that of the first pool",
    )
    priority: Priority = 1.0


class FaultSpec(Strict):
    """Something that goes wrong between two moments."""

    kind: Literal[
        "gpu_lost", "node_lost", "launch_failure", "straggler", "silent", "stale"
    ]
    node: Name = Field(
        description="Its name; busiest: the one with the highest planned rate when the fault begins",
    )
    gpu: int | None = Field(
        default=None,
        ge=0,
        description="Counted from 0 on its node; absent: every GPU of the node",
    )
    start_s: Seconds
    end_s: Seconds | None = Field(default=None, description="Absent: for good")
    factor: Positive = Field(
        default=1.0,
        description="straggler: everything takes this many times as long",
    )
    delay_s: Positive | None = Field(
        default=None,
        description="stale: telemetry comes so much later",
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(
                f"it ends at {self.end_s:g} s, but begins at {self.start_s:g} s only"
            )
        # Fields that another kind would ignore are refused: an author expects something of them.
        if self.kind == "straggler" and self.factor == 1.0:
            raise ValueError(
                "a straggler needs a factor other than 1: everything takes this many times as long"
            )
        if self.kind != "straggler" and self.factor != 1.0:
            raise ValueError(f"factor is for stragglers; leave it out of {self.kind}")
        if self.kind == "stale" and self.delay_s is None:
            raise ValueError("stale telemetry needs delay_s: it comes so much later")
        if self.kind != "stale" and self.delay_s is not None:
            raise ValueError(
                f"delay_s is for stale telemetry; leave it out of {self.kind}"
            )
        if self.gpu is not None and self.kind in ("node_lost", "silent", "stale"):
            raise ValueError(f"{self.kind} is of a whole node; leave gpu out")
        # How many GPUs that node has is known only when the fault begins.
        if self.gpu is not None and self.node == BUSIEST:
            raise ValueError(
                "gpu is for a node that is named; leave it out, or name the node in place of busiest"
            )
        return self


class PolicyRun(Strict):
    """One way to decide: a policy, and in what it differs from the scenario's `loop`."""

    policy: PolicyName
    name: PolicyName | None = Field(
        default=None,
        description="In the report; absent: the policy's own name",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of `loop` that it has otherwise",
    )
    clairvoyant: bool = Field(
        default=False,
        description="It knows the true rates and times",
    )
    foresight_s: Seconds | None = Field(
        default=None,
        description="clairvoyant: it plans for the highest rate of so long; absent: until what it starts is ready",
    )
    launch_s: Seconds | None = Field(
        default=None,
        description="In place of the nodes' own",
    )
    room: float | None = Field(
        default=None,
        ge=0.1,
        le=10.0,
        allow_inf_nan=False,
        description="The multiple of the expected rate that plans carry, of all services alike; absent: what their "
        "error budgets ask for, 1 for clairvoyant policies",
    )

    @property
    def label(self) -> str:
        """What it is called in the report."""
        return self.name or self.policy


class ScenarioFields(Strict):
    """What is simulated."""

    duration_s: Annotated[float, Field(ge=1, le=31_536_000, allow_inf_nan=False)]
    # How long an empty cluster takes to fill says nothing of how a policy runs it from then on.
    warm_up_s: Seconds = Field(
        default=0.0,
        description="Runs, but does not count in the report",
    )
    step_s: Positive = Field(
        default=60.0,
        description="Step of the report's time series",
    )
    seeds: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(
        default=[0],
        min_length=1,
        max_length=1000,
    )
    policies: list[PolicyRun] = Field(
        min_length=1,
        max_length=32,
        description="Names, or objects where they differ",
    )
    truth: Literal["measured", "planned"] = Field(
        default="measured",
        description="measured: curves and noise that no predictor sees; planned: exactly what the planner reckons with",
    )
    loop: PolicyManifestSpec = Field(
        default=PolicyManifestSpec(),
        description="How the loop decides, whatever the policy",
    )
    agent_period_s: Positive = 5.0
    handover_s: Seconds = Field(
        default=15.0,
        description="How long a replica that moves to another node serves on",
    )
    fleet: list[NodePool] = Field(min_length=1, max_length=1000)
    services: list[SimulatedService] = Field(min_length=1, max_length=10_000)
    tasks: list[SimulatedTask] = Field(default_factory=list, max_length=2000)
    task_lists: list[TaskList] = Field(default_factory=list, max_length=100)
    faults: list[FaultSpec] = Field(default_factory=list, max_length=10_000)
    grid_intensity: PurePath | None = Field(
        default=None,
        description="CSV, next to the scenario: second or hour of the simulation, g_co2_per_kwh",
    )

    @model_validator(mode="before")
    @classmethod
    def _windows_fit_reports(cls, value: Any) -> Any:
        """Where `loop` has no window_s, it is as long as agent_period_s where that is longer than its default."""
        # Before validation, where a value may have any shape: a wrong one is left for the validation of shapes.
        if not isinstance(value, dict):
            return value
        loop = value.get("loop", {})
        period_s = value.get("agent_period_s", 5.0)
        if (
            not isinstance(loop, dict)
            or not isinstance(period_s, int | float)
            or "window_s" in loop
        ):
            return value
        # Windows shorter than the agents' period would mostly be empty.
        window_s = max(PolicyManifestSpec().window_s, period_s)
        return {**value, "loop": {**loop, "window_s": window_s}}

    @field_validator("policies", mode="before")
    @classmethod
    def _names_are_policies(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [
            {"policy": entry} if isinstance(entry, str) else entry for entry in value
        ]
