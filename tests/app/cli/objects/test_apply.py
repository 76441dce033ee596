"""`apply` and `diff -f`: what would change is shown before it is asked for, and only that is written."""

import copy
from pathlib import Path

import pytest

from tests.app.cli.fake_api import FakeApi, problem_document, service
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.yaml"
    path.write_text(SERVICE)
    return path


def api_with(present: dict[str, object] | None = None) -> FakeApi:
    cost: dict[str, object] = {
        "cost_before_usd_per_hour": 1.0,
        "cost_usd_per_hour": 2.5,
        "document": {"unserved": []},
    }
    return FakeApi(
        objects={} if present is None else {"services/chat": present},
        answers={PREVIEW: cost},
    )


def test_a_new_object_is_shown_with_the_fields_that_it_gives_and_then_created(
    file: Path,
) -> None:
    api = api_with()
    result = cli("apply", "-f", file, api=api, stdin="y\n")
    assert result.code == 0
    assert result.out.splitlines() == [
        "+ Service chat  create",
        "    spec.network: bert",
        "    spec.slo.latency_ms: 40",
        "    spec.slo.percentile: 0.98",
        "1 to create, 0 to change, 0 unchanged.",
        "Cost at the present rates: $1.00 → $2.50 per hour",
        "Service chat created",
    ]
    assert result.err == "Apply? [y/N] "
    assert api.header("PUT", "If-None-Match") == ["*"]


def test_a_change_is_shown_field_by_field_and_sent_against_the_state_that_was_seen(
    file: Path,
) -> None:
    api = api_with(service())
    seen = api.objects["services/chat"]
    result = cli("apply", "-f", file, "-y", api=api)
    assert result.code == 0
    assert (
        "~ Service chat  change\n    spec.slo.latency_ms: 50 → 40\n0 to create, 1 to change"
        in result.out
    )
    assert api.header("PUT", "If-Match")[0] is not None
    assert api.objects["services/chat"] != seen


def test_nothing_is_asked_or_written_when_nothing_differs(file: Path) -> None:
    file.write_text(SERVICE.replace("40", "50.0"))
    api = api_with(service())
    result = cli("apply", "-f", file, api=api)
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
    result = cli("apply", "-f", file, api=api, stdin=answer)
    assert (result.code, api.sent("PUT")) == (1, [])
    silence = "" if answer else "\n"
    hint = "" if answer else "Hint: nobody answered; -y does it without asking\n"
    assert result.err == f"Apply? [y/N] {silence}Error: nothing was changed\n{hint}"


def test_a_dry_run_shows_and_changes_nothing(file: Path) -> None:
    api = api_with()
    assert cli("apply", "-f", file, "--dry-run", api=api).code == 0
    assert api.sent("PUT") == []


def test_manifests_from_stdin_leave_nobody_to_ask(file: Path) -> None:
    assert cli("apply", "-f", "-", api=api_with(), stdin=SERVICE).code == 2
    api = api_with()
    assert cli("apply", "-f", "-", "-y", api=api, stdin=SERVICE).code == 0
    assert len(api.sent("PUT")) == 1


def test_wrong_manifests_are_refused_before_anything_is_asked_of_the_control_plane(
    file: Path,
) -> None:
    file.write_text(SERVICE.replace("slo", "sl0"))
    api = api_with()
    result = cli("apply", "-f", file, "-y", api=api)
    assert result.code == 1
    assert f"{file}:7: spec.sl0: unknown field; did you mean slo?" in result.err
    assert api.requests == []


def test_a_refusal_gets_its_line_and_says_what_was_written_before(file: Path) -> None:
    file.write_text(NETWORK + "---\n" + SERVICE)
    api = api_with()
    words = "40 ms is impossible; the least SLO possible is 61.2 ms"
    problem = problem_document(
        422,
        f"spec.slo: {words}; `?force=true` accepts it all the same",
        pointers={"/spec/slo": words},
    )
    problem["errors"][0]["may_force"] = True
    api.problems["PUT services/chat"] = problem
    result = cli("apply", "-f", file, "-y", api=api)
    assert result.code == 1
    assert "Network bert created" in result.out
    assert result.err == (
        f"Error: {file}:12: spec.slo: 40 ms is impossible; the least SLO possible is 61.2 ms\n"
        "Hint: 1 of 2 objects were written before this one; `plimsoll apply --force` accepts it all the same\n"
    )


def test_force_is_passed_on_for_services(file: Path) -> None:
    file.write_text(NETWORK + "---\n" + SERVICE)
    api = api_with()
    cli("apply", "-f", file, "-y", "--force", api=api)
    assert [
        request.url.query for request in api.requests if request.method == "PUT"
    ] == [b"", b"force=true"]


def test_a_field_that_the_control_plane_does_not_keep_is_named(file: Path) -> None:
    api = api_with()
    api.answers["PUT services/chat"] = service()
    result = cli("apply", "-f", file, "-y", api=api)
    assert "the control plane does not keep spec.slo.latency_ms" in result.out


def test_what_would_stay_unserved_is_said_before_asking(file: Path) -> None:
    api = api_with()
    api.answers[PREVIEW]["document"] = {
        "unserved": [{"service": "chat", "rate_rps": 12.0, "reason": "stock"}]
    }
    assert (
        "  chat: 12.0 rps would stay unserved (stock)\n"
        in cli("apply", "-f", file, api=api).out
    )


def test_a_cost_that_cannot_be_known_is_no_obstacle(file: Path) -> None:
    api = api_with()
    api.problems[PREVIEW] = problem_document(422, "there is no profiled network 'bert'")
    result = cli("apply", "-f", file, api=api, stdin="y\n")
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
    assert cli("diff", "-f", file, api=api).code == code
    assert {request.method for request in api.requests} == {"GET"}


def test_what_get_prints_can_be_applied_again_and_differs_in_nothing() -> None:
    printed = cli("get", "service", "chat", "-o", "yaml", api=api_with(service()))
    result = cli("diff", "-f", "-", api=api_with(service()), stdin=printed.out)
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
    assert cli("diff", "-f", file, api=api).code == 0
    rows[3][5] = 7
    file.write_text(f"{head}  rows: {rows}\n")
    assert (
        "spec.rows: 20 rows → 20 rows, of which 1 are new"
        in cli("diff", "-f", file, api=api).out
    )


def test_delete_asks_and_goes_from_users_to_what_they_use(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(NETWORK + "---\n" + SERVICE)
    api = FakeApi(
        objects={
            "services/chat": service(),
            "networks/bert": {"metadata": {"name": "bert"}},
        }
    )
    refused = cli("delete", "-f", file, api=api, stdin="n\n")
    assert (refused.code, len(api.objects)) == (1, 2)
    assert (
        refused.err
        == "Delete Service chat, Network bert? [y/N] Error: nothing was deleted\n"
    )
    assert (
        cli("delete", "-f", file, "-y", api=api).out
        == "Service chat deleted\nNetwork bert deleted\n"
    )
    assert api.header("DELETE", "If-Match") == ["*", "*"]


@pytest.mark.parametrize(
    "arguments", [["service"], ["gpu", "n1/gpu-0"], ["token", "t"], []]
)
def test_delete_refuses_what_it_cannot_delete(arguments: list[str]) -> None:
    assert cli("delete", *arguments, "-y", api=FakeApi()).code == 2
