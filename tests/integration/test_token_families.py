"""Tokens that replaced one another are one: they end together, and rotating one gains neither time nor limits."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from app.api.caches import listening
from app.db.maintenance import Retention, maintain
from app.db.operations import tokens
from tests.app.runner import cli
from tests.integration.api_harness import Api
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration


def _make(api: Api, **fields: object) -> str:
    """The id of a viewer's token, whose secret is kept under its id."""
    made = api.call("POST", "tokens", {"name": "ci", "scope": "viewer", **fields})
    return _kept(api, made.json())


def _rotate(api: Api, token_id: str, *, by: str = "admin", grace_s: int = 60) -> str:
    """The id of the token that takes its place."""
    path = f"tokens/{token_id}/rotate"
    answer = api.call("POST", path, {"grace_s": grace_s}, token=by)
    assert answer.status_code == 201, answer.text
    return _kept(api, answer.json())


def _kept(api: Api, made: dict[str, Any]) -> str:
    token_id: str = made["id"]
    api.secrets[token_id] = made["secret"]
    return token_id


def _statuses(api: Api, *names: str) -> list[int]:
    return [api.call("GET", "auth/whoami", token=name).status_code for name in names]


@pytest.mark.parametrize("revoked", [0, 1, 2])
def test_whichever_token_of_a_family_is_revoked_all_of_it_ends(
    api: Api, revoked: int
) -> None:
    first = _make(api)
    # A thief rotates what it stole: each new secret is known to it alone.
    second = _rotate(api, first, by=first)
    third = _rotate(api, second, by=second)
    other = _make(api)
    assert _statuses(api, second, third, other) == [200, 200, 200]
    path = f"tokens/{(first, second, third)[revoked]}"
    assert api.call("DELETE", path).status_code == 204
    assert _statuses(api, first, second, third, other) == [401, 401, 401, 200]
    # A repetition ends nothing, and the audit does not say that it did.
    assert api.call("DELETE", path).status_code == 204
    assert len(api.get("events?kind=TokenRevoked")["items"]) == 1


def test_two_tokens_of_a_family_are_valid_at_a_time(api: Api) -> None:
    tokens = [_make(api)]
    for _ in range(3):
        tokens.append(_rotate(api, tokens[-1], by=tokens[-1]))
    assert _statuses(api, *tokens) == [401, 401, 200, 200]
    roots = {
        each["root"] for each in api.get("tokens")["items"] if each["name"] == "ci"
    }
    assert roots == {tokens[0]}


def test_a_token_that_was_replaced_or_has_ended_is_not_rotated(api: Api) -> None:
    first = _make(api)
    second = _rotate(api, first)
    assert api.call("POST", f"tokens/{first}/rotate", {}).status_code == 409
    assert api.call("DELETE", f"tokens/{second}").status_code == 204
    assert api.call("POST", f"tokens/{second}/rotate", {}).status_code == 409


def test_of_many_rotations_of_one_token_at_once_one_is_done(api: Api) -> None:
    first = _make(api)

    def rotate(_: int) -> int:
        return api.call("POST", f"tokens/{first}/rotate", {}).status_code

    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(rotate, range(6))) == [201] + [409] * 5


@pytest.mark.parametrize("scope", ["viewer", "operator", "admin"])
def test_the_command_rotates_its_callers_own_token_and_any_for_an_admin(
    api: Api, scope: str
) -> None:
    own = _make(api, scope="viewer" if scope == "admin" else scope)
    by = "admin" if scope == "admin" else own
    environment = {"PLIMSOLL_TOKEN": api.secrets[by]}
    if scope != "admin":
        other = cli(
            "token", "rotate", "admin", api=api.forward, environment=environment
        )
        assert (other.code, other.out) == (1, "")
        assert "there is no valid token 'admin'" in other.err
    made = cli("token", "rotate", own, api=api.forward, environment=environment)
    assert made.code == 0, made.err
    api.secrets["new"] = made.out.strip()
    assert api.get("auth/whoami", token="new")["name"] == "ci"


def test_whoever_rotates_its_own_token_keeps_the_old_one_an_hour_at_most(
    api: Api,
) -> None:
    first = _make(api)
    body = {"grace_s": 3601}
    answer = api.call("POST", f"tokens/{first}/rotate", body, token=first)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/grace_s"
    assert api.call("POST", f"tokens/{first}/rotate", body).status_code == 201


def test_a_request_that_is_repeated_after_a_rotation_gets_the_first_answer(
    api: Api,
) -> None:
    first = _make(api, scope="operator")

    def cordon(token: str) -> bool:
        path = "nodes/n1/cordon"
        answer = api.call("POST", path, token=token, Idempotency_Key="once")
        assert answer.status_code == 200, answer.text
        return "Idempotency-Replayed" in answer.headers

    assert not cordon(first)
    assert cordon(_rotate(api, first))


def test_a_token_without_grace_ends_at_once_also_when_it_was_made_just_now(
    api: Api,
) -> None:
    first = _make(api)
    second = _rotate(api, first, grace_s=0)
    api.clock.advance(0.001)
    assert _statuses(api, first, second) == [401, 200]


def test_a_session_ends_with_the_grace_of_the_token_by_which_it_began(
    api: Api,
) -> None:
    first = _make(api)
    own_page = {"Origin": "http://testserver"}
    form = {"token": api.secrets[first]}
    api.client.post("/login", data=form, headers=own_page)
    _rotate(api, first)
    assert _statuses(api, first) == [200]
    assert api.call("GET", "auth/whoami", token=None).status_code == 200
    api.clock.advance(61.0)
    assert api.call("GET", "auth/whoami", token=None).status_code == 401


def test_a_rotation_that_is_asked_for_again_is_one_line_of_the_audit(api: Api) -> None:
    own = api.get("auth/whoami", token="agent")["token_id"]
    body = {"sha256": "ab" * 32}
    answers = [
        api.call("POST", f"tokens/{own}/rotate", body, token="agent") for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(api.get("events?kind=TokenRotated")["items"]) == 1


def test_tokens_that_ended_long_ago_are_deleted_but_for_roots_and_newest_of_nodes(
    api: Api,
) -> None:
    ended = _make(api)
    first = _make(api, expires_at=None)
    second = _rotate(api, first)
    api.call("DELETE", f"tokens/{ended}")
    n1 = api.get("auth/whoami", token="agent")["token_id"]
    api.call("DELETE", f"tokens/{n1}")
    api.clock.advance(1.0)
    # Newer than the agent's token, but no sign that the node was ever enrolled.
    _make(api, scope="join", node="n1")
    # A node that is not registered, or not any more, gives its name back.
    api.add_token("gone", "agent", node="n77")
    gone = api.get("auth/whoami", token="gone")["token_id"]
    api.call("DELETE", f"tokens/{gone}")

    later = api.clock.now() + timedelta(days=Retention().tokens_days + 1)
    api.on_engine(lambda engine: maintain(engine, later))
    left = {token_id for (token_id,) in api.execute("SELECT id FROM token")}
    assert {first, second, n1} <= left
    assert left.isdisjoint({ended, gone})


def test_a_token_that_another_process_revokes_ends_here_before_it_is_forgotten(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Unheard, it would go on for as long.
    monkeypatch.setattr(listening, "UNHEARD_S", 10.0 * PATIENCE_S)
    made = _make(api)
    assert _statuses(api, made) == [200]
    now = api.clock.now()
    api.on_connection(lambda connection: tokens.revoke(connection, made, at=now))
    until(lambda: _statuses(api, made) == [401])
