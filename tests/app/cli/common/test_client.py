"""The API client: errors that a person can act on."""

from pathlib import Path

import httpx2
import pytest

from tests.app.cli.fake_api import FakeApi, problem_document, service
from tests.app.runner import Result, cli


def get_services(**options: object) -> Result:
    return cli("get services", **options)  # type: ignore[arg-type]


def test_no_control_plane_names_the_address_its_origin_and_the_remedy() -> None:
    assert get_services().err == (
        "Error: no control plane answers at http://127.0.0.1:8080 (default): [Errno 111] Connection refused\n"
        "Hint: start one with `plimsoll up`, or set PLIMSOLL_URL to the address of a running one\n"
    )
    result = get_services(environment={"PLIMSOLL_URL": "http://gpu:1"})
    assert "at http://gpu:1 (environment PLIMSOLL_URL)" in result.err
    assert "at http://x:2 (flag --url)" in cli("--url http://x:2 get services").err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx2.ReadTimeout("slow"), "gave no answer in 75 s"),
        (httpx2.RemoteProtocolError("peer closed"), "was lost: peer closed"),
        (httpx2.ConnectTimeout("no route"), "no control plane answers"),
    ],
)
def test_a_connection_that_breaks_is_an_error_not_a_traceback(
    error: httpx2.TransportError, words: str
) -> None:
    def breaks(_request: httpx2.Request) -> httpx2.Response:
        raise error

    result = get_services(api=breaks)
    assert result.code == 1
    assert words in result.err


def test_a_refused_token_says_where_it_came_from(tmp_path: Path) -> None:
    api = FakeApi(
        problems={
            "GET services": problem_document(
                401, "this token is unknown, revoked or expired"
            )
        }
    )
    assert get_services(api=api).err == (
        "Error: this token is unknown, revoked or expired (token: environment PLIMSOLL_TOKEN)\n"
        "Hint: set PLIMSOLL_TOKEN, or create a token with `plimsoll token create --local --save`\n"
    )
    result = get_services(api=api, environment={}, home=tmp_path)
    assert (
        f"(token: no PLIMSOLL_TOKEN, no {tmp_path}/.config/plimsoll/token)"
        in result.err
    )


@pytest.mark.parametrize(
    ("environment", "flags", "sent"),
    [
        ({"PLIMSOLL_TOKEN": "one"}, [], "Bearer one"),
        ({"PLIMSOLL_TOKEN_FILE": "{folder}/two"}, [], "Bearer two"),
        (
            {"PLIMSOLL_TOKEN": "one", "PLIMSOLL_TOKEN_FILE": "{folder}/two"},
            [],
            "Bearer one",
        ),
        ({"PLIMSOLL_TOKEN": "one"}, ["--token-file", "{folder}/two"], "Bearer two"),
        ({}, [], "Bearer saved"),
        ({"XDG_CONFIG_HOME": "{folder}/elsewhere"}, [], None),
    ],
)
def test_flags_come_before_environment_before_the_saved_token(
    tmp_path: Path, environment: dict[str, str], flags: list[str], sent: str | None
) -> None:
    (tmp_path / "two").write_text("two\n")
    saved = tmp_path / ".config" / "plimsoll" / "token"
    saved.parent.mkdir(parents=True)
    saved.write_text("saved\n")
    api = FakeApi()
    given = {name: value.format(folder=tmp_path) for name, value in environment.items()}
    words = [flag.format(folder=tmp_path) for flag in flags]
    cli(*words, "get", "services", api=api, environment=given, home=tmp_path)
    assert api.requests[0].headers.get("Authorization") == sent


def test_a_problem_is_told_with_its_fields_and_a_fault_of_the_server_with_its_request_id() -> (
    None
):
    api = FakeApi()
    api.problems["GET services"] = problem_document(
        422, "the request cannot be done", pointers={"/limit": "too large"}
    )
    assert (
        get_services(api=api).err
        == "Error: the request cannot be done\n  /limit: too large\n"
    )
    api.problems["GET services"] = problem_document(500, "an unexpected error")
    assert get_services(api=api).err == "Error: an unexpected error (request req-1)\n"


def test_posts_carry_a_fresh_idempotency_key() -> None:
    api = FakeApi(answers={"POST policies/default/pause": service()})
    cli("pause", api=api)
    cli("pause", api=api)
    assert len({key for key in api.header("POST", "Idempotency-Key") if key}) == 2


@pytest.mark.parametrize(
    "answer",
    [httpx2.Response(502, text="<html>"), httpx2.Response(404, json={"ok": False})],
)
def test_a_server_that_is_not_ours_is_suspected(answer: httpx2.Response) -> None:
    result = get_services(api=lambda _request: answer)
    assert result.code == 1
    assert "without a problem document" in result.err
    assert "is this the address of Plimsoll?" in result.err
