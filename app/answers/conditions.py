"""Conditions: what is said of a service or a node, and the three that follow from a service's plans. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from app.loop.plan import RATE_TOLERANCE
from solvers.types.plan import Unserved, UnservedReason

ConditionType = Literal[
    "Ready",
    "TelemetryAvailable",
    "Feasible",
    "Applied",
    "PredictionsHold",
    "SLOMet",
    "Launches",
    "Survives",
]
Truth = Literal["True", "False", "Unknown"]

UNSERVED_REASONS: dict[UnservedReason, str] = {
    "slo": "SloOutOfReach",
    "stock": "NoGpuLeft",
    "sm": "NoSmLeft",
    "memory": "NoMemoryLeft",
    "power": "PowerCapReached",
    "replicas": "ReplicaLimitReached",
    "budget": "SolverOutOfTime",
    "slots": "NoNodeWithEnoughGpus",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One statement about a service or a node."""

    type: ConditionType
    status: Truth
    reason: str
    """CamelCase, for programs."""
    message: str
    """For people."""


_FIRST_READ: tuple[ConditionType, ...] = (
    "Feasible",
    "Applied",
    "Launches",
    "SLOMet",
    "TelemetryAvailable",
    "PredictionsHold",
    "Survives",
)
"""What a person should read first, where several conditions do not hold: causes before what follows from them."""


def first_trouble(conditions: Iterable[Condition]) -> Condition | None:
    """The condition that does not hold and that the others follow from; None: all hold, or it is not known."""
    # `Ready` is left out: it only repeats another one.
    broken = {each.type: each for each in conditions if each.status == "False"}
    return next((broken[kind] for kind in _FIRST_READ if kind in broken), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPlan:
    """The newest plan that a person may still approve, as one service sees it."""

    id: int
    replicas: int
    """That it has of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """Everything from which a service's `Ready`, `Feasible` and `Applied` follow."""

    objection: str | None = None
    """Why no plan could ever serve it; None: one could."""
    is_off: bool = False
    """Whether its mode is off, so plans leave it out."""
    wanted_rps: float | None = None
    """What the newest decision expected, or what arrives; None: the service has not been looked at yet."""
    min_replicas: int = 0
    generation: int | None = None
    """The number of the plan in force; None: there is none."""
    replicas: int = 0
    """That the plan in force has of it."""
    planned_rps: float = 0.0
    unserved: tuple[Unserved, ...] = ()
    """What the plan in force leaves out of it."""
    carriers: int = 0
    """Nodes on which the plan in force has a replica of it."""
    ahead: str = ""
    """Carriers that follow newer generations."""
    behind: str = ""
    """Carriers that still follow older generations."""
    waiting: WaitingPlan | None = None

    @property
    def needs_nothing(self) -> bool:
        """Whether it is known that no request is expected and no replica must stand ready."""
        return self.wanted_rps == 0.0 and self.min_replicas == 0

    @property
    def is_covered(self) -> bool:
        """Whether the plan in force serves what is wanted of it now, be that nothing."""
        # Bound plans name no service to which they give nothing: such a one may be newer than the plan.
        if self.generation is None or self.is_off or self.unserved:
            return False
        if self.replicas == 0:
            return self.needs_nothing and self.awaited is None
        # The loop itself keeps a plan while rates move within this tolerance.
        enough_rps = (1.0 - RATE_TOLERANCE) * (self.wanted_rps or 0.0)
        return self.replicas >= self.min_replicas and self.planned_rps >= enough_rps

    @property
    def awaited(self) -> WaitingPlan | None:
        """The plan that waits, where its approval would do something for the service."""
        if self.waiting is None or self.is_off:
            return None
        helps = self.generation is None or self.waiting.replicas > 0
        return self.waiting if helps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConditions:
    """What follows from the plans of a service."""

    ready: Condition
    feasible: Condition
    applied: Condition


def plan_conditions(facts: PlanFacts) -> PlanConditions:
    """What can be said of a service by its plans: the one in force, and the one that waits for a person."""
    feasible, applied = _feasible(facts), _applied(facts)
    return PlanConditions(
        ready=_ready(facts, feasible, applied), feasible=feasible, applied=applied
    )


def waits_text(waiting: WaitingPlan) -> str:
    """Which plan waits, and what a person does about it."""
    has = {0: "no replica", 1: "1 replica"}.get(
        waiting.replicas, f"{waiting.replicas} replicas"
    )
    return (
        f"plan {waiting.id}, with {has} of it, waits for approval: "
        f"`plimsoll approve {waiting.id}`, or the page Plans"
    )


def _feasible(facts: PlanFacts) -> Condition:
    """Whether the plan in force serves all of it; what no plan could do is said before what this one does."""
    if facts.objection is not None:
        return _on_feasible("False", "SloOutOfReach", facts.objection)
    if facts.is_off:
        message = "its mode is off, so plans leave it out"
        return _on_feasible("Unknown", "ModeOff", message)
    if facts.generation is not None and facts.unserved:
        reason = UNSERVED_REASONS[facts.unserved[0].reason]
        return _on_feasible("False", reason, _left_out(facts))
    if facts.is_covered:
        message = f"generation {facts.generation} serves the whole forecast rate"
        return _on_feasible("True", "DemandServed", message)
    return _uncovered(facts)


def _on_feasible(status: Truth, reason: str, message: str) -> Condition:
    return Condition(type="Feasible", status=status, reason=reason, message=message)


def _uncovered(facts: PlanFacts) -> Condition:
    """The plan in force does not have enough: whether a person can change that."""
    message = _in_force(facts)
    if facts.awaited is not None:
        message += f"; {waits_text(facts.awaited)}"
        return _on_feasible("Unknown", "WaitsForApproval", message)
    if facts.generation is not None:
        message += "; no larger plan is waiting for approval"
    return _on_feasible("Unknown", "NotPlanned", message)


def _left_out(facts: PlanFacts) -> str:
    message = "; ".join(map(_unserved_text, facts.unserved))
    # What waits may serve it: anyone who looks for a remedy should know.
    if facts.awaited is not None and facts.awaited.replicas > facts.replicas:
        message += f"; {waits_text(facts.awaited)}"
    return message


def _unserved_text(entry: Unserved) -> str:
    missing = (
        f" and {entry.replicas_missing} replicas" if entry.replicas_missing else ""
    )
    return f"the plan leaves out {entry.rate_rps:.1f} requests per second{missing}; limited by: {entry.reason}"


def _in_force(facts: PlanFacts) -> str:
    """What the plan in force has for a service that it does not cover."""
    if facts.generation is None:
        return "there is no plan in force yet"
    text = f"generation {facts.generation}, which is in force, has "
    if facts.replicas == 0:
        text += "no replica of it"
    elif facts.replicas < facts.min_replicas:
        text += f"{facts.replicas} of at least {facts.min_replicas} replicas"
    else:
        text += f"room for {facts.planned_rps:.1f} requests per second"
    if facts.wanted_rps:
        text += f", and {facts.wanted_rps:.1f} per second are expected"
    return text


def _applied(facts: PlanFacts) -> Condition:
    """Whether the nodes follow the plan in force, and that is the one that the service needs."""
    if facts.ahead or facts.behind:
        return _on_followers(facts)
    # Nodes that follow a plan without it have nothing of what is wanted.
    if facts.awaited is not None and not (facts.is_covered or facts.unserved):
        message = waits_text(facts.awaited)
        return _on_applied("False", "WaitsForApproval", message)
    if facts.generation is None:
        return _on_applied("Unknown", "NoTarget", "there is no plan in force yet")
    message = (
        f"generation {facts.generation} is in force on its nodes: {facts.carriers}"
    )
    return _on_applied("True", "NodesFollow", message)


def _on_applied(status: Truth, reason: str, message: str) -> Condition:
    return Condition(type="Applied", status=status, reason=reason, message=message)


def _on_followers(facts: PlanFacts) -> Condition:
    """Nodes follow another generation: newer ones come first, as waiting does not help there."""
    if facts.ahead:
        message = (
            f"{facts.ahead} follow newer generations than {facts.generation}, "
            "which this control plane did not make"
        )
        return _on_applied("False", "NodesAhead", message)
    message = f"generation {facts.generation} is not yet on {facts.behind}"
    return _on_applied("False", "RollingOut", message)


def _ready(facts: PlanFacts, feasible: Condition, applied: Condition) -> Condition:
    """The sum of the others: the plan serves all of it, the nodes have it, and somebody runs it."""
    # What is wrong comes before what is unknown; and whether it can be served before whether it was rolled out.
    for status in ("False", "Unknown"):
        for part in (feasible, applied):
            if part.status == status:
                return replace(part, type="Ready")
    if facts.replicas == 0:
        message = (
            "scaled to zero: no request is expected, and the first one starts a replica"
        )
        return Condition(
            type="Ready", status="True", reason="ScaledToZero", message=message
        )
    message = f"replicas in service: {facts.replicas}"
    return Condition(type="Ready", status="True", reason="Serving", message=message)
