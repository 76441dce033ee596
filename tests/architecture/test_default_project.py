"""The default project has one name, also where its constant cannot be imported."""

from pathlib import Path

import pytest

from agents.base.protocol import DEFAULT_PROJECT
from solvers.types import state

ROOT = Path(__file__).resolve().parents[2]


def test_solvers_call_the_default_project_as_the_protocol_does() -> None:
    assert state.DEFAULT_PROJECT == DEFAULT_PROJECT


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "migrations/baseline/1_fleet.sql",
            f"INSERT INTO project (name, created_at) VALUES ('{DEFAULT_PROJECT}', ",
        ),
        ("app/web/static/js/new_service.js", f'project: "{DEFAULT_PROJECT}"'),
    ],
)
def test_what_is_no_python_calls_the_default_project_so_too(
    path: str, text: str
) -> None:
    assert text in (ROOT / path).read_text(encoding="utf-8")
