"""The manifest of a budget."""

from typing import Any, Literal

from pydantic import Field, field_validator

from app.manifests.objects import PRIORITY_CLASSES, named_priority
from app.manifests.parts import Metadata, Money, Name, Strict


class BudgetSpec(Strict):
    """What may be spent, and what happens when it is."""

    project: Name | None = Field(
        default=None, description="Absent: the whole cluster, idle time included"
    )
    period: Literal["hour", "day", "month"] = Field(
        default="month", description="Periods begin at UTC boundaries"
    )
    usd: Money = Field(description="Above 0")
    action: Literal["warn", "block_new", "degrade"] = Field(
        default="warn",
        description="warn: events at 80 and at 100 %; block_new: also refuse new services and tasks from 100 % on; "
        "degrade: also plan services for less, lowest priority first. Nothing that runs is stopped",
    )
    protected_priority: float = Field(
        # A service that is called critical is not expected to be slowed down by a budget.
        default=PRIORITY_CLASSES["critical"],
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="With action degrade: services of at least this priority lose nothing; critical = 100, standard "
        "= 10, batch = 1",
    )

    @field_validator("protected_priority", mode="before")
    @classmethod
    def _named_priority(cls, value: Any) -> Any:
        # Before the number is checked: `critical` is none yet.
        return named_priority(value)


class BudgetManifest(Strict):
    """What a project, or the whole cluster, may cost in an hour, a day or a month."""

    apiVersion: Literal["plimsoll/v1"] = "plimsoll/v1"  # noqa: N815  the field's name in every manifest
    kind: Literal["Budget"] = "Budget"
    metadata: Metadata
    spec: BudgetSpec
