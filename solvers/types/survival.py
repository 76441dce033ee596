"""What services must survive, and what a plan lacks of it."""

from dataclasses import dataclass
from typing import Literal

LossKind = Literal["none", "gpu", "node", "zone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """What a service must survive: the loss of any one GPU, node or zone."""

    loss: LossKind
    share: float = 1.0
    """The part of its demand that must still be served afterwards; 0 < share <= 1. Below 1 its SLO breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalGoal:
    """What must be left of one service after a loss."""

    service: str
    loss: LossKind
    share: float
    """The part of the forecast rate; 0 < share <= 1."""
    needed_rps: float
    """That the survivors must be planned for."""
    is_asked: bool
    """Whether the service's team asked for it; else it is the policy's default, which costs no replica of its own."""
    rate_rps: float = 0.0
    """The rate that would be planned for without the goal."""
    min_replicas: int = 0
    """The minimum number of replicas without the goal; both are 0 where it limits nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalGap:
    """The worst loss of one service that leaves too little of it."""

    service: str
    loss: LossKind
    lost: str
    """The id of the GPU or node, or the zone."""
    left_rps: float
    """Planned elsewhere."""
    needed_rps: float
    share: float
    """That was asked for."""
