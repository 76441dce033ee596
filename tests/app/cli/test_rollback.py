"""`plimsoll rollback`: which plan it asks for, and what it says of the answer."""

from tests.app.cli.fake_api import FakeApi, problem_document
from tests.app.runner import cli

ANSWER: dict[str, object] = {
    "plan": {"id": 9, "state": "approved"},
    "restored_plan_id": 4,
    "mode_before": "auto",
    "mode": "approve",
    "warnings": ["service chat: 50 rps served and 0 listed as unserved, of 300"],
}


def test_without_a_plan_the_one_before_comes_back() -> None:
    before: dict[str, object] = {"items": [{"id": 4}], "next_cursor": None}
    api = FakeApi(answers={"GET plans": before, "POST plans/4/restore": ANSWER})
    assert cli("rollback", api=api).out.splitlines() == [
        "Plan 4 is restored as plan 9; the next tick pushes it.",
        "  not kept at the present demand: service chat: 50 rps served and 0 listed as unserved, of 300",
        "The policy is now in mode approve: new plans wait for you. Apply a Policy with mode auto to change that.",
    ]
    asked = api.requests[0].url.params
    assert asked["state"] == "superseded"


def test_a_policy_that_asks_before_it_acts_stays_as_it_is() -> None:
    answer = {**ANSWER, "mode_before": "approve", "warnings": []}
    result = cli("rollback 4", api=FakeApi(answers={"POST plans/4/restore": answer}))
    assert result.out == "Plan 4 is restored as plan 9; the next tick pushes it.\n"


def test_where_nothing_was_in_force_before_it_says_so() -> None:
    result = cli("rollback", api=FakeApi())
    assert (result.code, "no earlier plan that was in force" in result.err) == (1, True)


def test_why_it_is_refused_is_shown() -> None:
    words = "plan 4 cannot run on the present fleet: no service is called 'search'"
    result = cli(
        "rollback 4",
        api=FakeApi(problems={"POST plans/4/restore": problem_document(409, words)}),
    )
    assert (result.code, words in result.err) == (1, True)
