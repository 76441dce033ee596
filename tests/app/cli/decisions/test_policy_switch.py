"""`plimsoll policy switch`: what is shown before, what is written, and when nothing is."""

import httpx2
import pytest

from tests.app.cli.decisions.test_approve import CHANGE
from tests.app.cli.fake_api import FakeApi, Json
from tests.app.runner import Result, cli

PATH = "policies/default"
WEB: Json = {
    "name": "web",
    "policy": "hetsev",
    "projects": ["shop"],
    "labels": {},
    "mode": "auto",
}


def a_policy(policy: str = "joint", *groups: Json, **spec: object) -> Json:
    settings = {
        "policy": policy,
        "mode": "auto",
        "target_attainment": 0.99,
        "groups": [*groups],
        "approve_switch": False,
    }
    return {
        "kind": "Policy",
        "metadata": {"name": "default"},
        "spec": {**settings, **spec},
    }


def a_preview(**changes: object) -> Json:
    answer: Json = {
        "state": "proposed",
        "reason": "",
        "solution": "optimal",
        "cost_before_usd_per_hour": 2.0,
        "cost_usd_per_hour": 1.5,
        "changes": [CHANGE, {**CHANGE, "service": "mail", "before": 4, "after": 1}],
        "document": {"report": {"messages": ["it went well"]}, "unserved": []},
    }
    return answer | changes


def a_plane(
    present: Json | None = None,
    preview: Json | None = None,
    versions: list[Json] | None = None,
) -> FakeApi:
    return FakeApi(
        objects={PATH: present or a_policy()},
        answers={
            "POST plans/preview": preview or a_preview(),
            f"GET {PATH}/versions": {"items": versions or [], "next_cursor": None},
        },
    )


def switched(api: FakeApi, *arguments: str, stdin: str = "") -> Result:
    return cli("policy switch", *arguments, api=api, stdin=stdin)


def test_a_switch_shows_cost_and_moves_asks_and_writes_a_version() -> None:
    api = a_plane()
    result = switched(api, "hetsev", stdin="y\n")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[:3] == [
        "policy: joint → hetsev",
        "Cost at the present rates: $2.0000 → $1.5000 per hour",
        "2 replicas would start, 3 would end:",
    ]
    assert "  it went well" in lines
    assert lines[-2:] == ["Switched", "`plimsoll policy switch --back` undoes it."]
    assert api.sent("POST") == [
        {"policy": "hetsev", "groups": [], "from_running": True}
    ]
    (written,) = api.sent("PUT")
    # All other settings stay.
    assert written["spec"] == {**a_policy("hetsev")["spec"]}  # type: ignore[dict-item]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("answer", ["n\n", "", "\n"])
def test_without_a_yes_nothing_is_written(answer: str) -> None:
    api = a_plane()
    result = switched(api, "hetsev", stdin=answer)
    assert (result.code, api.sent("PUT")) == (1, [])
    assert "nothing was changed" in result.err


def test_a_dry_run_shows_the_same_and_writes_nothing() -> None:
    api = a_plane()
    result = switched(api, "hetsev", "--dry-run")
    assert (result.code, api.sent("PUT")) == (0, [])
    assert "joint → hetsev" in result.out and "Switch?" not in result.err


@pytest.mark.parametrize(
    ("standing", "arguments", "after"),
    [
        (True, [], True),
        (True, ["--no-approve"], False),
        (True, ["--approve"], True),
        (False, [], False),
        (False, ["--no-approve"], False),
    ],
)
@pytest.mark.parametrize("to", ["hetsev", "--back"])
def test_whether_first_plans_wait_stays_as_it_was_unless_said(
    *, to: str, standing: bool, arguments: list[str], after: bool
) -> None:
    api = a_plane(
        a_policy(approve_switch=standing),
        versions=[a_policy("k8s_hpa", approve_switch=not standing)],
    )
    result = switched(api, to, *arguments, "-y")
    assert result.code == 0, result.err
    (written,) = api.sent("PUT")
    assert written["spec"]["approve_switch"] is after  # type: ignore[index]
    assert ("Its first plan waits for you" in result.out) == after
    assert ("approve_switch: yes → no" in result.out) == (standing and not after)


def test_a_group_s_policy_is_switched_by_itself() -> None:
    other: Json = {**WEB, "name": "batch", "policy": "k8s_hpa"}
    api = a_plane(a_policy("joint", WEB, other))
    result = switched(api, "joint", "--group", "web", "-y")
    assert result.out.splitlines()[0] == "group web: hetsev → joint"
    groups = [{**WEB, "policy": "joint"}, other]
    assert api.sent("POST")[0]["groups"] == groups
    (written,) = api.sent("PUT")
    assert written["spec"] == a_policy("joint", *groups)["spec"]


def test_back_is_to_who_decided_before_with_the_settings_of_today() -> None:
    batch: Json = {**WEB, "name": "batch", "projects": ["night"]}
    wider: Json = {**WEB, "projects": ["shop", "search"], "mode": "approve"}
    gone: Json = {**WEB, "name": "gone"}
    versions = [
        # Others are of the group since, one group came, one went: no one else decided on what is there today.
        a_policy("hetsev", WEB, target_attainment=0.99),
        a_policy("hetsev", WEB, gone, target_attainment=0.98),
        a_policy("joint", {**WEB, "policy": "igniter"}, gone, target_attainment=9),
    ]
    api = a_plane(a_policy("hetsev", batch, wider), versions=versions)
    result = switched(api, "--back", "-y")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "policy: hetsev → joint"
    assert [line for line in lines if line.startswith("group")] == [
        "group web: hetsev → igniter"
    ]
    groups = [batch, {**wider, "policy": "igniter"}]
    assert api.sent("POST")[0]["groups"] == groups
    (written,) = api.sent("PUT")
    assert written["spec"] == a_policy("joint", *groups)["spec"]


def test_groups_that_came_or_went_are_no_switch_to_go_back_on() -> None:
    versions = [a_policy("joint", WEB), a_policy("joint")]
    result = switched(
        a_plane(a_policy("joint", {**WEB, "name": "batch"}), versions=versions),
        "--back",
        "-y",
    )
    assert (result.code, result.err.splitlines()[0]) == (
        1,
        "Error: no other policy was in force before",
    )


def test_who_decides_already_is_left_alone() -> None:
    api = a_plane(a_policy("joint", WEB))
    assert (
        switched(api, "joint").out
        == "joint is already in force; nothing was changed.\n"
    )
    assert (
        switched(api, "hetsev", "--group", "web").out
        == "web: hetsev is already in force; nothing was changed.\n"
    )
    assert api.sent("POST") == api.sent("PUT") == []


REFUSED = {
    "state": "refused",
    "reason": "the checker refused it: capacity at gpus[0]: 9 > 8",
}
FAILED = {
    "state": "kept",
    "solution": None,
    "reason": "policy gslice failed: no weights",
}


@pytest.mark.parametrize("answer", [REFUSED, FAILED], ids=["refused", "failed"])
def test_a_policy_whose_first_plan_would_not_be_pushed_is_not_switched_to(
    answer: Json,
) -> None:
    api = a_plane(preview=a_preview(**answer))
    result = switched(api, "gslice", "-y")
    assert (result.code, api.sent("PUT")) == (1, [])
    assert "gslice may miss an SLO's percentile" in result.out
    assert result.err.startswith(
        f"Error: its first plan would not be pushed: {answer['reason']}"
    )
    assert "--force" in result.err
    forced = switched(api, "gslice", "-y", "--force")
    assert (forced.code, len(api.sent("PUT"))) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "give the NAME of a policy, or --back"),
        (["joint", "--back"], 2, "give the NAME of a policy, or --back"),
        (["--back", "--group", "web"], 2, "--back takes all groups back"),
        (["hetsef"], 1, "no policy is called 'hetsef'; there are "),
        (["hetsev", "--group", "wbe"], 1, "no group is called 'wbe'; there is none"),
    ],
)
def test_wrong_usage_says_what_is_wrong(
    arguments: list[str], code: int, words: str
) -> None:
    result = switched(a_plane(), *arguments)
    assert (result.code, words in result.err) == (code, True), result.err


def test_somebody_else_s_change_meanwhile_is_not_overwritten() -> None:
    plane = a_plane()

    def while_another_switches(request: httpx2.Request) -> httpx2.Response:
        answer = plane(request)
        if request.url.path.endswith("/plans/preview"):
            plane.objects[PATH] = a_policy("k8s_hpa")
        return answer

    result = cli("policy switch hetsev -y", api=while_another_switches)
    assert (result.code, plane.objects[PATH]) == (1, a_policy("k8s_hpa"))
    assert "somebody else changed it in the meantime" in result.err
