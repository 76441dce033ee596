"""Tokens: their forms, their ends, and what bound ones see. Each route × each token is in test_api_access."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi.routing import APIRoute

from app.api.application import PREFIX, RESOURCES
from app.api.caches.listening import UNHEARD_S
from app.api.http.auth import REMEMBERED_S, UNKNOWN_S
from tests.integration.api_harness import Api, Method, Prepared, service

pytestmark = pytest.mark.integration

NAMES = {
    "{name}": "default",
    "{service}": "chat",
    "{network}": "resnet50",
    "{gpu_type}": "T4",
    "{plan_id}": "1",
    "{token_id}": "tok-none",
}


def _routes() -> list[tuple[Method, str]]:
    found: list[tuple[Method, str]] = []
    for module in RESOURCES:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            found += [(method, route.path) for method in sorted(route.methods)]
    return found


ROUTES = _routes()
OF_NODES = (
    "/nodes/{name}/sync",
    "/nodes/{name}/enrol",
    "/nodes/{name}/logs/{request_id}",
)
OF_OWN_TOKEN = "/tokens/{token_id}/rotate"
WRITES = [
    route
    for route in ROUTES
    if route[0] != "GET" and route[1] not in (*OF_NODES, OF_OWN_TOKEN)
]


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        running.add_token("a-viewer", "viewer", ("team-a",))
        yield running


def _path(template: str) -> str:
    for name, value in NAMES.items():
        template = template.replace(name, value)
    return PREFIX + template


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "services"), ("PUT", "services/chat"), ("POST", "nodes/n1/sync")],
)
def test_nothing_is_answered_without_a_valid_token(
    api: Api, method: Method, path: str
) -> None:
    for header in (
        None,
        "Bearer ",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer plim_admin_" + "A" * 43,
        f"Bearer {api.secrets['admin']}x",
        f"Bearer {api.secrets['viewer'].replace('viewer', 'admin')}",
    ):
        headers = {} if header is None else {"Authorization": header}
        answer = api.client.request(
            method, f"{PREFIX}/{path}", headers=headers, content=b"not even JSON"
        )
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_body_is_not_read_before_its_callers_scope(api: Api) -> None:
    headers = {
        "Authorization": f"Bearer {api.secrets['a-viewer']}",
        "Content-Type": "application/json",
    }
    for method, template in WRITES:
        # A route that reads it answers 400.
        answer = api.client.request(
            method, _path(template), headers=headers, content=b"not even JSON"
        )
        assert answer.status_code == 403, (method, template)
        assert answer.json()["code"] == "forbidden"


def test_whoami_says_what_the_token_may(api: Api) -> None:
    assert api.get("auth/whoami", token="agent")["scope"] == "agent"
    mine = api.get("auth/whoami", token="a-viewer")
    assert (mine["name"], mine["projects"]) == ("a-viewer", ["team-a"])


def test_a_revoked_token_ends_at_once_here(api: Api) -> None:
    made = api.call("POST", "tokens", {"name": "short", "scope": "viewer"}).json()
    api.secrets["short"] = made["secret"]
    assert api.status("GET", "services", token="short") == 200
    assert api.status("DELETE", f"tokens/{made['id']}") == 204
    assert api.status("GET", "services", token="short") == 401
    assert made["secret"] not in api.call("GET", "tokens").text
    assert made["secret"] not in api.call("GET", "events").text


def test_a_token_ends_when_it_expires(api: Api) -> None:
    now = api.clock.now()
    wanted = {"name": "hour", "scope": "viewer", "expires_at": now.isoformat()}
    assert api.status("POST", "tokens", wanted) == 422
    wanted["expires_at"] = (now + timedelta(seconds=59.0)).isoformat()
    api.secrets["hour"] = api.call("POST", "tokens", wanted).json()["secret"]
    assert api.status("GET", "services", token="hour") == 200
    api.clock.advance(60.0)
    assert api.status("GET", "services", token="hour") == 401


def test_only_hashes_are_remembered_and_not_for_long() -> None:
    assert REMEMBERED_S <= 60.0 and UNKNOWN_S <= 5.0
    # Where changes by other processes are not heard.
    assert UNHEARD_S <= 5.0
