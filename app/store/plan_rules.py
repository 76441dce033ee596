"""What may become of plans, for every store: why a push is refused, and the audit's line of a plan that is lost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from app.base.errors import Conflict, NotFound
from app.store.plan_states import UNDECIDED, PlanState
from app.store.store import AuditEvent, PlanRecord
from solvers.types.plan import BoundPlan

HELD = "the loop was paused or put in mode off while it was made"
NOT_LEADING = "its controller did not lead any more: another one decides"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBasis:
    """What a plan is made from; a plan whose basis changed is not pushed."""

    generation: int
    catalogue_revision: int
    policy_version: int


def why_lost(
    bound: BoundPlan,
    made_from: PlanBasis,
    now: PlanBasis,
    *,
    is_approved: bool,
    one_is_approved: bool,
) -> str | None:
    """Why the plan cannot become the target; None: it can. `one_is_approved`: some plan is that can be pushed."""
    if (why := outdated_by_fleet(made_from, now)) is not None:
        return why
    if bound.generation <= now.generation:
        return f"it would be generation {bound.generation}, but {now.generation} is in force"
    # A person who approves a plan means the plan, whatever the policy has become.
    if is_approved:
        return None
    if made_from.policy_version != now.policy_version:
        return f"the policy changed since it was made, from version {made_from.policy_version} to {now.policy_version}"
    # A person's word goes before a plan that nobody has seen; the next tick pushes the approved one.
    return (
        "a person approved another plan, which goes first" if one_is_approved else None
    )


def outdated_by_fleet(made_from: PlanBasis, now: PlanBasis) -> str | None:
    """Why nobody can push the plan any more, approved or not."""
    if made_from.generation != now.generation:
        return f"it was made from generation {made_from.generation}, but {now.generation} is in force"
    if made_from.catalogue_revision != now.catalogue_revision:
        return "GPUs, GPU types, services or profiles changed since it was made"
    return None


def overtaken_by(plan_id: int) -> str:
    """Why plans that wait are lost when another one becomes the target."""
    return f"plan {plan_id} came into force first"


def lost_event(at: datetime, plan_id: int, why: str) -> AuditEvent:
    """A plan can never become the target any more."""
    return AuditEvent(
        at=at,
        actor="controller",
        kind="PlanLost",
        subject=f"plan/{plan_id}",
        reason=why,
        plan_id=plan_id,
    )


def reason_with(reason: str, why: str) -> str:
    """What a plan was made for, and what became of it."""
    return f"{reason}; lost: {why}" if reason else why


def newest_fresh(
    plans: Mapping[int, PlanRecord], state: PlanState, now: PlanBasis
) -> tuple[int, BoundPlan] | tuple[None, None]:
    """The newest plan of a state that can still be pushed, by id: made from the target and the catalogue in force."""
    made_from = (now.generation, now.catalogue_revision)
    for plan_id, record in sorted(plans.items(), reverse=True):
        bound = record.bound
        if record.state != state or bound is None:
            continue
        if (bound.parent, record.catalogue_revision) == made_from:
            return plan_id, bound
    return None, None


def plan_of(plans: Mapping[int, PlanRecord], plan_id: int) -> PlanRecord:
    """Raises NotFound."""
    if plan_id not in plans:
        raise NotFound(f"there is no plan {plan_id}")
    return plans[plan_id]


def move_all(
    plans: dict[int, PlanRecord], state: PlanState, *, into: PlanState
) -> None:
    """All plans of a state have been replaced."""
    for key, record in plans.items():
        if record.state == state:
            plans[key] = replace(record, state=into)


def forget_oldest(plans: dict[int, PlanRecord]) -> None:
    """The oldest goes that is neither the newest nor in force nor still to be decided on."""
    # The target is compared with, and a proposal may still be decided on.
    lasting = ("target", *UNDECIDED)
    older = (key for key in plans if key != max(plans))
    oldest = next((key for key in older if plans[key].state not in lasting), None)
    if oldest is not None:
        del plans[oldest]


def judge(
    plans: dict[int, PlanRecord],
    plan_id: int,
    state: PlanState,
    *,
    of: tuple[PlanState, ...],
) -> None:
    """What a person says to a plan. Raises NotFound, and Conflict where it is in none of the states `of`."""
    record = plan_of(plans, plan_id)
    if record.state not in of:
        raise Conflict(
            f"plan {plan_id} is {record.state}; only {' or '.join(of)} plans can become {state}"
        )
    plans[plan_id] = replace(record, state=state)
