"""When to scale: HetSev's saturation trigger and the Kubernetes autoscaler's rule, as pure functions with a memory.

Both take the time and what they remembered, and return a decision and what to remember next: small, versioned JSON that
a policy keeps between ticks. Windows and delays are seconds of the loop's clock. A memory of another version, or a time
that lies in the future (the clock was set back), counts as not remembered.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from solvers.types.parameters import PolicyParameters, parameter
from solvers.types.state import Json

LAUNCH_WEIGHT_PER_S = 0.005
"""κ: a launch of 20 s costs as much as 10 % of the replica's hourly cost, so that small savings swap nothing."""
_VERSION = 1
_GUARD = 1e-9


class ScalingStep(StrEnum):
    """What HetSev's trigger says."""

    OUT = "out"
    """Add replicas until the rate is served."""
    IN = "in"
    """Take one replica away."""
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationRule(PolicyParameters):
    """HetSev's parameters; 0.80 is the paper's, the delays are not in it."""

    threshold: float = parameter(
        0.80,
        "saturation, of the profiled capacity, above which replicas are added",
        at_least=0.01,
        at_most=1.0,
    )
    hold_s: float = parameter(
        30.0, "seconds above it before they are", at_least=0.0, at_most=86_400.0
    )
    cool_down_s: float = parameter(
        60.0,
        "seconds for which a replica must have been superfluous before it goes, and between two that go",
        at_least=0.0,
        at_most=86_400.0,
    )
    placement: Literal["fullest", "as printed"] = parameter(
        "fullest",
        "`as printed`: a new replica goes to an unused GPU, else to the emptiest; `fullest`: to the fullest that has"
        " room, which costs less",
        choices=("fullest", "as printed"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """What one service's running replicas carry, and what they could."""

    rate_rps: float
    capacity_rps: float
    """Profiled capacity of the running replicas together; 0 when none runs."""
    capacity_without_one_rps: float
    """The same after the removal of the replica that would go first; 0 when at most one runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaRule:
    """Parameters of the Kubernetes HorizontalPodAutoscaler; the defaults are its own."""

    tolerance: float = 0.10
    """No change while metric / target is within 1 ± tolerance."""
    scale_down_window_s: float = 300.0
    min_replicas: int = 1
    max_replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaDecision:
    """How many replicas the autoscaler wants."""

    replicas: int
    recommended: int
    """Before the scale-down window."""


def decide_saturation(
    load: ReplicaLoad, rule: SaturationRule, *, now_s: float, memory: Json
) -> tuple[ScalingStep, Json]:
    """OUT after `hold_s` above the threshold, IN after `cool_down_s` in which the rest would stay below it, else HOLD.

    With no replica and some rate there is nothing to measure, so it says OUT at once. After OUT and IN the timers
    start again. Source: HetSev, section 4.1.
    """
    # Section 4.1 computes saturation of running instances, and so never says how the first one starts.
    if load.capacity_rps <= 0:
        return (ScalingStep.OUT if load.rate_rps > 0 else ScalingStep.HOLD), _timers()
    saturated_s = slack_s = None
    if load.rate_rps > rule.threshold * load.capacity_rps:
        saturated_s = _remembered(memory, "saturated_since_s", now_s)
        if now_s - saturated_s >= rule.hold_s:
            return ScalingStep.OUT, _timers()
    elif load.rate_rps <= rule.threshold * load.capacity_without_one_rps:
        slack_s = _remembered(memory, "slack_since_s", now_s)
        if now_s - slack_s >= rule.cool_down_s:
            # The slack goes on without the replica that went: the next one may go a cool-down later, and need not be
            # found again.
            return ScalingStep.IN, _timers(slack_since_s=now_s)
    return ScalingStep.HOLD, _timers(
        saturated_since_s=saturated_s, slack_since_s=slack_s
    )


def decide_hpa(
    current: int,
    metric_over_target: float,
    rule: HpaRule,
    *,
    now_s: float,
    memory: Json,
) -> tuple[HpaDecision, Json]:
    """The Kubernetes rule: ceil(current · metric / target), held down only after the scale-down window.

    The window keeps every recommendation of the last `scale_down_window_s`; the largest of them is the least that a
    scale-down may reach. On the first call the current count enters it too, as in Kubernetes. Scaling up is immediate:
    Kubernetes' own limit (at most double, or four more, per 15 s) is left out, in the baseline's favour.
    Source: kubernetes.io, "Horizontal Pod Autoscaling", algorithm details.
    """
    recommended = _within(_recommendation(current, metric_over_target, rule), rule)
    window = [*_recommendations(memory, rule, current, now_s), (now_s, recommended)]
    # Kubernetes calls this stabilisation: the highest recommendation of the window holds the count up.
    floor = max(replicas for _, replicas in window)
    replicas = recommended if recommended >= current else min(current, floor)
    decision = HpaDecision(replicas=_within(replicas, rule), recommended=recommended)
    return decision, {
        "version": _VERSION,
        "recommendations": [[at_s, count] for at_s, count in window],
    }


def _recommendation(current: int, metric_over_target: float, rule: HpaRule) -> int:
    # The guard keeps |1.1 − 1| = 0.10000000000000009 within the tolerance, and a product from asking for one too many.
    if abs(metric_over_target - 1.0) <= rule.tolerance + _GUARD:
        return current
    return math.ceil(current * metric_over_target - _GUARD)


def _within(replicas: int, rule: HpaRule) -> int:
    # The least number wins over the largest; Kubernetes refuses a rule in which they contradict each other.
    if rule.max_replicas is not None:
        replicas = min(replicas, rule.max_replicas)
    return max(replicas, rule.min_replicas)


def _recommendations(
    memory: Json, rule: HpaRule, current: int, now_s: float
) -> list[tuple[float, int]]:
    entries = _fields(memory).get("recommendations")
    if not isinstance(entries, list | tuple):
        return [(now_s, current)]
    window: list[tuple[float, int]] = []
    for entry in entries:
        match entry:
            # A time in the future is of a clock that was set back since, and would never leave the window.
            case [float() | int() as at_s, int() as replicas] if (
                now_s - rule.scale_down_window_s < at_s <= now_s
            ):
                window.append((at_s, replicas))
    return window


def _timers(
    *, saturated_since_s: float | None = None, slack_since_s: float | None = None
) -> Json:
    return {
        "version": _VERSION,
        "saturated_since_s": saturated_since_s,
        "slack_since_s": slack_since_s,
    }


def _remembered(memory: Json, name: str, now_s: float) -> float:
    since_s = _fields(memory).get(name)
    if isinstance(since_s, int | float) and since_s <= now_s:
        return float(since_s)
    return now_s


def remembered_services(memory: Json, version: int) -> Mapping[str, Json]:
    """What a policy of that version remembered of each service; nothing where it cannot be read."""
    if isinstance(memory, Mapping) and memory.get("version") == version:
        services = memory.get("services")
        if isinstance(services, Mapping):
            return services
    return {}


def _fields(memory: Json) -> Mapping[str, Json]:
    if isinstance(memory, Mapping) and memory.get("version") == _VERSION:
        return memory
    return {}
