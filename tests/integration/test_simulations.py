"""Simulations over the API: a real scenario in a real process, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.db.decisions.simulations import WAITING_LIMIT
from tests.integration.api_harness import Api, Prepared
from tests.integration.simulating import ask, in_state, scenario

pytestmark = pytest.mark.integration

LONG = scenario(duration_s=21_600, seeds=[1, 2, 3])
"""Longer than any test."""


@pytest.fixture
def api(no_fleet: Prepared) -> Iterator[Api]:
    with no_fleet.running_api() as found:
        yield found


def refused(api: Api, body: object) -> dict[str, str]:
    answer = api.call("POST", "simulations", body, token="operator")
    assert answer.status_code == 422, answer.text
    return {each["pointer"]: each["detail"] for each in answer.json()["errors"]}


def test_a_scenario_is_run_and_its_report_is_a_page_that_can_run_no_script(
    api: Api,
) -> None:
    policies = [{"policy": "k8s_hpa", "name": "<script>alert(1)</script>"}, "hetsev"]
    number = ask(api, scenario(policies=policies))
    done = in_state(api, number, "finished", "failed")
    assert (done["state"], done["error"], done["progress"]) == ("finished", None, 1.0)
    asked = ("small", None, "token/operator")
    assert (done["name"], done["example"], done["asked_by"]) == asked
    report = f"simulations/{number}/report"
    shown, found = (
        [(each["policy"], each["cost_usd"]["mean"]) for each in figures["policies"]]
        for figures in (done["summary"], api.get(f"{report}.json"))
    )
    assert shown == found and len(found) == 2
    listed = api.get("simulations")["items"]
    assert [(each["id"], each["summary"]) for each in listed] == [(number, None)]
    kinds = [each["kind"] for each in api.get("events?subject=simulation/1")["items"]]
    assert kinds == ["SimulationAsked"]
    packed, plain = (
        api.call("GET", report, token="viewer", Accept_Encoding=encoding)
        for encoding in ("gzip", "identity")
    )
    assert packed.text == plain.text
    assert "<script" not in plain.text and "&lt;script&gt;" in plain.text
    policy = plain.headers["Content-Security-Policy"]
    rules = [rule.strip() for rule in policy.split(";")]
    assert rules[:2] == ["sandbox", "default-src 'none'"]
    assert not any(rule.startswith("script-src") for rule in rules)
    assert plain.headers["X-Content-Type-Options"] == "nosniff"


def test_a_shipped_scenario_is_asked_for_by_name_with_other_choices(api: Api) -> None:
    shipped = {each["name"]: each for each in api.get("simulations/examples")["items"]}
    assert {"gpu_loss", "inss", "spike", "training"} <= shipped.keys()
    policies = ["joint with room", "mudi"]
    body = {"example": "gpu_loss", "policies": policies, "seeds": [7]}
    body["duration_s"] = 600
    made = api.call("POST", "simulations", body, token="operator").json()
    assert made.items() >= body.items()
    path = f"simulations/{made['id']}"
    assert api.call("DELETE", path, token="operator").status_code == 204


def test_what_is_wrong_is_named_as_on_the_command_line_and_as_the_callers(
    api: Api,
) -> None:
    text = "kind: Scenario\nmetadata: {name: a}\nspec:\n  duration_s: soon\n"
    wrong = {"example": "gpu_loss", "policies": ["joint", "jont"], "duration_s": 130}
    for body, pointer, words in (
        (
            {"scenario": scenario(truth="guessed")},
            "/scenario/spec/truth",
            "must be 'measured' or 'planned', not guessed",
        ),
        ({"scenario": text}, "/scenario/spec/duration_s", "line 4: must be a number"),
        (wrong, "/policies/1", "no policy is called 'jont'; did you mean joint?"),
        (wrong, "/duration_s", "which must be a multiple of step_s"),
        ({"example": "spik"}, "/example", "no shipped scenario is called 'spik'"),
        ({}, "/scenario", ""),
    ):
        assert words in refused(api, body)[pointer]


def test_a_full_queue_says_when_to_come_again(api: Api) -> None:
    answers = [
        api.call("POST", "simulations", {"scenario": LONG}, token="operator")
        # One more than may wait, and one that a runner may have taken meanwhile.
        for _ in range(WAITING_LIMIT + 2)
    ]
    assert {answer.status_code for answer in answers} == {202, 429}
    # Not the last one: a runner may have made room for it.
    full = next(answer for answer in answers if answer.status_code == 429)
    assert full.headers["Retry-After"] == "30"
    assert full.json()["code"] == "too-many"
    assert f"{WAITING_LIMIT} simulations are already waiting" in full.json()["detail"]


def test_a_running_one_is_cancelled(api: Api) -> None:
    number = ask(api, LONG)
    in_state(api, number, "running")
    assert api.call("GET", f"simulations/{number}/report").status_code == 409
    for which, status in ((number, 204), (number, 204), (4711, 404)):
        answer = api.call("DELETE", f"simulations/{which}", token="operator")
        assert answer.status_code == status
    assert in_state(api, number, "cancelled")["error"] is None


def test_a_repeated_request_gets_the_first_answer_though_the_quota_is_full(
    api: Api,
) -> None:
    quota = {"quota": {"max_simulations": 1}}
    manifest = {"kind": "Project", "metadata": {"name": "team-a"}, "spec": quota}
    api.put("projects/team-a", manifest)
    api.add_token("team-a", "operator", projects=("team-a",))

    def asked(key: str, scenario: object = LONG) -> tuple[int, str]:
        body = {"scenario": scenario}
        answer = api.call(
            "POST", "simulations", body, token="team-a", Idempotency_Key=key
        )
        return answer.status_code, answer.headers.get("Location", "")

    first = (202, "/api/v1/simulations/1")
    assert [asked("once"), asked("once")] == [first, first]
    assert len(api.get("simulations")["items"]) == 1
    # A key does not lead past the quota.
    assert asked("other") == (429, "")
    # The quota is asked first: reading what is no scenario takes up to a second.
    assert asked("third", "no scenario") == (429, "")


def test_a_project_has_no_more_simulations_at_a_time_than_its_quota(api: Api) -> None:
    quota = {"quota": {"max_simulations": 2}}
    for name in ("team-a", "team-b"):
        manifest = {"kind": "Project", "metadata": {"name": name}, "spec": quota}
        api.put(f"projects/{name}", manifest)
        api.add_token(name, "operator", projects=(name,))
    api.add_token("both", "operator", projects=("team-a", "team-b"))
    body: dict[str, Any] = {"scenario": LONG}

    def asked(token: str, **named: str) -> tuple[int, str]:
        answer = api.call("POST", "simulations", {**body, **named}, token=token)
        found = answer.json()
        return answer.status_code, str(found.get("id", found.get("detail")))

    # Without a quota a project has none.
    api.add_token("poor", "operator", projects=("default",))
    assert asked("poor")[0] == 403
    (code, first), (again, _) = asked("team-a"), asked("operator", project="team-a")
    assert (code, again) == (202, 202)
    code, why = asked("team-a")
    assert code == 429 and "has reached its quota" in why
    assert asked("both", project="team-a")[0] == 429
    assert asked("both")[0] == asked("operator", project="nobody")[0] == 422
    assert asked("team-a", project="team-b")[0] == 403
    assert api.get("projects/team-a")["status"]["max_simulations"] == 2
    # Theirs stay theirs, and what is over leaves room.
    assert [
        each["project"] for each in api.get("simulations", token="both")["items"]
    ] == ["team-a"] * 2
    assert api.get("simulations", token="team-b")["items"] == []
    for path in ("", "/report", "/report.json"):
        where = f"simulations/{first}{path}"
        assert api.call("GET", where, token="team-b").status_code == 404
    where = f"simulations/{first}"
    assert api.call("DELETE", where, token="team-b").status_code == 404
    assert api.call("DELETE", where, token="team-a").status_code == 204
    assert asked("team-a")[0] == 202
