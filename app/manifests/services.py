"""What teams state of the services that they want."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from app.manifests.parts import (
    PRIORITY_CLASSES,
    Amount,
    Strict,
    SurvivalSpec,
    TypeName,
    camel,
    named_priority,
)
from solvers.types.llm import MAX_CONTEXT, Degree, LlmTerms, Precision
from solvers.types.state import ErrorBudget

_USUAL = LlmTerms(itl_ms=1.0)
"""For its defaults."""

Milliseconds = Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)]


class SloSpec(Strict):
    """At least `percentile` of the requests finish within `latency_ms`; of language models, tokens come in time."""

    latency_ms: Milliseconds | None = Field(
        default=None, description="Of kind inference: until the answer"
    )
    ttft_ms: Milliseconds | None = Field(
        default=None, description="Of kind llm: until the first token"
    )
    itl_ms: Milliseconds | None = Field(
        default=None, description="Of kind llm: from one token to the next"
    )
    itl: Literal["token", "request"] | None = Field(
        default=None,
        description="Of kind llm: whether itl_ms holds for `percentile` of the tokens (the default), or of the "
        "requests' means",
    )

    @field_validator("itl")
    @classmethod
    def _as_kept(cls, itl: str | None) -> str | None:
        # The control plane prints the default as absent: stated, it is the same.
        return None if itl == "token" else itl

    # Below the median a promise means little; above 0.999 it takes thousands of requests to measure it.
    percentile: Annotated[float, Field(ge=0.5, le=0.999, allow_inf_nan=False)] = 0.99
    budget: ErrorBudget = Field(
        default="spend",
        description="Of requests that may be late: spend: plans are as tight as it allows; keep: they use none of it, "
        "and cost more",
    )


class LengthsSpec(Strict):
    """How long requests and answers are, in tokens. The defaults are those of conversations."""

    prompt: float = Field(
        default=_USUAL.prompt_tokens, ge=1, le=MAX_CONTEXT, description="Mean"
    )
    output: float = Field(
        default=_USUAL.output_tokens, ge=1, le=MAX_CONTEXT, description="Mean"
    )
    spread: float = Field(
        default=_USUAL.spread,
        ge=0,
        le=3,
        allow_inf_nan=False,
        description="Standard deviation of the logarithm of both; 0: all are alike",
    )


class LlmSpec(Strict):
    """What a language model is served with."""

    dtype: Precision | None = Field(
        default=None, description="Of its weights; absent: as they are published"
    )
    lengths: LengthsSpec | None = Field(
        default=None,
        description="Absent: as its replicas count them, and those of conversations until they have",
    )
    max_model_len: int = Field(
        default=_USUAL.max_model_len,
        ge=16,
        le=MAX_CONTEXT,
        description="Tokens of the longest prompt with its answer",
    )
    tp: Degree | None = Field(
        default=None,
        description="GPUs of one node that each replica spans; absent: as many as is best",
    )

    @field_validator("max_model_len")
    @classmethod
    def _holds_lengths(cls, longest: int, info: ValidationInfo) -> int:
        lengths = info.data.get("lengths")
        if lengths is not None and lengths.prompt + lengths.output > longest:
            raise ValueError(
                f"{longest} is less than lengths.prompt + lengths.output, {lengths.prompt + lengths.output:g}: "
                "raise it, or state shorter lengths"
            )
        return longest


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

    kind: Literal["inference", "llm"] = Field(
        default="inference",
        description="llm: a language model, whose answers come token by token; it has whole GPUs to itself, one or "
        "several of a node per replica",
    )
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
    llm: LlmSpec | None = Field(
        default=None,
        validate_default=True,
        description="Of kind llm alone, where the defaults do not suit it",
    )
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

    @field_validator("slo")
    @classmethod
    def _is_of_kind(cls, slo: SloSpec, info: ValidationInfo) -> SloSpec:
        # The kind is absent here where it failed its own check, which is reported already.
        tokens = (slo.ttft_ms, slo.itl_ms)
        if info.data.get("kind") == "llm":
            if None in tokens or slo.latency_ms is not None:
                raise ValueError(
                    "of kind llm must state ttft_ms and itl_ms, and no latency_ms"
                )
        elif info.data.get("kind") and (
            slo.latency_ms is None or any(tokens) or slo.itl is not None
        ):
            raise ValueError(
                "must state latency_ms; ttft_ms and itl_ms are for services of kind llm"
            )
        return slo

    @field_validator("llm")
    @classmethod
    def _is_for_models(
        cls, llm: LlmSpec | None, info: ValidationInfo
    ) -> LlmSpec | None:
        if info.data.get("kind") == "inference" and llm is not None:
            raise ValueError("is for services of kind llm: add kind: llm")
        # Filled in, so that a manifest without it is equal to the object that it makes.
        is_absent = llm is None and info.data.get("kind") == "llm"
        return LlmSpec() if is_absent else llm

    @field_validator("variants")
    @classmethod
    def _has_its_network(
        cls, variants: list[VariantManifest], info: ValidationInfo
    ) -> list[VariantManifest]:
        # The network is absent here where it failed its own check, which is reported already.
        names = [each.network for each in variants]
        own = info.data.get("network")
        if names and info.data.get("kind") == "llm":
            raise ValueError("are for services of kind inference: leave them out")
        if len(set(names)) < len(names):
            raise ValueError("have the same network twice")
        if names and own is not None and own not in names:
            raise ValueError(f"must include {own}, with its accuracy")
        return variants

    @field_validator("anti_affinity")
    @classmethod
    def _as_a_set(cls, labels: list[str]) -> list[str]:
        return sorted(set(labels))

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
