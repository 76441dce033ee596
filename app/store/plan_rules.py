"""What may become of plans, for every store: why an approval or a push is refused, and the audit's line of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from app.base.errors import Conflict, NotFound
from app.store.plan_states import UNDECIDED, PlanState
from app.store.store import AuditEvent, PlanRecord, PolicySettings, Proposal
from solvers.types.plan import BoundPlan
from solvers.types.state import Mode, Service

HELD = "the loop was paused or put in mode off while it was made"
NOT_LEADING = "its controller did not lead any more: another one decides"
UNCHANGED = "nothing would change"
"""Why a plan is kept that wants just what runs."""
RESTARTED = "the controller restarted, and the plan could no longer come into force"
EndedState = Literal["lost", "withdrawn"]
"""lost: it was to be pushed; withdrawn: it waited for a person."""
_ENDED_KINDS: Mapping[EndedState, str] = {
    "lost": "PlanLost",
    "withdrawn": "PlanWithdrawn",
}
MAX_NAMED = 5
"""Services that a refusal names: as many as a person reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBasis:
    """What a plan is made from; a plan whose basis changed is not pushed."""

    generation: int
    catalogue_revision: int
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPlan:
    """A plan that a person wants to approve or to reject."""

    id: int
    state: PlanState
    made_from: PlanBasis
    reason: str = ""
    replaced_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalFacts:
    """What decides besides the plan itself whether its approval would have an effect."""

    now: PlanBasis
    settings: PolicySettings
    advised: Sequence[str] = ()
    """Services that it changes and for which plans are advice only, by their own mode or their group's."""
    waiting: int | None = None
    """Another plan, which waits for a person."""


def why_not_approved(judged: JudgedPlan, facts: ApprovalFacts) -> str | None:
    """Why nothing would push the plan if a person approved it, with what to do instead; None: the next tick would."""
    plan_id = judged.id
    if (over := _why_over(judged, facts.now)) is not None:
        return f"plan {plan_id} {over}; {_instead(facts.waiting)}"
    if (held := why_held(facts.settings)) is not None:
        return f"nothing would push plan {plan_id}: {held}"
    if facts.settings.mode is Mode.ADVISE:
        return (
            f"plan {plan_id} is advice only: the policy is in mode advise; "
            "apply a Policy with mode approve, and approve the plan then"
        )
    if facts.advised:
        named = ", ".join(facts.advised[:MAX_NAMED])
        return (
            f"plan {plan_id} is advice only: it changes services in mode advise ({named}); "
            "put them, or their group, in mode approve, and approve the plan then"
        )
    return None


def why_not_rejected(judged: JudgedPlan) -> str | None:
    """Why the plan need not be rejected; None: it could still come into force."""
    if judged.state in UNDECIDED:
        return None
    return f"plan {judged.id} is {judged.state}; only {' or '.join(UNDECIDED)} plans can become rejected"


def unpushed(settings: PolicySettings, services: Iterable[Service]) -> tuple[str, ...]:
    """Services whose plans do not come into force by themselves: a person, or another program, carries them out."""
    return tuple(
        service.name
        for service in services
        if set(modes_of(service, settings)) != {Mode.AUTO}
    )


def modes_of(service: Service, settings: PolicySettings) -> tuple[Mode, ...]:
    """The modes that count for a service: the policy's, its own, and its group's."""
    group = settings.group_of(service)
    own = (settings.mode, service.mode)
    return own if group is None else (*own, group.mode)


def why_held(settings: PolicySettings) -> str | None:
    """Why the loop would not push anything now, not even what a person approved; None: it would."""
    if settings.paused:
        return "the control loop is paused; `plimsoll resume` resumes it"
    if settings.mode is Mode.OFF:
        return f"policy {settings.policy} is in mode off; apply a Policy with mode approve or auto"
    return None


def _why_over(judged: JudgedPlan, now: PlanBasis) -> str | None:
    """Why the plan itself can no longer come into force by an approval."""
    replaced = (
        f"was withdrawn: {judged.reason}"
        if judged.replaced_by is None
        else f"was replaced by plan {judged.replaced_by}"
    )
    told = {
        "approved": "is approved already, and the next tick pushes it",
        "target": "is in force already",
        "superseded": "was in force before, and `plimsoll rollback` restores it",
        "withdrawn": replaced,
        "lost": f"is lost: {judged.reason}",
        "rejected": "was rejected",
        "refused": "was refused by the checker",
        "kept": "changes nothing",
    }
    if judged.state in told:
        return told[judged.state]
    outdated = outdated_by_fleet(judged.made_from, now)
    return None if outdated is None else f"can no longer be pushed: {outdated}"


def _instead(waiting: int | None) -> str:
    """What a person can do who wanted to approve a plan that is over."""
    if waiting is None:
        return "no other plan waits; `plimsoll get plans` lists the next one once the loop proposes it"
    return f"look at plan {waiting}, which waits now, and approve that one"


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
    # A person's word goes before a plan that no person has seen; the next tick pushes the approved one.
    return (
        "a person approved another plan, which goes first" if one_is_approved else None
    )


def outdated_by_fleet(made_from: PlanBasis, now: PlanBasis) -> str | None:
    """Why the plan cannot be pushed any more, approved or not."""
    if made_from.generation != now.generation:
        return f"it was made from generation {made_from.generation}, but {now.generation} is in force"
    if made_from.catalogue_revision != now.catalogue_revision:
        return "GPUs, GPU types, services or profiles changed since it was made"
    return None


def overtaken_by(plan_id: int) -> str:
    """Why plans that wait are lost when another one becomes the target."""
    return f"plan {plan_id} came into force first"


def ended_event(at: datetime, plan_id: int, state: EndedState, why: str) -> AuditEvent:
    """A plan can never become the target any more."""
    return AuditEvent(
        at=at,
        actor="controller",
        kind=_ENDED_KINDS[state],
        subject=f"plan/{plan_id}",
        reason=why,
        plan_id=plan_id,
    )


def reason_with(reason: str, state: EndedState, why: str) -> str:
    """What a plan was made for, and what became of it."""
    return f"{reason}; {state}: {why}" if reason else why


def end(
    plans: dict[int, PlanRecord],
    plan_id: int,
    state: EndedState,
    why: str,
    at: datetime,
) -> AuditEvent:
    """A plan can never become the target any more; the audit's line of it."""
    record = plans[plan_id]
    reason = reason_with(record.reason, state, why)
    plans[plan_id] = replace(record, state=state, reason=reason)
    return ended_event(at, plan_id, state, why)


def newest_fresh(
    plans: Mapping[int, PlanRecord], state: PlanState, now: PlanBasis
) -> Proposal | None:
    """The newest plan of a state that can still be pushed: made from the target and the catalogue in force."""
    made_from = (now.generation, now.catalogue_revision)
    for plan_id, record in sorted(plans.items(), reverse=True):
        bound = record.bound
        if record.state != state or bound is None:
            continue
        if (bound.parent, record.catalogue_revision) == made_from:
            return Proposal(
                plan_id=plan_id,
                bound=bound,
                at=record.at,
                catalogue_revision=record.catalogue_revision,
                policy_version=record.policy_version,
            )
    return None


def newest_id(plans: Mapping[int, PlanRecord], state: PlanState) -> int | None:
    """The newest plan in that state."""
    return max((key for key in plans if plans[key].state == state), default=None)


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


def judged_plan(plans: Mapping[int, PlanRecord], plan_id: int) -> JudgedPlan:
    """The plan as a person judges it. Raises NotFound."""
    record = plan_of(plans, plan_id)
    made_from = PlanBasis(
        generation=0 if record.bound is None else record.bound.parent,
        catalogue_revision=record.catalogue_revision,
        policy_version=record.policy_version,
    )
    return JudgedPlan(
        id=plan_id, state=record.state, made_from=made_from, reason=record.reason
    )


def judge(
    plans: dict[int, PlanRecord], plan_id: int, state: PlanState, why_not: str | None
) -> None:
    """What a person says to a plan. Raises Conflict where there is a reason against it."""
    if why_not is not None:
        raise Conflict(why_not)
    plans[plan_id] = replace(plans[plan_id], state=state)
