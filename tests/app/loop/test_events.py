"""The audit's words."""

from dataclasses import replace

import pytest

from app.loop.events import (
    describe_change,
    held_event,
    pushed_event,
    refused_event,
    silence_events,
)
from app.loop.observe import HoldKind
from solvers.types.outcome import Reason
from solvers.types.plan import BoundPlan, BoundTask
from tests.app.snapshots import NOW, a_bound_plan, a_replica, a_snapshot
from tests.solvers.factories import bound_task

BEFORE = a_bound_plan([a_replica("a")], [a_replica("b", service="photo")])


def with_task(plan: BoundPlan, task: BoundTask) -> BoundPlan:
    return replace(plan, gpus=(replace(plan.gpus[0], tasks=(task,)), *plan.gpus[1:]))


A, B, C = (a_replica(name) for name in "abc")
PHOTO = a_replica("b", service="photo")
OTHER_A = a_replica("a", batch=4)
TASKED = with_task(BEFORE, bound_task())
plan = a_bound_plan


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, plan([A], [B]), "chat: +2 on fast"),
        (BEFORE, plan([A]), "photo: -1 on fast"),
        (BEFORE, plan([A, C], [B]), "chat: +2 on fast; photo: -1 on fast"),
        (BEFORE, plan([OTHER_A], [PHOTO]), "chat: other SM percent, batch or clock"),
        (
            plan([A, a_replica("c", service="early")], [PHOTO]),
            plan([OTHER_A, a_replica("d", service="late")], [replace(PHOTO, batch=4)]),
            "early: -1 on fast; late: +1 on fast; chat, photo: other SM percent, batch or clock",
        ),
        (
            BEFORE,
            plan([a_replica("a", rate_rps=1.0)], [PHOTO]),
            "only routing weights change",
        ),
        (BEFORE, plan([PHOTO], [A]), "chat, photo: on other GPUs"),
        (BEFORE, replace(BEFORE, governor="dfs"), "governor dfs"),
        (replace(BEFORE, governor="dfs"), BEFORE, "governor none"),
        (BEFORE, TASKED, "task nightly: on n1/gpu-0"),
        (TASKED, BEFORE, "task nightly: stops"),
        (
            TASKED,
            with_task(BEFORE, bound_task(is_resident=False)),
            "task nightly: swapped out",
        ),
    ],
)
def test_a_push_says_what_changes_per_service(
    before: BoundPlan | None, after: BoundPlan, words: str
) -> None:
    assert describe_change(before, after) == words


def test_a_push_names_the_plan_and_both_generations() -> None:
    after = a_bound_plan([a_replica("a")], generation=2)
    event = pushed_event(a_snapshot(target=BEFORE), after, 7)
    assert (event.kind, event.subject, event.plan_id, event.at) == (
        "PlanPushed",
        "plan/7",
        7,
        NOW,
    )
    assert (event.before, event.after) == (
        {"generation": 1},
        {"generation": 2, "gpus": 1},
    )
    assert pushed_event(a_snapshot(), after, 7).before is None


def test_nodes_that_fall_silent_and_that_return_get_a_line_each() -> None:
    events = silence_events(NOW, before=("a", "b"), after=("b", "c"))
    assert [(event.kind, event.subject) for event in events] == [
        ("NodeSilent", "node/c"),
        ("NodeHeard", "node/a"),
    ]
    assert silence_events(NOW, before=("a",), after=("a",)) == ()
    (again,) = silence_events(NOW, before=(), after=("c",), flapping={"c"})
    assert again.kind == "NodeSilent" and "3 times within an hour" in again.reason


def test_holding_and_refusing_carry_their_reason() -> None:
    held = held_event(NOW, Reason(kind=HoldKind.MODE_OFF, figures={"policy": "joint"}))
    refused = refused_event(NOW, 3, "because")
    assert (held.kind, held.reason) == ("LoopHeld", "policy joint is in mode off")
    assert (refused.kind, refused.subject, refused.plan_id, refused.reason) == (
        "PlanRefused",
        "plan/3",
        3,
        "because",
    )
