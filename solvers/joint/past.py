"""What the policy remembers from call to call, and when that lets it look for a cheaper arrangement.

`Stability.min_dwell_s` keeps looks apart, unless what runs became much costlier than it need be meanwhile: a first plan
grows with every service that is submitted, and each of these steps is made without knowing of the next ones.

    1. outgrown     the plan costs `MUCH_COSTLIER` times what the last good one did, and nothing in it is urgent
    2. much costlier  it costs `MUCH_COSTLIER` times its relaxation too, which is solved only then; otherwise it is good

The first test alone would take a load that grew for waste, the second one a fleet so small that no plan of entire GPUs
comes near its relaxation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from solvers.joint.drafts import PlanDraft
from solvers.types.outcome import Stability
from solvers.types.plan import Plan, replica_counts
from solvers.types.state import Json, Observed

MEMORY_VERSION = 1
MUCH_COSTLIER = 1.25
"""What costs more than this multiple of what it need is looked at before the dwell time is over."""

_WAKING_DWELLS = 10.0
"""Looks are so much rarer while a service is awake for a request or two; not left out, since one may always be."""

MEDIANS = "medians"
"""Where the memory of the softened problem is kept within that of the problem."""
_SETTLED = "settled_usd_per_hour"

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
    narrowed_s: float | None = None
    """When services last gave SMs back to tasks that wait; None = never."""

    def may_look(self, observed: Observed, stability: Stability) -> bool:
        """Whether a rearrangement may be looked for in any case."""
        # What wakes for a request needs no other arrangement than the one that it will leave in a minute.
        times = _WAKING_DWELLS if observed.waking else 1.0
        return _is_over(self.looked_s, observed.at_s, times * stability.min_dwell_s)

    def may_narrow(self, at_s: float, stability: Stability) -> bool:
        """Whether services may give SMs back; a queue of tasks that never ends must not start replicas all the time."""
        return _is_over(self.narrowed_s, at_s, stability.min_dwell_s)

    def is_outgrown(self, current: Plan, draft: PlanDraft, observed: Observed) -> bool:
        """Whether a plan may be much costlier than it need be, so that its relaxation is worth solving."""
        settled = None if observed.waking else self.settled_usd_per_hour
        # A load that grows is answered first; the next call may look.
        if settled is None or draft.plan.unserved or _is_urgent(current, draft.plan):
            return False
        return draft.cost_usd_per_hour > MUCH_COSTLIER * settled


def _is_over(since_s: float | None, at_s: float, dwell_s: float) -> bool:
    """Whether the dwell time is over."""
    if since_s is None:
        return True
    # A clock that was set back gives a negative age; then the dwell time counts as over.
    return not 0.0 <= at_s - since_s < dwell_s


def is_wasteful(draft: PlanDraft, relaxed_usd_per_hour: float) -> bool:
    """Whether a plan of an outgrown cost is far from its relaxation as well, so that a search comes first."""
    return draft.cost_usd_per_hour > MUCH_COSTLIER * relaxed_usd_per_hour


def _is_urgent(current: Plan, plan: Plan) -> bool:
    """Whether a service that runs gets replicas besides those that it has, since these are too few."""
    running = replica_counts(current, lambda _, replica: replica.service)
    wanted = replica_counts(plan, lambda _, replica: replica.service)
    return any(wanted[service] > count for service, count in running.items())


def load_past(memory: Json) -> Past:
    """What was remembered; nothing where that is of an older version, or of another policy."""
    if not isinstance(memory, Mapping) or memory.get("version") != MEMORY_VERSION:
        return Past()
    token = memory.get("warm")
    return Past(
        token=token if isinstance(token, str) else None,
        looked_s=_number(memory.get("looked_s")),
        settled_usd_per_hour=_number(memory.get(_SETTLED)),
        narrowed_s=_number(memory.get("narrowed_s")),
    )


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def dump_past(past: Past) -> Kept:
    """What the next call is to be given."""
    return {
        "version": MEMORY_VERSION,
        "looked_s": past.looked_s,
        "warm": past.token,
        _SETTLED: past.settled_usd_per_hour,
        "narrowed_s": past.narrowed_s,
    }


def with_money(memory: Json, factor: float) -> Json:
    """What is to be remembered, or was, with its money times a factor."""
    if factor == 1.0 or not isinstance(memory, Mapping):
        return memory
    changed = dict(memory)
    settled = _number(memory.get(_SETTLED))
    if settled is not None:
        changed[_SETTLED] = factor * settled
    if MEDIANS in memory:
        changed[MEDIANS] = with_money(memory[MEDIANS], factor)
    return changed
