"""What the API answers beyond the manifests, and what it asks for beyond them."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from app.answers.conditions import ConditionType, Truth

Item = TypeVar("Item")


class View(BaseModel):
    """Base of everything that is only answered."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Page(View, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next_cursor: str | None = Field(
        default=None,
        description="Pass it as `cursor` for the next page; null: this is the last",
    )


class ConditionView(View):
    """One statement about a service or a node."""

    type: ConditionType
    status: Truth
    reason: str
    message: str


class FieldProblem(View):
    """One field that is wrong."""

    pointer: str | None = Field(default=None, description="JSON pointer into the body")
    parameter: str | None = Field(
        default=None, description="Name of the query, path or header parameter"
    )
    detail: str
    may_force: bool | None = Field(
        default=None,
        description="true: `?force=true` accepts it anyway; absent otherwise",
    )


class ProblemDetails(View):
    """An error as RFC 9457 has it."""

    type: str = Field(description="Stable URI of the kind of problem")
    title: str
    status: int
    detail: str = Field(description="What is wrong, and what to do")
    instance: str = Field(description="Path of the request")
    code: str = Field(description="Last part of `type`")
    request_id: str = Field(
        description="Also in the X-Request-ID header and in the audit"
    )
    errors: list[FieldProblem] = []
