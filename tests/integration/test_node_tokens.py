"""A node's agent is known by a token of its own: who gets one, what it opens, how it is renewed and ended."""

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from app.db.operations.tokens import LIFETIMES
from tests.integration.api_harness import Api, Prepared, observation, reading, service

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        yield running


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _secret(letter: str) -> str:
    """A secret as an agent makes it."""
    return f"plim_agent_{letter * 43}"


def _join_token(api: Api, **fields: object) -> None:
    body = {"name": "join", "scope": "join", **fields}
    answer = api.call("POST", "tokens", body)
    assert answer.status_code == 201, answer.text
    api.secrets["join"] = answer.json()["secret"]


def _enrol(api: Api, node: str, letter: str) -> int:
    body = {"sha256": _sha256(_secret(letter))}
    status = api.call("POST", f"nodes/{node}/enrol", body, token="join").status_code
    if status == 201:
        api.secrets[f"own-{letter}"] = _secret(letter)
    return status


def test_an_agents_token_opens_its_own_node_only(api: Api) -> None:
    api.put("services/chat", service())
    api.sync(services=[reading()])
    api.tick()
    assert api.sync(sequence=2).json()["command"]["node"] == "n1"
    other = api.add_token("other", "agent", node="n2")
    body = observation("n1", sequence=10**6, gpus=[])
    for path in ("nodes/n1/sync", "nodes/n1/sync?wait_s=0.0", "nodes/n1/sync?wait_s="):
        answer = api.call("POST", path, body, token="other")
        assert answer.status_code in (403, 422), path
        assert other not in answer.text
        assert "command" not in answer.json()
    refused = api.call("POST", "nodes/n1/sync", body, token="other").json()["detail"]
    assert refused == "this token belongs to node 'n2', not to 'n1'"
    # What the stranger said was not noted, and the node goes on.
    assert api.sync(sequence=3).json()["acknowledged"] == 3


@pytest.mark.parametrize("scope", ["admin", "operator", "viewer", "join"])
def test_nobody_but_a_nodes_agent_gets_commands(api: Api, scope: str) -> None:
    if scope == "join":
        _join_token(api)
    assert api.sync(token=scope).status_code == 403


def test_an_admins_token_that_is_bound_to_a_project_gets_no_command(api: Api) -> None:
    api.add_token("bound", "admin", ("team-a",))
    assert api.sync(token="bound").status_code == 403


def test_a_join_token_enrols_one_node_which_gets_a_token_of_its_own(api: Api) -> None:
    _join_token(api)
    assert _enrol(api, "n9", "a") == 201
    assert api.get("auth/whoami", token="own-a")["node"] == "n9"
    gpus = observation("n9")["gpus"]
    assert api.sync("n9", token="own-a", gpus=gpus).status_code == 200
    assert api.sync("n1", token="own-a").status_code == 403
    # It was for one node.
    assert _enrol(api, "n10", "b") == 403
    kinds = [event["kind"] for event in api.get("events?subject=node/n9")["items"]]
    assert "NodeEnrolled" in kinds


def test_an_enrolment_whose_answer_was_lost_is_asked_for_again(api: Api) -> None:
    _join_token(api)
    assert [_enrol(api, "n9", "a") for _ in range(3)] == [201, 201, 201]
    # Of the same node and the same secret only.
    assert _enrol(api, "n10", "a") == 409


def test_a_node_that_is_enrolled_is_not_taken_over(api: Api) -> None:
    _join_token(api, uses=5)
    assert _enrol(api, "n9", "a") == 201
    assert _enrol(api, "n9", "b") == 409
    assert api.sync("n9", token="own-a").status_code == 200


def test_a_join_token_for_one_node_puts_another_machine_in_its_place(api: Api) -> None:
    _join_token(api)
    assert _enrol(api, "n9", "a") == 201
    _join_token(api, node="n9")
    assert _enrol(api, "n10", "b") == 403
    assert _enrol(api, "n9", "b") == 201
    assert api.sync("n9", token="own-a").status_code == 401
    assert api.sync("n9", token="own-b").status_code == 200


def test_of_many_that_enrol_at_once_as_many_get_in_as_the_token_has_uses(
    api: Api,
) -> None:
    _join_token(api, uses=3)
    found = [_enrol(api, f"m{number}", "abcde"[number]) for number in range(5)]
    assert sorted(found) == [201, 201, 201, 403, 403]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scope": "agent"}, "node"),
        ({"scope": "viewer", "node": "n1"}, "node"),
        ({"scope": "agent", "node": "n1", "projects": ["team-a"]}, "projects"),
        ({"scope": "viewer", "uses": 2}, "uses"),
        ({"scope": "join", "node": "n1", "uses": 2}, "uses"),
        ({"scope": "join", "expires_at": None}, "expires_at"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    api: Api, fields: dict[str, Any], field: str
) -> None:
    answer = api.call("POST", "tokens", {"name": "odd", **fields})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == f"/{field}"


def test_a_token_expires_unless_somebody_says_never(api: Api) -> None:
    made = api.call("POST", "tokens", {"name": "t", "scope": "viewer"}).json()
    body = {"name": "t", "scope": "viewer", "expires_at": None}
    assert made["expires_at"] is not None
    assert api.call("POST", "tokens", body).json()["expires_at"] is None
    api.secrets["t"] = made["secret"]
    assert api.call("GET", "auth/whoami", token="t").status_code == 200
    api.clock.advance((LIFETIMES["viewer"] + timedelta(seconds=1)).total_seconds())
    assert api.call("GET", "auth/whoami", token="t").status_code == 401


def test_a_rotated_token_may_what_the_old_one_may_and_the_old_one_ends_after_the_grace(
    api: Api,
) -> None:
    body = {"name": "ci", "scope": "viewer", "projects": ["team-a"]}
    old = api.call("POST", "tokens", body).json()
    new = api.call("POST", f"tokens/{old['id']}/rotate", {"grace_s": 60}).json()
    api.secrets |= {"old": old["secret"], "new": new["secret"]}
    assert api.get("auth/whoami", token="new")["projects"] == ["team-a"]
    assert new["id"] != old["id"]
    assert api.call("GET", "auth/whoami", token="old").status_code == 200
    api.clock.advance(61.0)
    assert api.call("GET", "auth/whoami", token="old").status_code == 401
    again = api.call("POST", f"tokens/{old['id']}/rotate", {})
    assert again.status_code == 409


def test_only_admins_rotate_the_tokens_of_others(api: Api) -> None:
    own = api.get("auth/whoami", token="viewer")["token_id"]
    others = api.get("auth/whoami", token="operator")["token_id"]
    for token_id, status in ((others, 403), ("tok-none", 403), (own, 201)):
        answer = api.call("POST", f"tokens/{token_id}/rotate", {}, token="viewer")
        assert answer.status_code == status
