"""`explain`, `diff` of plans, `approve`, `reject`, `pause`, `resume`, `cordon`: what is asked, and what is told."""

import json

import pytest

from tests.app.cli.fake_api import FakeApi, problem_document
from tests.app.runner import cli

CHANGE = {
    "service": "chat",
    "gpu_type": "T4",
    "sm_percent": 40.0,
    "batch": 8,
    "clock_mhz": 1590.0,
    "before": 1,
    "after": 3,
}
GROUP = {
    "gpu_type": "T4",
    "count": 3,
    "sm_percent": 40.0,
    "batch": 8,
    "clock_mhz": 1590.0,
    "arrival_rate_rps": 100.0,
    "capacity_rps": 110.5,
    "execution_ms": 7.041,
    "neighbours": ["photo"],
}
EXPLANATION: dict[str, object] = {
    "plan_id": 12,
    "state": "target",
    "summary": "optimal at $0.5260 per hour",
    "steps": [
        {
            "technique": "autoscale",
            "method": "cp-sat",
            "solution": "optimal",
            "seconds": 0.0012,
            "messages": [],
        }
    ],
    "messages": ["fresh arrangement"],
    "violations": [
        {
            "rule": "sm",
            "severity": "physical",
            "where": "gpus[0]",
            "detail": "110 > 100",
        }
    ],
    "services": [
        {
            "service": "chat",
            "demand_rps": 320.0,
            "planned_rps": 300.0,
            "capacity_rps": 331.5,
            "limit": "max_replicas 3",
            "replicas": [GROUP],
            "unserved": [
                {
                    "service": "chat",
                    "rate_rps": 20.0,
                    "reason": "replicas",
                    "replicas_missing": 0,
                }
            ],
        },
        {
            "service": "photo",
            "planned_rps": 0.0,
            "limit": "no demand",
            "replicas": [],
            "unserved": [],
        },
    ],
    "changes": [CHANGE],
}


def explaining() -> FakeApi:
    newest = {"items": [{"id": 12, "state": "target"}], "next_cursor": None}
    return FakeApi(answers={"GET plans": newest, "GET plans/12/explain": EXPLANATION})


def test_explain_tells_of_the_plan_in_force() -> None:
    api = explaining()
    result = cli("explain", api=api)
    assert (result.code, api.requests[0].url.params["state"]) == (0, "target")
    lines = result.out.splitlines()
    assert lines[0] == "Plan 12 (target): optimal at $0.5260 per hour"
    assert "  breaks sm at gpus[0]: 110 > 100" in lines
    assert "chat  demand 320.0 rps, planned 300.0 rps, capacity 331.5 rps" in result.out
    assert "  unserved: 20.0 rps (replicas)" in lines
    assert "  3 × T4      40      8     100.0     110.5     7.04  photo" in lines
    assert "chat     T4          40      8       1590       1      3" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("changes", "code", "words"), [([CHANGE], 1, "T4"), ([], 0, "No replica differs.")]
)
def test_diff_of_two_plans_ends_with_1_where_replicas_differ(
    changes: list[object], code: int, words: str
) -> None:
    answer = {
        "cost_before_usd_per_hour": None,
        "cost_after_usd_per_hour": 2.0,
        "changes": changes,
    }
    api = FakeApi(answers={"GET plans/12/diff": answer})
    result = cli("diff 11 12", api=api)
    assert result.code == code
    assert "Cost - → $2.0000 per hour" in result.out
    assert words in result.out
    assert api.requests[0].url.params["against"] == "11"


def test_approve_and_reject_say_what_became_of_the_plan() -> None:
    api = FakeApi(
        answers={
            "POST plans/3/approve": {"state": "approved"},
            "POST plans/4/reject": {"state": "rejected"},
        }
    )
    assert (
        cli("approve 3", api=api).out
        == "Plan 3 is approved; the next tick pushes it.\n"
    )
    assert cli("reject 4", api=api).out == "Plan 4 is rejected.\n"
    api.problems["POST plans/3/approve"] = problem_document(409, "plan 3 is withdrawn")
    result = cli("approve 3", api=api)
    assert (result.code, result.err) == (1, "Error: plan 3 is withdrawn\n")


def test_pause_resume_and_cordons_reach_their_endpoints() -> None:
    api = FakeApi(
        answers={
            f"POST {path}": {}
            for path in (
                "policies/default/pause",
                "policies/default/resume",
                "nodes/n1/cordon",
                "nodes/n2/uncordon",
            )
        }
    )
    assert cli("pause", api=api).out.startswith("The control loop is paused")
    assert cli("resume", api=api).out == "The control loop continues.\n"
    assert cli("cordon n1", api=api).out == "Node n1 cordoned\n"
    assert cli("uncordon n2", api=api).out == "Node n2 uncordoned\n"


def test_cancel_goes_on_where_one_has_finished_or_is_not_there() -> None:
    api = FakeApi(
        answers={f"POST tasks/{name}/cancel": {} for name in ("nightly", "weekly")}
    )
    api.problems["POST tasks/done/cancel"] = problem_document(
        409, "task 'done' has finished"
    )
    result = cli("cancel nightly done weekly", api=api)
    assert (result.code, result.err) == (0, "")
    assert (
        result.out
        == "Task nightly cancelled\nTask done has finished already\nTask weekly cancelled\n"
    )
    api.problems["POST tasks/nobody/cancel"] = problem_document(
        404, "no task is called 'nobody'"
    )
    result = cli("cancel nobody weekly", api=api)
    assert (result.code, result.err) == (1, "Error: no task is called 'nobody'\n")
    assert result.out == "Task weekly cancelled\n"
    api.problems["POST tasks/nightly/cancel"] = problem_document(
        403, "scope operator is needed"
    )
    result = cli("cancel nightly weekly", api=api)
    assert (result.code, result.out) == (1, "")
    assert "scope operator is needed" in result.err


def test_explain_as_json_is_the_api_s_own_answer() -> None:
    assert json.loads(cli("explain 12 -o json", api=explaining()).out) == EXPLANATION


def test_explain_without_a_plan_says_so() -> None:
    result = cli(
        "explain",
        api=FakeApi(answers={"GET plans": {"items": [], "next_cursor": None}}),
    )
    assert (result.code, result.err.splitlines()[0]) == (
        1,
        "Error: no plan is in force yet",
    )
