"""What is said of a service by its plans, over all combinations of what can be known of them."""

from collections.abc import Iterator
from itertools import product

import pytest

from app.answers.conditions import (
    Condition,
    ConditionType,
    PlanConditions,
    PlanFacts,
    Truth,
    WaitingPlan,
    first_trouble,
    plan_conditions,
)
from solvers.types.plan import Unserved

WAITING = (None, WaitingPlan(id=12, replicas=0), WaitingPlan(id=12, replicas=3))
SHORT = (Unserved(service="chat", rate_rps=7.0, reason="stock"),)
PLACED = {0: (0.0,), 1: (10.0, 40.0), 2: (40.0,)}
"""Rates that a plan may serve, by its number of replicas."""


def all_facts() -> Iterator[PlanFacts]:
    """Every combination that may be: without a plan in force there is nothing of it either."""
    of_service = product((None, "impossible"), (False, True), (None, 0.0, 40.0), (0, 2))
    for objection, is_off, wanted_rps, min_replicas in of_service:
        for waiting, placed in product(WAITING, all_placed()):
            yield PlanFacts(
                objection=objection,
                is_off=is_off,
                wanted_rps=wanted_rps,
                min_replicas=min_replicas,
                waiting=waiting,
                **placed,  # type: ignore[arg-type]
            )


def all_placed() -> Iterator[dict[str, object]]:
    """What a plan in force may have of a service, and how its nodes may follow; or that there is none."""
    yield {}
    for replicas, rates in PLACED.items():
        nodes = ("", "n1") if replicas else ("",)
        for planned_rps, unserved, ahead, behind in product(
            rates, ((), SHORT), nodes, nodes
        ):
            yield {
                "generation": 3,
                "replicas": replicas,
                "planned_rps": planned_rps,
                "unserved": unserved,
                "carriers": min(replicas, 1),
                "ahead": ahead,
                "behind": behind,
            }


CASES = [(facts, plan_conditions(facts)) for facts in all_facts()]


def said(condition: Condition) -> tuple[str, str]:
    return condition.status, condition.reason


def cases_of(**reasons: str) -> list[tuple[PlanFacts, PlanConditions]]:
    """Those in which these conditions have these reasons; there are some."""
    found = [
        (facts, told)
        for facts, told in CASES
        if all(getattr(told, kind).reason == text for kind, text in reasons.items())
    ]
    assert found
    return found


def test_scaled_to_zero_is_what_the_plan_in_force_made_of_no_demand() -> None:
    for facts, _ in cases_of(ready="ScaledToZero"):
        assert facts.generation is not None
        assert (facts.wanted_rps, facts.min_replicas, facts.replicas) == (0.0, 0, 0)
        assert not (facts.unserved or facts.is_off or facts.objection)
        # A plan that would start replicas of it says that some are wanted.
        assert facts.waiting is None or facts.waiting.replicas == 0


def test_demand_is_served_only_by_a_plan_in_force_with_enough_of_it() -> None:
    for facts, _ in cases_of(feasible="DemandServed"):
        assert facts.generation is not None
        assert not (facts.unserved or facts.is_off or facts.objection)
        assert facts.replicas >= facts.min_replicas
        if facts.replicas == 0:
            # Not even where it is unknown what is wanted.
            assert facts.wanted_rps == 0.0
        elif facts.wanted_rps is not None:
            assert facts.planned_rps >= facts.wanted_rps


def test_waiting_is_said_of_a_plan_that_would_help_with_how_to_approve_it() -> None:
    for kind in ("ready", "feasible", "applied"):
        for facts, told in cases_of(**{kind: "WaitsForApproval"}):
            assert facts.waiting is not None
            assert facts.generation is None or facts.waiting.replicas
            message = getattr(told, kind).message
            assert "plan 12" in message
            assert "`plimsoll approve 12`" in message
            assert not facts.is_off


def test_what_lacks_replicas_that_a_waiting_plan_has_is_not_ready_and_says_so() -> None:
    lacking = [
        told
        for facts, told in CASES
        if facts.waiting is not None
        and facts.waiting.replicas
        and facts.replicas == 0
        and not (facts.objection or facts.is_off or facts.unserved)
    ]
    assert lacking
    for told in lacking:
        assert said(told.ready) == ("False", "WaitsForApproval")
        assert said(told.feasible) == ("Unknown", "WaitsForApproval")
        assert said(told.applied) == ("False", "WaitsForApproval")


def test_ready_is_true_only_where_both_others_are_and_takes_the_worse_of_them() -> None:
    for facts, told in CASES:
        parts = (told.feasible, told.applied)
        statuses = {part.status for part in parts}
        worst = next(one for one in ("False", "Unknown", "True") if one in statuses)
        assert told.ready.status == worst, facts
        if worst != "True":
            assert said(told.ready) in [said(part) for part in parts]
        else:
            serving = "Serving" if facts.replicas else "ScaledToZero"
            assert told.ready.reason == serving


def test_without_a_plan_in_force_nothing_is_true() -> None:
    for facts, told in CASES:
        if facts.generation is None:
            of_plan = (told.ready, told.feasible, told.applied)
            assert "True" not in {condition.status for condition in of_plan}, facts


def test_what_cannot_be_served_is_said_whatever_waits() -> None:
    for facts, told in CASES:
        if facts.objection:
            assert said(told.feasible) == ("False", "SloOutOfReach")
            assert said(told.ready) == ("False", "SloOutOfReach")
        elif facts.unserved and not facts.is_off:
            assert said(told.feasible) == ("False", "NoGpuLeft")
            helps = (
                facts.waiting is not None and facts.waiting.replicas > facts.replicas
            )
            assert ("plan 12" in told.feasible.message) == helps


def test_a_service_that_is_served_stays_ready_while_a_rearrangement_waits() -> None:
    facts = PlanFacts(
        wanted_rps=40.0,
        generation=3,
        replicas=2,
        planned_rps=40.0,
        carriers=1,
        waiting=WaitingPlan(id=12, replicas=1),
    )
    assert said(plan_conditions(facts).ready) == ("True", "Serving")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (PlanFacts(), "there is no plan in force yet"),
        (PlanFacts(generation=3, wanted_rps=40.0), "generation 3, which is in force"),
        (
            PlanFacts(generation=3, replicas=1, planned_rps=5.0, min_replicas=2),
            "1 of at least 2 replicas",
        ),
        (
            PlanFacts(generation=3, replicas=1, planned_rps=5.0, wanted_rps=40.0),
            "room for 5.0 requests per second",
        ),
    ],
)
def test_what_is_not_planned_says_what_the_plan_in_force_has(
    facts: PlanFacts, words: str
) -> None:
    told = plan_conditions(facts).feasible
    assert said(told) == ("Unknown", "NotPlanned")
    assert words in told.message


def test_what_a_person_reads_first_is_what_the_other_conditions_follow_from() -> None:
    def said(kind: ConditionType, status: Truth) -> Condition:
        return Condition(type=kind, status=status, reason=kind, message="")

    late = said("SLOMet", "False")
    unserved = said("Feasible", "False")
    assert first_trouble([late, unserved]) is unserved
    assert first_trouble([unserved, late]) is unserved
    assert first_trouble([late, said("Applied", "Unknown")]) is late
    # `Ready` repeats the others, and has no line of its own.
    assert first_trouble([said("Ready", "False"), said("SLOMet", "True")]) is None
