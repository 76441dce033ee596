"""The audit of accesses: who logged in, what was denied to whom, and who read what is worth guarding."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import psycopg
import pytest
from fastapi import FastAPI

from app.api.caches.noted_accesses import (
    NOTED_AGAIN_AFTER,
    UNKNOWN_NOTED,
    UNKNOWN_PERIOD,
)
from app.api.http.parts import ApiParts
from app.db.base.listen import conninfo
from tests.integration.api_harness import Api, Prepared, service

pytestmark = pytest.mark.integration

ORIGIN = {"Origin": "http://testserver"}
HOOK = {
    "apiVersion": "plimsoll/v1",
    "kind": "Webhook",
    "metadata": {"name": "chat"},
    "spec": {"url": "https://hooks.example/T0/B0/key"},
}


@pytest.fixture(scope="module")
def shared(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        running.put("webhooks/chat", HOOK)
        yield running


@pytest.fixture
def api(shared: Api) -> Iterator[Api]:
    """Each test finds the accesses of earlier ones forgotten, and no cookie."""
    shared.clock.advance(NOTED_AGAIN_AFTER.total_seconds())
    yield shared
    shared.client.cookies.clear()


def _events(api: Api, kind: str) -> list[dict[str, Any]]:
    """Those since the test began: the fixture's clock stands still."""
    since = api.clock.now().isoformat().replace("+00:00", "Z")
    found: list[dict[str, Any]] = api.get(f"events?kind={kind}&since={since}")["items"]
    return found


def _log_in(api: Api, token: str) -> int:
    form = {"token": api.secrets[token]}
    return api.client.post(
        "/login", data=form, headers=ORIGIN, follow_redirects=False
    ).status_code


def test_logins_and_logouts_are_in_the_audit_with_their_address(api: Api) -> None:
    assert _log_in(api, "viewer") == 303
    api.client.post("/logout", headers=ORIGIN, follow_redirects=False)
    for kind in ("LoggedIn", "LoggedOut"):
        (event,) = _events(api, kind)
        assert event["actor"] == "token/viewer"
        assert event["subject"] == "address/10.0.0.7"
        assert event["request_id"]


@pytest.mark.parametrize(
    ("token", "method", "path", "operation", "lacks"),
    [
        ("viewer", "GET", "tokens", "GET /tokens", "admin"),
        (
            "viewer",
            "POST",
            "nodes/n1/cordon",
            "POST /nodes/{name}/cordon",
            "operator",
        ),
        ("agent", "GET", "/fleet", "GET (page)", "viewer"),
        ("agent", "POST", "nodes/n2/sync", "POST /nodes/{name}/sync", "'n1'"),
    ],
)
def test_a_denial_names_the_token_the_operation_and_what_was_wanted(
    api: Api, token: str, method: Any, path: str, operation: str, lacks: str
) -> None:
    assert api.status(method, path, token=token) == 403
    (event,) = _events(api, "AccessDenied")
    assert event["actor"] == f"token/{token}"
    assert event["subject"] == f"operation/{operation}"
    assert lacks in event["reason"]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("revoked_at", "the token was revoked"),
        ("expires_at", "the token has expired"),
    ],
)
@pytest.mark.parametrize("is_login", [False, True])
def test_a_token_that_ended_is_a_denial(
    api: Api, column: str, reason: str, *, is_login: bool
) -> None:
    name = f"{column}-{is_login}"
    api.add_token(name, "operator")
    ended = f"{column} = created_at + interval '1 us'"
    api.execute(f"UPDATE token SET {ended} WHERE name = :name", name=name)
    api.clock.advance(1.0)

    def status() -> int:
        if is_login:
            return _log_in(api, name)
        return api.status("GET", "services", token=name)

    assert [status() for _ in range(3)] == [401] * 3
    (event,) = _events(api, "AccessDenied")
    assert event["actor"] == f"token/{name}"
    assert event["subject"] == "address/10.0.0.7"
    assert event["reason"] == reason
    assert event["request_id"]


def test_a_change_that_another_site_makes_a_browser_send_is_a_denial(api: Api) -> None:
    assert _log_in(api, "operator") == 303
    other = {"Origin": "http://other.example"}
    for _ in range(2):
        answer = api.client.post("/api/v1/nodes/n1/cordon", headers=other)
        assert answer.status_code == 403
    (event,) = _events(api, "AccessDenied")
    assert (event["actor"], event["subject"]) == ("token/operator", "address/10.0.0.7")
    assert "must come from the dashboard itself" in event["reason"]


def test_a_login_from_another_site_is_a_denial(api: Api) -> None:
    form = {"token": api.secrets["viewer"]}
    for _ in range(2):
        answer = api.client.post(
            "/login", data=form, headers={"Origin": "http://other.example"}
        )
        assert answer.status_code == 401
    (event,) = _events(api, "AccessDenied")
    assert event["actor"] == "address/10.0.0.7"
    assert event["subject"] == "address/10.0.0.7"
    assert event["request_id"]
    assert api.secrets["viewer"] not in str(event)


@pytest.mark.parametrize(
    ("is_login", "sent", "reason"),
    [
        (False, "plim_admin_" + "x" * 43, "the token is unknown"),
        (True, "plim_viewer_" + "y" * 43, "the token is unknown"),
        (True, "hunter2", "the login form held no well-formed token"),
    ],
)
def test_what_is_no_token_is_a_denial_without_what_was_sent(
    api: Api, sent: str, reason: str, *, is_login: bool
) -> None:
    api.secrets["made up"] = sent

    def status() -> int:
        if is_login:
            return _log_in(api, "made up")
        return api.status("GET", "services", token="made up")

    assert [status() for _ in range(3)] == [401] * 3
    (event,) = _events(api, "AccessDenied")
    assert (event["actor"], event["reason"]) == ("address/10.0.0.7", reason)
    assert sent not in str(event)


def test_an_old_token_hides_nothing_else_that_comes_from_its_address(api: Api) -> None:
    api.secrets["old"] = "plim_agent_" + "z" * 43
    assert api.status("GET", "services", token="old") == 401
    assert api.client.post("/login", data={"token": "x"}).status_code == 401
    assert len(_events(api, "AccessDenied")) == 2


def test_unknown_callers_at_many_addresses_are_so_many_lines(
    small_fleet: Prepared,
) -> None:
    with small_fleet.running_api() as api:
        parts: ApiParts = cast(FastAPI, api.client.app).state.parts
        portal = api.client.portal
        assert portal is not None
        for number in range(UNKNOWN_NOTED + 5):
            scope = {"client": (f"10.1.0.{number}", 1), "plimsoll.request_id": "r"}
            portal.call(parts.note_denial, scope, "the token is unknown")
        path = "events?kind=AccessDenied&limit=500"
        assert len(api.get(path)["items"]) == UNKNOWN_NOTED
        api.clock.advance(UNKNOWN_PERIOD.total_seconds())
        portal.call(parts.note_denial, scope, "the token is unknown")
        assert len(api.get(path)["items"]) == UNKNOWN_NOTED + 1


@pytest.mark.parametrize(
    ("path", "subject"),
    [
        ("tokens", "tokens"),
        ("webhooks", "webhooks"),
        ("webhooks/chat", "webhook/chat"),
        ("reports/cost_by_service_hour/export", "report/cost_by_service_hour"),
    ],
)
def test_a_read_of_what_is_worth_guarding_is_in_the_audit(
    api: Api, path: str, subject: str
) -> None:
    assert api.status("GET", path) == 200
    (event,) = _events(api, "Read")
    assert (event["actor"], event["subject"]) == ("token/admin", subject)
    assert not any(secret in str(event) for secret in api.secrets.values())


def test_other_reads_are_not_in_the_audit(api: Api) -> None:
    api.get("services")
    assert api.status("GET", "webhooks/nobody") == 404
    assert _events(api, "Read") == []


def test_many_equal_denials_are_one_line_in_ten_minutes(api: Api) -> None:
    def refused(_: int) -> int:
        return api.status("GET", "tokens", token="viewer")

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(refused, range(50))) == {403}
    assert len(_events(api, "AccessDenied")) == 1
    # Of another token, and of the same one later, there is one more.
    assert api.status("GET", "tokens", token="operator") == 403
    assert len(_events(api, "AccessDenied")) == 2
    api.clock.advance(NOTED_AGAIN_AFTER.total_seconds())
    assert refused(0) == 403
    assert len(_events(api, "AccessDenied")) == 1


def test_an_audit_that_cannot_be_written_fails_no_request_and_the_next_access_is_noted(
    api: Api,
) -> None:
    def status() -> int:
        return api.status("GET", "tokens", token="viewer")

    with psycopg.connect(conninfo(api.url)) as held:
        held.execute("LOCK TABLE event")
        assert status() == 403
    assert _events(api, "AccessDenied") == []
    assert status() == 403
    assert len(_events(api, "AccessDenied")) == 1


def test_a_refused_login_is_a_denial(api: Api) -> None:
    assert _log_in(api, "agent") == 401
    (event,) = _events(api, "AccessDenied")
    assert (event["actor"], event["subject"]) == (
        "token/agent",
        "operation/POST /login",
    )
    assert api.secrets["agent"] not in str(event)
    assert _events(api, "LoggedIn") == []


def test_a_project_out_of_reach_is_a_denial(api: Api) -> None:
    api.add_token("bound", "operator", ("team-a",))
    answer = api.call("PUT", "services/chat", service(), token="bound", If_Match="*")
    assert answer.status_code == 403
    (event,) = _events(api, "AccessDenied")
    assert event["actor"] == "token/bound"
    assert "team-a" in event["reason"]
