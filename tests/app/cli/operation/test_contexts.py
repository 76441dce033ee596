"""Contexts: which control plane a command asks, and how they are kept."""

import json
from pathlib import Path

import pytest

from app.cli.common.context import CliContext
from tests.app.cli.fake_api import FakeApi, service
from tests.app.runner import Result, cli

URL = "https://plimsoll.example.com"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the contexts `here` and `there`; `there` is in use."""
    (tmp_path / "there.token").write_text("plim_viewer_there\n")
    for arguments in (
        ("set-context", "here", "--url", "http://127.0.0.1:9"),
        ("set-context", "there", "--url", URL, "-p", "search"),
        ("set-context", "there", "--token-file", tmp_path / "there.token"),
        ("use-context", "there"),
    ):
        assert config(tmp_path, *arguments).code == 0
    return tmp_path


def config(home: Path, *arguments: str | Path) -> Result:
    return cli("config", *arguments, home=home, environment={})


def asked(home: Path, *arguments: str, **environment: str) -> tuple[str, str | None]:
    """The address and the token of the request that a command line makes."""
    api = FakeApi(objects={"services/chat": service()})
    result = cli(*arguments, api=api, home=home, environment=environment)
    assert result.code == 0, result.err
    (request,) = api.requests
    address = f"{request.url.scheme}://{request.url.netloc.decode()}"
    return address, request.headers.get("Authorization")


def test_the_context_in_use_says_where_and_as_whom(home: Path) -> None:
    assert asked(home, "get", "services") == (URL, "Bearer plim_viewer_there")


def test_a_context_s_token_is_for_the_context_s_address_alone(home: Path) -> None:
    elsewhere = ("http://127.0.0.1:8080", None)
    url = elsewhere[0]
    assert asked(home, "--url", url, "get", "services") == elsewhere
    assert asked(home, "get", "services", PLIMSOLL_URL=url) == elsewhere


def test_flags_come_before_environment_variables(home: Path) -> None:
    variables = {"PLIMSOLL_URL": "http://other:1", "PLIMSOLL_TOKEN": "plim_admin_x"}
    named = ("--context", "there", "get", "services")
    assert asked(home, *named, **variables) == (URL, "Bearer plim_viewer_there")
    found = asked(home, "--url", "http://flag:1", *named, **variables)
    assert found == ("http://flag:1", "Bearer plim_viewer_there")


@pytest.mark.parametrize(
    ("flags", "project"),
    [((), "search"), (("-p", "vision"), "vision"), (("-A",), None)],
)
def test_services_are_those_of_the_context_s_project(
    home: Path, flags: tuple[str, ...], project: str | None
) -> None:
    api = FakeApi()
    assert cli("get services", *flags, api=api, home=home).code == 0
    assert api.requests[0].url.params.get("project") == project


def test_contexts_are_listed_with_a_star_at_the_one_in_use(home: Path) -> None:
    lines = config(home, "get-contexts").out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["here", "http://127.0.0.1:9", "-"],
        ["*", "there", URL],
    ]
    items = json.loads(config(home, "get-contexts", "-o", "json").out)["items"]
    assert items[1] == {
        "name": "there",
        "current": True,
        "url": URL,
        "project": "search",
        "token_file": str(home / "there.token"),
    }
    assert config(home, "current-context").out == "there\n"


def test_a_context_that_is_deleted_is_no_longer_in_use(home: Path) -> None:
    assert config(home, "delete-context", "there").code == 0
    assert "no context is in use" in config(home, "current-context").err
    assert (home / "there.token").exists()


def test_a_context_that_there_is_not_names_those_that_there_are(home: Path) -> None:
    for arguments in (
        ("--context", "her", "get", "services"),
        ("config", "use-context", "her"),
    ):
        result = cli(*arguments, home=home, environment={})
        assert result.code == 1
        assert "no context 'her'; there are: here, there" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a b",), "is not a valid context name"),
        (("a", "--url", "plimsoll"), "not an http:// or https://"),
        (("a", "-p", "A"), "not a valid project name"),
    ],
)
def test_what_no_context_can_have_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = config(tmp_path, "set-context", *arguments)
    assert result.code == 2
    assert words in " ".join(result.err.replace("│", " ").split())
    assert not (tmp_path / ".config").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("contexts: [a]", "no mapping `contexts`"),
        ("{", "is not YAML"),
        ("contexts: {a: b}", "contexts.a is not a mapping"),
        ("contexts: {a: {url: 1}}", "contexts.a.url is not text"),
        ("contexts: {a: {uri: x}}", "it takes url, token-file, project"),
        ("current-context: [a]", "current-context is not a name"),
        ("#" * 1_100_000, "too large for a file of contexts"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_is_wrong(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / ".config" / "plimsoll" / "contexts.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    result = config(tmp_path, "get-contexts")
    assert result.code == 1
    assert words in result.err
    assert "contexts.yaml" in result.err


def test_a_command_reads_its_contexts_once(home: Path) -> None:
    context = CliContext(environment={}, home=home)
    assert context.url().value == URL
    # Whatever becomes of the file meanwhile, address and token are of one state of it.
    context.contexts_path().write_text("current-context: here\n")
    assert context.token().value == "plim_viewer_there"
