"""The API client: errors that a person can act on."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

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


@pytest.mark.parametrize(
    "command",
    [
        "get nodes",
        "apply -f docs/examples/task.yaml",
        "relay http://gpu:1/metrics --kind vllm",
        "describe node n",
        "top",
        "slo",
        "token list",
    ],
)
@pytest.mark.parametrize("proxy", ["socks5://proxy:1080", "socks4://proxy:1", "x://y"])
@pytest.mark.skipif(find_spec("socksio") is not None, reason="socksio is here")
def test_a_proxy_that_cannot_be_asked_is_an_error_of_one_sentence(
    command: str, proxy: str
) -> None:
    environment = {"ALL_PROXY": proxy, "PLIMSOLL_URL": "http://plane:8080"}
    result = cli(command, api=None, environment=environment)
    said = result.out + result.err
    assert result.code == 1
    assert "ALL_PROXY" in said and "add " in said and " to NO_PROXY" in said


def test_the_proxy_that_gave_no_answer_is_named() -> None:
    environment = {
        "HTTP_PROXY": "http://me:secret@127.0.0.1:9",
        "PLIMSOLL_URL": "http://plane.test:8080",
    }
    result = cli("get nodes", api=None, environment=environment)
    assert result.err == (
        "Error: the proxy http://me:***@127.0.0.1:9 (HTTP_PROXY) gave no answer of http://plane.test:8080 "
        "(environment PLIMSOLL_URL): [Errno 111] Connection refused\n"
        "Hint: where no proxy is needed, add plane.test to NO_PROXY\n"
    )
    relayed = cli(
        "relay http://plane.test/metrics --kind vllm", api=None, environment=environment
    )
    assert "proxy http://me:***@127.0.0.1:9 (HTTP_PROXY)" in relayed.err


def test_a_proxys_own_answer_names_the_proxy() -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403, "Forbidden")

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        proxy = f"127.0.0.1:{server.server_port}"
        environment = {"ALL_PROXY": proxy, "PLIMSOLL_URL": "http://plane.test"}
        result = cli("get nodes", api=None, environment=environment)
        server.shutdown()
        thread.join()
    assert f"asked through the proxy http://{proxy} (ALL_PROXY), answered 403" in (
        result.err
    )
    assert "add plane.test to NO_PROXY" in result.err


def test_no_proxy_is_asked_for_this_machine() -> None:
    environment = {"HTTP_PROXY": "http://proxy.test:3128", "ALL_PROXY": "socks5://p:1"}
    result = cli(
        "--url http://127.0.0.1:9 get nodes", api=None, environment=environment
    )
    assert "no control plane answers at http://127.0.0.1:9 (flag --url)" in result.err
