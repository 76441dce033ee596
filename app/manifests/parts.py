"""What manifests are made of: names, amounts and metadata, each as strict as it can be."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from agents.base.protocol import DEFAULT_PROJECT
from solvers.types.survival import LossKind

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
# Makers' names have capitals, dots and underscores, which DNS labels do not allow.
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
# Decimal: sums of prices must add up to the cent; six places hold a price per hour of a thousandth of a GPU.
Money = Annotated[
    Decimal, Field(gt=0, le=Decimal(1_000_000), max_digits=14, decimal_places=6)
]
# A billion MiB, W or MHz is beyond anything; infinity and NaN would spread through every sum.
Size = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
SurviveShare = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


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


class Strict(BaseModel):
    """Base of everything that a user writes."""

    # A misspelt field that is ignored would leave its default in force, without a word.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def camel(name: str) -> AliasChoices:
    """A field's name as Python and as YAML often have it: `min_replicas`, `minReplicas`."""
    # Manifests that were written for other systems have camel case.
    head, *rest = name.split("_")
    return AliasChoices(name, head + "".join(part.capitalize() for part in rest))


class Metadata(Strict):
    """Who an object is."""

    name: Name
    project: Name = Field(
        default=DEFAULT_PROJECT,
        description="The project that owns the object and pays for it",
    )
    labels: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=63)], LabelValue
    ] = Field(default_factory=dict, max_length=64)
    annotations: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=253)], LabelValue
    ] = Field(default_factory=dict, max_length=64)
    generation: int | None = Field(
        default=None, ge=1, description="Set by the server; increases with every change"
    )
    created_at: datetime | None = Field(default=None, description="Set by the server")


class TypeMetadata(Metadata):
    """Who a GPU type, a network or a profile is."""

    name: TypeName


class SurvivalSpec(Strict):
    """What a service must survive."""

    survive: LossKind | None = Field(
        default=None,
        description="After the loss of any one of these, survive_share of the demand is still served; replicas are "
        "added for that. Absent: as the policy says, where that needs no additional replica",
    )
    survive_share: SurviveShare | None = Field(
        default=None,
        # So that the default is filled in, and a manifest without it is equal to the object that it makes.
        validate_default=True,
        description="Part of the forecast rate that is left after the loss; absent: 1, so that the SLO is kept",
    )

    @field_validator("survive_share")
    @classmethod
    def _is_of_a_loss(cls, share: float | None, info: ValidationInfo) -> float | None:
        loss = info.data.get("survive")
        if share is not None and loss is None:
            raise ValueError("is for a loss: also state survive (gpu, node or zone)")
        return 1.0 if share is None and loss is not None else share
