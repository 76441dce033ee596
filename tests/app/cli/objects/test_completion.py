"""Tab offers the names of objects, and neither waits long nor says anything where nothing answers."""

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from app.cli.main import run
from tests.app.cli.fake_api import FakeApi, service
from tests.app.cli.served_api import served


@pytest.fixture(scope="module")
def control_plane() -> Iterator[str]:
    api = FakeApi(
        objects={
            "services/chat": service(),
            "services/code": service("code"),
            "services/photo": service("photo"),
            "nodes/n1": {"metadata": {"name": "n1"}},
            "tasks/nightly": {"metadata": {"name": "nightly"}},
            "policies/default": {"metadata": {"name": "default"}},
            "plans/12": {"id": 12, "state": "proposed"},
        }
    )
    with served(api) as url:
        yield url


def complete(
    words: str, url: str, home: Path, *, until: list[str] | None = None
) -> tuple[list[str], str]:
    """What Tab offers in bash after these words, and what is printed into the line.

    `until`: pressed again where it offers something else, since a busy machine may need more than half a second.
    """
    for _ in range(1 if until is None else 5):
        found = press_tab(words, url, home)
        if found[0] == until:
            break
    return found


def press_tab(words: str, url: str, home: Path) -> tuple[list[str], str]:
    asked = {
        "HOME": str(home),
        "PLIMSOLL_URL": url,
        "PLIMSOLL_TOKEN": "plim_viewer_x",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_PLIMSOLL_COMPLETE": "complete_bash",
    }
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, asked),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        run([])
    return out.getvalue().split(), err.getvalue()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("plimsoll get services c", ["chat", "code"]),
        ("plimsoll describe task ", ["nightly"]),
        ("plimsoll delete services chat p", ["photo"]),
        ("plimsoll wait service chat co", ["code"]),
        ("plimsoll rollout status service/co", ["service/code"]),
        ("plimsoll logs task/", ["task/nightly"]),
        ("plimsoll drain ", ["n1"]),
        ("plimsoll cancel ni", ["nightly"]),
        ("plimsoll approve 1", ["12"]),
        ("plimsoll get servces c", []),
    ],
)
def test_names_of_objects_are_offered(
    words: str, offered: list[str], control_plane: str, tmp_path: Path
) -> None:
    assert complete(words, control_plane, tmp_path, until=offered) == (offered, "")


def test_contexts_are_offered_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "plimsoll" / "contexts.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("contexts: {production: {url: 'http://p'}, test: {}}")
    for words in ("plimsoll --context p", "plimsoll config use-context p"):
        assert complete(words, "http://127.0.0.1:9", tmp_path) == (["production"], "")


def test_nothing_is_offered_and_said_where_nobody_listens(tmp_path: Path) -> None:
    found = complete("plimsoll get services ", "http://127.0.0.1:9", tmp_path)
    assert found == ([], "")
    assert complete("plimsoll get services ", "odd", tmp_path) == ([], "")


def test_a_control_plane_that_does_not_answer_is_not_waited_for(
    tmp_path: Path,
) -> None:
    with served(FakeApi(), answers=False) as url:
        assert complete("plimsoll get services ", url, tmp_path) == ([], "")
