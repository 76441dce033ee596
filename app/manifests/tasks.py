"""The manifest of a task: training, or an offline job, as a team writes it. Strict, like every manifest."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from app.manifests.objects import PRIORITY_CLASSES, VariantManifest, named_priority
from app.manifests.parts import Metadata, Size, Strict, TypeName

MAX_ITERATIONS = 10**9

LayerKind = Literal[
    "convolution",
    "depthwise_convolution",
    "grouped_convolution",
    "linear",
    "recurrent",
    "embedding",
    "normalisation",
    "activation",
    "pooling",
    "attention",
    "elementwise",
]
Complaint: TypeAlias = tuple[str, str]
"""Field of the spec, and what is wrong with it."""


class TaskSpec(Strict):
    """What is to be done, until when, and how urgent it is."""

    kind: Literal["training", "offline"] = Field(
        description="training: iterations are steps of a training network; offline: batches of stored inputs"
    )
    network: TypeName | None = Field(
        default=None,
        description="Absent only with `layers`: then it has the task's name",
    )
    layers: dict[LayerKind, Annotated[int, Field(ge=0, le=1_000_000)]] | None = Field(
        default=None,
        min_length=1,
        description="Of a training network that was never profiled: its layers by kind",
    )
    memory_mib: Size | None = Field(
        default=None,
        description="GPU memory needed by a network with `layers`",
    )
    variants: list[VariantManifest] = Field(
        default_factory=list,
        max_length=16,
        description="Networks that may do an offline job, including `network`",
    )
    accuracy_floor: float = Field(
        default=0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Variants below it are never chosen",
    )
    batch: int = Field(
        ge=1,
        le=65_536,
        description="Examples or inputs per iteration; must be a profiled batch size",
    )
    iterations: int | None = Field(
        default=None, ge=1, le=MAX_ITERATIONS, description="This, or epochs, or inputs"
    )
    epochs: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Passes over `examples`"
    )
    examples: int | None = Field(
        default=None, ge=1, le=10**12, description="Of one epoch"
    )
    inputs: int | None = Field(
        default=None, ge=1, le=10**12, description="Stored inputs of the whole job"
    )
    deadline_after_s: float | None = Field(
        default=None,
        gt=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="Deadline in seconds after submission; absent: none",
    )
    priority: float = Field(
        default=PRIORITY_CLASSES["batch"],
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Higher comes first among tasks; critical = 100, standard = 10, batch = 1. Services always come "
        "first",
    )
    weight: float = Field(
        default=0.5,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Above 0.5 it should finish soon, otherwise throughput counts (used by policy oltunes)",
    )
    gpus: int = Field(default=1, description="1: a task uses one GPU, or a part of it")
    checkpoint_command: (
        list[Annotated[str, StringConstraints(min_length=1, max_length=4000)]] | None
    ) = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="How its process writes a checkpoint. Stored and shown, but not yet used by agents",
    )

    @field_validator("priority", mode="before")
    @classmethod
    def _named_priority(cls, value: Any) -> Any:
        return named_priority(value)

    @field_validator("gpus")
    @classmethod
    def _one_gpu(cls, gpus: int) -> int:
        # A field all the same, so that a manifest written for several GPUs is refused with a reason.
        if gpus != 1:
            raise ValueError(
                f"must be 1, not {gpus}: a task has one GPU or a part of it; iterations across several GPUs, "
                "which exchange gradients, are not supported"
            )
        return gpus

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found = [*_ways(self), *_networks(self), *_variants(self)]
        if found:
            # All at once, each at its own field: a ValueError would be one complaint about the entire spec.
            raise ValidationError.from_exception_data(
                "TaskSpec",
                [
                    InitErrorDetails(
                        type=PydanticCustomError("value_error", "{it}", {"it": wrong}),
                        loc=(field,),
                        input="",
                    )
                    for field, wrong in found
                ],
            )
        return self

    @property
    def total_iterations(self) -> int:
        """Until it is done; the last batch of an epoch, or of the inputs, may be smaller than the others."""
        if self.iterations is not None:
            return self.iterations
        if self.epochs is not None and self.examples is not None:
            # The last batch of each epoch may be smaller; an epoch never shares a batch with the next one.
            return self.epochs * math.ceil(self.examples / self.batch)
        return math.ceil((self.inputs or 1) / self.batch)


class TaskManifest(Strict):
    """Training or an offline job, which has what services leave over."""

    apiVersion: Literal["plimsoll/v1"] = "plimsoll/v1"  # noqa: N815  the field's name in every manifest
    kind: Literal["Task"] = "Task"
    metadata: Metadata
    spec: TaskSpec


def _ways(spec: TaskSpec) -> Iterator[Complaint]:
    """One way to say how much is to be done."""
    given = [
        name
        for name in ("iterations", "epochs", "inputs")
        if getattr(spec, name) is not None
    ]
    if len(given) != 1:
        yield (
            given[-1] if given else "iterations",
            f"give one of iterations, epochs or inputs, not {' and '.join(given) or 'none of them'}",
        )
    # With epochs but without examples the total is not known yet, and the missing field is reported below.
    elif spec.total_iterations > MAX_ITERATIONS and (
        spec.examples is not None or spec.epochs is None
    ):
        yield (
            given[0],
            f"they are {spec.total_iterations:,} iterations of batch {spec.batch}; at most 1,000,000,000 are allowed",
        )
    if spec.epochs is not None and spec.examples is None:
        yield (
            "examples",
            "this field is missing: with epochs, state how many examples one has",
        )
    if spec.examples is not None and spec.epochs is None:
        yield "examples", "applies only to epochs; leave it out without them"


def _networks(spec: TaskSpec) -> Iterator[Complaint]:
    if spec.network is None and spec.layers is None:
        yield (
            "network",
            "this field is missing; or give layers and memory_mib of one that was never profiled",
        )
    if spec.layers is not None and spec.kind != "training":
        yield "layers", "are for training: offline jobs run networks that were profiled"
    # A network of nothing would be predicted to take no time.
    if spec.layers is not None and not any(spec.layers.values()):
        yield "layers", "are all 0: state what the network consists of"
    if spec.layers is not None and spec.memory_mib is None:
        yield (
            "memory_mib",
            "this field is missing: it is needed for a network that was never profiled",
        )
    if spec.layers is None and spec.memory_mib is not None:
        yield (
            "memory_mib",
            "is only for a network with layers; a profiled one has it in its profile: leave it out",
        )


def _variants(spec: TaskSpec) -> Iterator[Complaint]:
    names = [variant.network for variant in spec.variants]
    if not names:
        if spec.accuracy_floor > 0.0:
            yield (
                "accuracy_floor",
                "applies only to variants; leave it out without them",
            )
        return
    if spec.kind != "offline":
        yield "variants", "are for offline jobs: training trains one network"
    if spec.network is not None and spec.network not in names:
        yield "variants", f"must include {spec.network}, with its accuracy"
    if len(set(names)) < len(names):
        yield "variants", "have the same network twice"
    best = max(variant.accuracy for variant in spec.variants)
    if best < spec.accuracy_floor:
        yield (
            "accuracy_floor",
            f"no variant reaches {spec.accuracy_floor:g}; the best has {best:g}",
        )
