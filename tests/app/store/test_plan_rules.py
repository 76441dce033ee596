"""Whether a person may approve a plan, and what to do instead: one table."""

from dataclasses import replace

import pytest

from app.store.plan_rules import (
    ApprovalFacts,
    JudgedPlan,
    PlanBasis,
    unpushed,
    why_not_approved,
    why_not_rejected,
)
from app.store.plan_states import PLAN_STATES, PlanState
from app.store.store import PolicyGroup, PolicySettings
from solvers.types.state import Mode
from tests.app.fleets import a_service

NOW = PlanBasis(generation=4, catalogue_revision=9, policy_version=2)
NOBODY_WAITS = "no other plan waits; `plimsoll get plans` lists the next one once the loop proposes it"
OTHER_WAITS = "look at plan 8, which waits now, and approve that one"


def a_plan(
    state: PlanState = "proposed",
    *,
    generation: int = 4,
    revision: int = 9,
    version: int = 2,
    replaced_by: int | None = None,
) -> JudgedPlan:
    made_from = PlanBasis(
        generation=generation, catalogue_revision=revision, policy_version=version
    )
    return JudgedPlan(
        id=7,
        state=state,
        made_from=made_from,
        reason="too late",
        replaced_by=replaced_by,
    )


def facts(
    mode: Mode = Mode.APPROVE,
    *,
    paused: bool = False,
    advised: tuple[str, ...] = (),
    waiting: int | None = None,
) -> ApprovalFacts:
    settings = PolicySettings(version=2, mode=mode, paused=paused)
    return ApprovalFacts(now=NOW, settings=settings, advised=advised, waiting=waiting)


@pytest.mark.parametrize(
    ("plan", "found", "told"),
    [
        (a_plan(), facts(), None),
        (a_plan(), facts(Mode.AUTO), None),
        # A person who approves a plan means the plan, whatever the policy has become.
        (a_plan(version=1), facts(), None),
        (a_plan("approved"), facts(), "plan 7 is approved already"),
        (a_plan("target"), facts(), "plan 7 is in force already"),
        (a_plan("superseded"), facts(), "`plimsoll rollback` restores it"),
        (
            a_plan("withdrawn"),
            facts(),
            f"plan 7 was withdrawn: too late; {NOBODY_WAITS}",
        ),
        (
            a_plan("withdrawn", replaced_by=8),
            facts(waiting=8),
            f"plan 7 was replaced by plan 8; {OTHER_WAITS}",
        ),
        (a_plan("lost"), facts(), f"plan 7 is lost: too late; {NOBODY_WAITS}"),
        (a_plan("rejected"), facts(), "plan 7 was rejected"),
        (a_plan("refused"), facts(), "plan 7 was refused by the checker"),
        (a_plan("kept"), facts(), "plan 7 changes nothing"),
        (a_plan(generation=3), facts(), "made from generation 3, but 4 is in force"),
        (a_plan(revision=8), facts(waiting=8), f"since it was made; {OTHER_WAITS}"),
        (a_plan(), facts(paused=True), "nothing would push plan 7: the control loop"),
        (a_plan(), facts(Mode.OFF), "nothing would push plan 7: policy joint is in"),
        (a_plan(), facts(Mode.ADVISE), "the policy is in mode advise"),
        (a_plan(), facts(advised=("a", "b")), "services in mode advise (a, b)"),
        # What is wrong with the plan comes first: no change of the policy would help it.
        (a_plan("lost"), facts(Mode.OFF), "plan 7 is lost"),
        (a_plan(revision=8), facts(Mode.ADVISE), "can no longer be pushed"),
    ],
)
def test_a_plan_is_approved_only_where_the_next_tick_would_push_it(
    plan: JudgedPlan, found: ApprovalFacts, told: str | None
) -> None:
    why_not = why_not_approved(plan, found)
    assert why_not is None if told is None else told in str(why_not)


@pytest.mark.parametrize("state", PLAN_STATES)
def test_only_what_may_still_come_into_force_is_rejected(state: PlanState) -> None:
    may = state in ("proposed", "approved")
    assert (why_not_rejected(a_plan(state)) is None) == may


@pytest.mark.parametrize(
    ("policy", "group", "own", "is_pushed"),
    [
        (Mode.AUTO, Mode.AUTO, Mode.AUTO, True),
        (Mode.ADVISE, Mode.AUTO, Mode.AUTO, False),
        (Mode.APPROVE, Mode.AUTO, Mode.AUTO, False),
        (Mode.AUTO, Mode.ADVISE, Mode.AUTO, False),
        (Mode.AUTO, Mode.AUTO, Mode.ADVISE, False),
    ],
)
def test_only_plans_that_no_mode_holds_back_come_into_force_by_themselves(
    policy: Mode, group: Mode, own: Mode, is_pushed: bool
) -> None:
    groups = (
        PolicyGroup(name="web", policy="joint", projects=("team-a",), mode=group),
    )
    settings = PolicySettings(mode=policy, groups=groups)
    service = replace(a_service(), project="team-a", mode=own)
    assert (unpushed(settings, (service,)) == ()) == is_pushed
