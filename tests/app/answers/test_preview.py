"""Previews: what the loop would decide, and what questions beyond that come to, from the same plans."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.answers.preview import (
    Preview,
    PreviewChanges,
    Questions,
    ScenarioQuestion,
    preview,
)
from app.answers.scenario import WhatIfScenario
from tests.app.fleets import Answering, a_service
from tests.app.snapshots import a_snapshot, a_state, windows_of

SNAPSHOT = a_snapshot(
    state=a_state(services=(a_service("chat", min_replicas=1),)),
    windows=windows_of("chat", [40, 40, 40]),
)


def questions(*scenarios: ScenarioQuestion, seconds: float = 9.0) -> Questions:
    return Questions(scenarios=scenarios, suggest=False, seconds=seconds)


def run(solver: Answering, wanted: Questions | None) -> Preview:
    return asyncio.run(preview(solver, SNAPSHOT, PreviewChanges(), wanted))


def names(solver: Answering) -> Sequence[Sequence[str]]:
    return [
        [service.name for service in request.problem.services]
        for request in solver.asked
    ]


def test_today_is_planned_once_and_is_the_decision() -> None:
    solver = Answering()
    found = run(
        solver,
        questions(
            ScenarioQuestion(scenario=WhatIfScenario(demand_factor={"chat": 0.5}))
        ),
    )
    assert len(solver.asked) == 2
    assert found.decision.plan == found.answers[0].plan
    assert [one.question for one in found.answers] == [
        "as it is",
        "demand of chat × 0.5",
    ]


def test_a_service_more_is_in_the_question_s_name_and_in_its_problem_only() -> None:
    solver = Answering()
    question = ScenarioQuestion(
        scenario=WhatIfScenario(demand_rps={"new": 3.0}), services=(a_service("new"),)
    )
    found = run(solver, questions(question))
    assert names(solver) == [["chat"], ["chat", "new"]]
    assert found.answers[1].question == "demand of new 3 rps, with new"
    (new,) = (one for one in solver.asked[1].problem.services if one.name == "new")
    assert new.arrival_rate_rps == 3.0


def test_a_type_that_the_fleet_lacks_may_be_added_and_no_gpu_of_it_is_there_today() -> (
    None
):
    spare = replace(SNAPSHOT.state.gpu_types[0], name="spare")
    state = replace(SNAPSHOT.state, gpu_types=(*SNAPSHOT.state.gpu_types, spare))
    points = tuple(replace(one, gpu_type="spare") for one in SNAPSHOT.points)
    snapshot = replace(SNAPSHOT, state=state, points=(*SNAPSHOT.points, *points))
    question = ScenarioQuestion(scenario=WhatIfScenario(gpus={"spare": 2}))
    solver = Answering()
    found = asyncio.run(
        preview(solver, snapshot, PreviewChanges(), questions(question))
    )
    today, more = (request.problem for request in solver.asked)
    assert (today.gpu_type("spare").count, more.gpu_type("spare").count) == (0, 2)
    assert {one.gpu_type for one in more.points} >= {"spare"}
    assert found.answers[1].added_usd_per_hour == 2 * spare.price_usd_per_hour
    # Without such a question the problem is the one of every tick.
    run(solver, None)
    assert "spare" not in {one.name for one in solver.asked[-1].problem.gpu_types}
