"""The manifest of a budget."""

from typing import Literal

from pydantic import Field

from app.manifest_parts import Metadata, Money, Name, Strict


class BudgetSpec(Strict):
    """What may be spent, and what happens when it is."""

    project: Name | None = Field(default=None, description="Absent: the whole cluster, idle time included")
    period: Literal["hour", "day", "month"] = Field(default="month", description="They begin with those of UTC")
    usd: Money = Field(description="Above 0")
    action: Literal["warn", "block_new"] = Field(
        default="warn",
        description="warn: events at 80 and at 100 %; block_new: and from 100 % on new services and tasks are refused. "
        "What runs is never stopped",
    )


class Budget(Strict):
    """What a project, or the whole cluster, may cost in an hour, a day or a month."""

    apiVersion: Literal["plimsoll/v1"] = "plimsoll/v1"  # noqa: N815  the field's name in every manifest
    kind: Literal["Budget"] = "Budget"
    metadata: Metadata
    spec: BudgetSpec
