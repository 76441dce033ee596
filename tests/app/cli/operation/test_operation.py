"""`token`, `config`, `version`, `doctor`: what they print, and that secrets stay where they belong."""

import json
import sys
from pathlib import Path

import pytest

from app.base.settings import Settings
from app.cli.common.context import CliContext
from app.cli.common.local import masked
from app.cli.operation.doctor import (
    CheckVerdict,
    ServerFinding,
    control_plane_findings,
    import_problem,
)
from tests.app.cli.fake_api import FakeApi
from tests.app.runner import cli

SECRET = "plim_operator_" + "x" * 43
TOKENS: dict[str, object] = {
    "items": [
        {
            "id": "tok-1",
            "name": "ann",
            "scope": "admin",
            "projects": None,
            "revoked_at": None,
        },
        {
            "id": "tok-2",
            "name": "bob",
            "scope": "viewer",
            "projects": ["vision"],
            "revoked_at": "2026-01-01T00:00:00Z",
        },
        {
            "id": "tok-3",
            "name": "twin",
            "scope": "viewer",
            "projects": None,
            "expires_at": "2026-01-01T00:00:00Z",
        },
        {
            "id": "tok-4",
            "name": "twin",
            "scope": "viewer",
            "projects": None,
            "expires_at": None,
        },
        *(
            {"id": name, "name": "pair", "scope": "viewer", "rotated_at": rotated}
            for name, rotated in (
                ("tok-5", "2026-01-01T00:00:00Z"),
                ("tok-6", None),
                ("tok-7", None),
            )
        ),
    ],
    "next_cursor": None,
}


def test_the_secret_alone_goes_to_stdout() -> None:
    api = FakeApi(answers={"POST tokens": {"secret": SECRET}})
    result = cli("token create bob --scope operator -p vision --expires 30d", api=api)
    assert (result.code, result.out) == (0, f"{SECRET}\n")
    (body,) = api.sent("POST")
    assert {**body, "expires_at": "soon"} == {
        "name": "bob",
        "scope": "operator",
        "projects": ["vision"],
        "expires_at": "soon",
    }


def test_a_saved_token_is_its_owner_s_alone_and_is_used_next_time(
    tmp_path: Path,
) -> None:
    api = FakeApi(answers={"POST tokens": {"secret": SECRET}})
    cli("token create me --save", api=api, home=tmp_path)
    saved = tmp_path / ".config" / "plimsoll" / "token"
    assert saved.stat().st_mode & 0o077 == 0
    cli("get services", api=api, environment={}, home=tmp_path)
    assert api.requests[-1].headers["Authorization"] == f"Bearer {SECRET}"


def test_tokens_are_listed_with_their_state() -> None:
    lines = cli(
        "token list", api=FakeApi(answers={"GET tokens": TOKENS})
    ).out.splitlines()
    assert [line.split()[3] for line in lines[1:]] == [
        "valid",
        "revoked",
        "expired",
        "valid",
        "rotated",
        "valid",
        "valid",
    ]


@pytest.mark.parametrize(
    ("wanted", "outcome"),
    [
        ("tok-1", "tok-1"),
        ("ann", "tok-1"),
        ("bob", None),
        # The others of that name have ended, or were replaced by this one.
        ("twin", "tok-4"),
        ("pair", None),
        ("nope", None),
    ],
)
def test_a_token_is_revoked_by_id_or_by_a_name_that_only_it_has(
    wanted: str, outcome: str | None
) -> None:
    api = FakeApi(answers={"GET tokens": TOKENS}, objects={f"tokens/{outcome}": {}})
    result = cli("token revoke", wanted, api=api)
    assert result.code == (0 if outcome else 1)
    assert [r.url.path for r in api.requests if r.method == "DELETE"] == [
        f"/api/v1/tokens/{outcome}"
    ] * bool(outcome)


def test_config_shows_values_with_their_origin_and_masks_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", "postgresql://me:hidden@db/plimsoll")
    monkeypatch.setenv("PLIMSOLL_PORT", "9000")
    result = cli("config show -o json", environment={"PLIMSOLL_TOKEN": SECRET})
    shown = json.loads(result.out)
    assert "hidden" not in result.out
    assert shown["PLIMSOLL_TOKEN"] == {
        "value": "plim_operator_***",
        "origin": "environment PLIMSOLL_TOKEN",
    }
    assert shown["PLIMSOLL_PORT"] == {"value": "9000", "origin": "environment"}
    assert shown["PLIMSOLL_HOST"] == {"value": "127.0.0.1", "origin": "default"}
    assert {f"PLIMSOLL_{name.upper()}" for name in Settings.model_fields} <= set(shown)


def test_version_works_without_a_control_plane() -> None:
    result = cli("version")
    assert (result.code, result.out.splitlines()[0].split()[0]) == (0, "plimsoll")
    assert "no control plane answers" in result.out
    assert cli("version --short").out.strip() == result.out.split()[1]


def findings(api: FakeApi) -> dict[str, ServerFinding]:
    import httpx2

    cli = CliContext(
        environment={"PLIMSOLL_TOKEN": SECRET},
        home=Path("/nonexistent"),
        transport=httpx2.MockTransport(api),
    )
    return {finding.check: finding for finding in control_plane_findings(cli)}


def health_api(status: int, **checks: str) -> FakeApi:
    document: dict[str, object] = {
        "status": "ok" if status == 200 else "unavailable",
        "checks": checks,
    }
    kind = {200: "answers", 503: "problems"}[status]
    api = FakeApi(answers={"GET auth/whoami": {"name": "ann", "scope": "admin"}})
    getattr(api, kind)["GET /readyz"] = {
        **document,
        **({"status": 503} if status == 503 else {}),
    }
    return api


def test_doctor_asks_the_control_plane_how_it_is() -> None:
    found = findings(health_api(200, database="ok", controller="ok"))
    assert found["control plane"].verdict is CheckVerdict.OK
    assert found["token"].detail == "ann of scope admin (environment PLIMSOLL_TOKEN)"
    sick = findings(health_api(503, database="the database does not answer"))
    assert sick["control plane"].verdict is CheckVerdict.BROKEN
    assert "database: the database does not answer" in sick["control plane"].detail


def test_a_library_that_does_not_load_is_found_out_in_a_process_of_its_own() -> None:
    assert import_problem(("json",)) is None
    assert (
        import_problem(("no_such_library",))
        == "ModuleNotFoundError: No module named 'no_such_library'"
    )


def test_a_python_that_its_user_may_not_start_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path))
    assert (
        import_problem(("json",)) == f"{tmp_path} cannot be started: Permission denied"
    )


def test_a_wrong_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_PORT", "99999")
    result = cli("config show")
    assert (result.code, result.err.startswith("Error: PLIMSOLL_PORT: ")) == (1, True)


def test_doctor_suspects_an_address_that_is_not_ours() -> None:
    found = findings(FakeApi(answers={"GET /readyz": {"hello": "world"}}))
    assert found["control plane"].verdict is CheckVerdict.BROKEN
    assert "is this the address of Plimsoll?" in found["control plane"].detail


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hidden@db:5432/x", "postgresql://me:***@db:5432/x"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("postgresql:///x?host=/tmp", "postgresql:///x?host=/tmp"),
    ],
)
def test_passwords_are_masked_in_addresses(url: str, shown: str) -> None:
    assert masked(url) == shown
