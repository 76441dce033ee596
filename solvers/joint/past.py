"""What the policy remembers from call to call, and when that lets it look for a cheaper arrangement.

`Stability.min_dwell_s` keeps looks apart, unless what runs became much dearer than it need be meanwhile: a first plan
grows with every service that is submitted, and each of these steps is made without knowing of the next ones.

    1. outgrown     the plan costs `MUCH_DEARER` times what the last good one did, and nothing in it is urgent
    2. much dearer  it costs `MUCH_DEARER` times its relaxation too, which is solved only then; otherwise it is good

The first test alone would take a load that grew for waste, the second one a fleet so small that no plan of entire GPUs
comes near its relaxation.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from solvers.joint.drafts import PlanDraft
from solvers.types.outcome import Prices, Stability
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json

MEMORY_VERSION = 1
MUCH_DEARER = 1.25
"""What costs more than so many times what it need is looked at before the dwell time is over."""

Kept: TypeAlias = dict[str, Json]
"""What is remembered, as it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What the policy remembers."""

    token: str | None = None
    """Names the warm state."""
    looked_s: float | None = None
    """When a rearrangement was last looked for; None = never."""
    settled_usd_per_hour: float | None = None
    """Cost of the plan that was last found good: a look ended with it, or the relaxation is near it. None = no plan."""

    def is_dwell_over(self, at_s: float, stability: Stability) -> bool:
        """Whether a rearrangement may be looked for in any case."""
        if self.looked_s is None:
            return True
        age_s = at_s - self.looked_s
        # A clock that was set back gives a negative age; then the dwell time counts as over.
        return not 0.0 <= age_s < stability.min_dwell_s

    def is_outgrown(self, problem: Problem, draft: PlanDraft) -> bool:
        """Whether a plan may be much dearer than it need be, so that its relaxation is worth solving."""
        settled = self.settled_usd_per_hour
        # A load that grows is answered first; the next call may look.
        if settled is None or draft.plan.unserved or _is_urgent(problem, draft.plan):
            return False
        return draft.cost_usd_per_hour > MUCH_DEARER * settled

    def is_much_dearer(self, draft: PlanDraft, prices: Prices | None) -> bool:
        """Whether a plan of an outgrown cost is far from its relaxation as well, so that a search comes first."""
        relaxed = prices.relaxation_usd_per_hour if prices is not None else None
        return relaxed is not None and draft.cost_usd_per_hour > MUCH_DEARER * relaxed


def _is_urgent(problem: Problem, plan: Plan) -> bool:
    """Whether a service that runs gets replicas beside those that it has, since these are too few."""
    running = _replicas(problem.current)
    wanted = _replicas(plan)
    return any(wanted[service] > count for service, count in running.items())


def _replicas(plan: Plan | None) -> Counter[str]:
    """By service."""
    counts: Counter[str] = Counter()
    for gpu in plan.gpus if plan is not None else ():
        for replica in gpu.replicas:
            counts[replica.service] += gpu.count
    return counts


def load_past(memory: Json) -> Past:
    """What was remembered; nothing where that is of an older version, or of another policy."""
    if not isinstance(memory, Mapping) or memory.get("version") != MEMORY_VERSION:
        return Past()
    token = memory.get("warm")
    return Past(
        token=token if isinstance(token, str) else None,
        looked_s=_number(memory.get("looked_s")),
        settled_usd_per_hour=_number(memory.get("settled_usd_per_hour")),
    )


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def dump_past(past: Past) -> Kept:
    """What the next call is to be given."""
    return {
        "version": MEMORY_VERSION,
        "looked_s": past.looked_s,
        "warm": past.token,
        "settled_usd_per_hour": past.settled_usd_per_hour,
    }
