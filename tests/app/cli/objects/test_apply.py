"""`apply` and `diff -f`: what would change is shown before it is asked for, and only that is written."""

import copy
import json
import re
from pathlib import Path

import httpx2
import pytest

from tests.app.cli.fake_api import FakeApi, Json, etag, problem_document, service
from tests.app.runner import cli

NETWORK = "apiVersion: plimsoll/v1\nkind: Network\nmetadata: {name: bert}\nspec: {description: Text}\n"
SERVICE = """\
apiVersion: plimsoll/v1
kind: Service
metadata:
  name: chat
spec:
  network: bert
  slo: {latency_ms: 40, percentile: 0.98}
"""
PREVIEW = "POST plans/preview"
PRICING = "pricing the plan, for at most 20 s …\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.yaml"
    path.write_text(SERVICE)
    return path


def an_answer(question: str, cost: float) -> dict[str, object]:
    return {
        "question": question,
        "cost_usd_per_hour": cost,
        "unserved_percent": 0.0,
        "gpus": {"T4": 2, "A100": 0},
    }


def api_with(present: dict[str, object] | None = None) -> FakeApi:
    cost: dict[str, object] = {
        "cost_before_usd_per_hour": 1.0,
        "cost_usd_per_hour": 2.5,
        "document": {"unserved": []},
        "demands": [{"service": "chat", "arrival_rate_rps": 12.0}],
        "today": an_answer("as it is", 2.5),
        "answers": [
            an_answer("SLO of chat 60 ms instead of 40", 1.5),
            an_answer("chat on A100 instead of T4", 1.0),
            an_answer("a third one", 3.0),
        ],
    }
    return FakeApi(
        objects={} if present is None else {"services/chat": present},
        answers={PREVIEW: cost},
    )


def test_a_new_object_is_shown_with_the_fields_that_it_gives_and_then_created(
    file: Path,
) -> None:
    api = api_with()
    result = cli("apply -f", file, api=api, stdin="y\n")
    assert result.code == 0
    assert result.out.splitlines() == [
        "+ Service chat  create",
        "    spec.network: bert",
        "    spec.slo.latency_ms: 40",
        "    spec.slo.percentile: 0.98",
        "1 to create, 0 to change, 0 unchanged.",
        "SERVICE  PLANNED RPS  RATE FROM",
        "chat            12.0  not known; give --rate chat=RPS",
        "PLAN                                 COST/H  MORE OR LESS  UNSERVED  GPUS",
        "in force now                          $1.00             -",
        "with these manifests                  $2.50        +$1.50         -  2 T4",
        "or: SLO of chat 60 ms instead of 40   $1.50        +$0.50         -  2 T4",
        "or: chat on A100 instead of T4        $1.00          same         -  2 T4",
        "Service chat created",
    ]
    assert result.err == PRICING + "Apply? [y/N] "
    (bundle,) = api.written()
    assert (bundle["etags"], len(bundle["services"])) == ({}, 1)  # type: ignore[arg-type]
    # What would be refused is refused before anybody is asked.
    assert api.written(dry_run=True) == [bundle]


def test_a_change_is_shown_field_by_field_and_sent_against_the_state_that_was_seen(
    file: Path,
) -> None:
    api = api_with(service())
    seen = api.objects["services/chat"]
    result = cli("apply -f", file, "-y", api=api)
    assert result.code == 0
    assert (
        "~ Service chat  change\n    spec.slo.latency_ms: 50 → 40\n0 to create, 1 to change"
        in result.out
    )
    (bundle,) = api.written()
    assert bundle["etags"] == {"services/chat": etag(seen)}
    assert api.objects["services/chat"] != seen


def test_nothing_is_asked_or_written_when_nothing_differs(file: Path) -> None:
    file.write_text(SERVICE.replace("40", "50.0"))
    api = api_with(service())
    result = cli("apply -f", file, api=api)
    assert (result.code, result.err) == (0, "")
    assert (
        result.out
        == "= Service chat  unchanged\n0 to create, 0 to change, 1 unchanged.\n"
    )


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_anything_but_yes_changes_nothing_and_ends_with_1(
    file: Path, answer: str
) -> None:
    api = api_with()
    result = cli("apply -f", file, api=api, stdin=answer)
    assert (result.code, api.written()) == (1, [])
    silence = "" if answer else "\n"
    hint = "" if answer else "Hint: there was no answer; -y skips the question\n"
    assert (
        result.err
        == f"{PRICING}Apply? [y/N] {silence}Error: nothing was changed\n{hint}"
    )


def test_a_dry_run_lets_the_control_plane_check_and_changes_nothing(file: Path) -> None:
    api = api_with()
    assert cli("apply -f", file, "--dry-run", api=api).code == 0
    assert (api.written(), len(api.written(dry_run=True))) == ([], 1)
    api.problems["POST apply"] = problem_document(403, "this token may not")
    dry = cli("apply -f", file, "--dry-run", api=api)
    written = cli("apply -f", file, "-y", api=api)
    assert (dry.code, dry.err) == (written.code, written.err)
    assert dry.err.startswith("Error: this token may not\n")


def test_manifests_from_stdin_leave_nobody_to_ask(file: Path) -> None:
    assert cli("apply -f -", api=api_with(), stdin=SERVICE).code == 2
    api = api_with()
    assert cli("apply -f - -y", api=api, stdin=SERVICE).code == 0
    assert len(api.written()) == 1


def test_a_refusal_gets_its_line_and_nothing_is_written(file: Path) -> None:
    file.write_text(NETWORK + "---\n" + SERVICE)
    api = api_with()
    words = "40 ms is impossible; the shortest possible SLO is 61.2 ms"
    problem = problem_document(
        422,
        f"services[0].spec.slo: {words}; `?force=true` accepts it anyway",
        pointers={"/services/0/spec/slo": words},
    )
    problem["errors"][0]["may_force"] = True  # type: ignore[index]
    api.problems["POST apply"] = problem
    result = cli("apply -f", file, "-y", api=api)
    assert (result.code, "created" in result.out) == (1, False)
    assert result.err == (
        f"Error: {file}:12: spec.slo: 40 ms is impossible; the shortest possible SLO is 61.2 ms\n"
        "Hint: `plimsoll apply --force` accepts it anyway\n"
    )


@pytest.mark.parametrize(
    ("flags", "annotations", "sent", "source"),
    [
        ([], "{}", {}, "not known; give --rate chat=RPS"),
        ([], "{expected-rps: '30'}", {"chat": 30.0}, "the manifest"),
        (
            ["--rate", "chat=7"],
            "{expected-rps: '30'}",
            {"chat": 7.0},
            "--rate",
        ),
    ],
)
def test_the_plan_is_priced_at_the_rate_that_is_given(
    file: Path,
    flags: list[str],
    annotations: str,
    sent: dict[str, float],
    source: str,
) -> None:
    file.write_text(
        SERVICE.replace("name: chat", f"name: chat\n  annotations: {annotations}")
    )
    api = api_with()
    shown = cli("apply -f", file, "--dry-run", *flags, api=api).out
    assert f"chat            12.0  {source}\n" in shown
    asked = json.loads(api.requests[-1].content)
    assert (asked["demand_rps"], asked["alternatives_of"]) == (sent, ["chat"])


def conditions(status: str, reason: str, message: str) -> dict[str, object]:
    ready = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return {**service(), "status": {"conditions": [ready]}}


def test_waiting_ends_as_soon_as_the_service_serves(file: Path) -> None:
    api = api_with()
    planned = conditions("True", "Serving", "replicas in service: 1")
    slow = conditions("Unknown", "NotPlanned", "there is no plan in force yet")
    looks = iter([slow, slow, planned, planned])
    ready = iter([0, 1])

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("services/chat/endpoints"):
            nodes = [{"node": "n1", "ready_replicas": next(ready)}]
            return httpx2.Response(200, json={"nodes": nodes})
        is_look = request.method == "GET" and "services/chat" in api.objects
        return httpx2.Response(200, json=next(looks)) if is_look else api(request)

    result = cli("apply -f", file, "-y", "--wait", "10", api=answer)
    assert (result.code, next(looks, None)) == (0, None)
    *waits, last = result.err.splitlines()
    assert waits == [
        "waiting for chat: there is no plan in force yet",
        "waiting for chat: its replicas start on n1",
    ]
    assert re.fullmatch(r"chat is ready after \d+\.\d s: replicas in service: 1", last)


def test_a_cost_that_cannot_be_known_is_no_obstacle(file: Path) -> None:
    api = api_with()
    api.problems[PREVIEW] = problem_document(422, "there is no profiled network 'bert'")
    result = cli("apply -f", file, api=api, stdin="y\n")
    assert result.code == 0
    assert (
        "Cost: not known beforehand (there is no profiled network 'bert')" in result.out
    )


@pytest.mark.parametrize(("latency_ms", "code"), [("50", 0), ("40", 1)])
def test_diff_ends_with_1_where_something_differs(
    file: Path, latency_ms: str, code: int
) -> None:
    file.write_text(SERVICE.replace("40", latency_ms))
    api = api_with(service())
    assert cli("diff -f", file, api=api).code == code
    assert {request.method for request in api.requests} == {"GET"}


def test_what_get_prints_can_be_applied_again_and_differs_in_nothing() -> None:
    printed = cli("get service chat -o yaml", api=api_with(service()))
    result = cli("diff -f -", api=api_with(service()), stdin=printed.out)
    assert (result.code, result.err) == (0, "")


def test_rows_of_a_profile_are_compared_without_their_order_and_summed_up(
    tmp_path: Path,
) -> None:
    rows = [[10 * step, 1, 1000, 0.1, 0.1, 5, 500, 20, 0.1] for step in range(1, 21)]
    profile = {
        "apiVersion": "plimsoll/v1",
        "kind": "Profile",
        "metadata": {"name": "p"},
        "spec": {"network": "bert", "gpu_type": "T4", "rows": copy.deepcopy(rows)},
    }
    file = tmp_path / "p.yaml"
    head = "apiVersion: plimsoll/v1\nkind: Profile\nmetadata: {name: any}\nspec:\n  network: bert\n  gpu_type: T4\n"
    file.write_text(f"{head}  rows: {rows[::-1]}\n")
    api = FakeApi(objects={"profiles/bert/T4": profile})
    assert cli("diff -f", file, api=api).code == 0
    rows[3][5] = 7
    file.write_text(f"{head}  rows: {rows}\n")
    assert "spec.rows: 20 rows → 20 rows, of which" in cli("diff -f", file, api=api).out


def test_delete_asks_and_goes_from_users_to_what_they_use(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(NETWORK + "---\n" + SERVICE)
    api = FakeApi(
        objects={
            "services/chat": service(),
            "networks/bert": {"metadata": {"name": "bert"}},
        }
    )
    refused = cli("delete -f", file, api=api, stdin="n\n")
    assert (refused.code, len(api.objects)) == (1, 2)
    assert (
        refused.err
        == "Delete Service chat, Network bert? [y/N] Error: nothing was deleted\n"
    )
    assert (
        cli("delete -f", file, "-y", api=api).out
        == "Service chat deleted\nNetwork bert deleted\n"
    )
    assert api.header("DELETE", "If-Match") == ["*", "*"]


def test_waiting_does_not_go_on_where_a_person_must_act(file: Path) -> None:
    api = api_with()
    waits = conditions("False", "WaitsForApproval", "plan 7 waits for approval")

    def answer(request: httpx2.Request) -> httpx2.Response:
        is_look = request.method == "GET" and "services/chat" in api.objects
        return httpx2.Response(200, json=waits) if is_look else api(request)

    result = cli("apply -f", file, "-y", "--wait", "10", api=answer)
    assert result.code == 1
    assert "chat is not ready: plan 7 waits for approval" in result.err
    assert "Hint: `plimsoll describe service chat` says why" in result.err


def test_what_would_stay_unserved_is_said_before_asking(file: Path) -> None:
    api = api_with()
    api.answers[PREVIEW]["document"] = {
        "unserved": [{"service": "chat", "rate_rps": 12.0, "reason": "stock"}]
    }
    assert "  chat: 12.0 rps would stay unserved" in cli("apply -f", file, api=api).out


@pytest.mark.parametrize(
    ("seen_at", "silent_for_s", "returns"),
    [("2026-01-31", 3.2, True), ("2026-01-31", 900.0, False), (None, 3.2, False)],
)
def test_a_deleted_node_whose_agent_lives_is_said_to_return(
    seen_at: str | None, silent_for_s: float, returns: bool
) -> None:
    status: Json = {"last_seen_at": seen_at, "silent_for_s": silent_for_s}
    api = FakeApi(objects={"nodes/n1": {"status": status}})
    result = cli("delete node n1 -y", api=api)
    assert (result.code, result.out) == (0, "Node n1 deleted\n")
    assert ("reported 3 s ago, and registers the node again" in result.err) is returns
    assert not api.objects


@pytest.mark.parametrize(
    "arguments", [["service"], ["gpu", "n1/gpu-0"], ["token", "t"], []]
)
def test_delete_refuses_what_it_cannot_delete(arguments: list[str]) -> None:
    assert cli("delete", *arguments, "-y", api=FakeApi()).code == 2
