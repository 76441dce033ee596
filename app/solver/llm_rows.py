"""How a language model's service may run: asked by the loop, found out where policies run, as it takes seconds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from solvers.types.llm import (
    LlmNetwork,
    LlmPoints,
    LlmTerms,
    ServedLengths,
    ServedSpeed,
    TokenSlo,
)
from solvers.types.state import GpuType


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRequest:
    """A service with the GPU types that it may use. Equal ones have equal answers."""

    service: str
    network: str
    stated: LlmNetwork = field(default_factory=LlmNetwork)
    """What is stated of the network, which else is the one of that name that ships."""
    slo: TokenSlo
    terms: LlmTerms
    gpu_types: tuple[GpuType, ...]
    """Without counts and prices, which change nothing."""
    served: tuple[ServedSpeed, ...] = ()
    """What its replicas themselves say of their speed."""
    lengths: ServedLengths | None = None
    """What they say of its requests; None: what is stated holds."""


class RowInterval(NamedTuple):
    """How surely the capacity of one row is known."""

    gpu_type: str
    tp: int
    low_rps: float
    """Nine in ten true capacities lie between both."""
    high_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAnswer:
    """All ways to run it."""

    points: tuple[LlmPoints, ...] = ()
    intervals: tuple[RowInterval, ...] = ()
    lacks: tuple[str, ...] = ()
    """Why it cannot run on GPU types, or on any, in words."""
    lengths: ServedLengths | None = None
    """That it was sized for; None: those that are stated."""

    def interval(self, gpu_type: str, tp: int) -> RowInterval | None:
        """That of one row."""
        for each in self.intervals:
            if (each.gpu_type, each.tp) == (gpu_type, tp):
                return each
        return None


MakeRows: TypeAlias = Callable[[RowsRequest], RowsAnswer]


def no_rows(request: RowsRequest) -> RowsAnswer:
    """For solvers that were set up without what ships of language models."""
    return RowsAnswer(
        lacks=(f"language models such as {request.network} are not planned here",)
    )
