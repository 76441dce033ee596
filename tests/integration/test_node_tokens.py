"""A node's agent is known by a token of its own: who gets one, what it opens, how it is renewed and ended."""

import asyncio
import hashlib
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.base.protocol import Observation, SyncReply
from agents.sync.node_token import RENEW_AGAIN_S, EnrolledTransport, read_kept
from agents.sync.transport import (
    ControlPlaneSilent,
    HttpTransport,
    NotAuthorised,
    Unacceptable,
    read_answer,
)
from app.db.operations.node_tokens import ENROLLED_LIFETIME
from app.db.operations.tokens import LIFETIMES
from tests.integration.api_harness import Api, observation, reading, service

pytestmark = pytest.mark.integration

N9 = msgspec.convert(observation("n9"), Observation)
HALF_A_LIFE_S = ENROLLED_LIFETIME.total_seconds() / 2.0


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _secret(letter: str) -> str:
    """A secret as an agent creates it."""
    return f"plim_agent_{letter * 43}"


def _join_token(api: Api, **fields: object) -> None:
    made = api.post(
        "tokens", {"name": "join", "scope": "join", **fields}, token="admin"
    )
    api.secrets["join"] = made["secret"]


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
    assert api.command(sequence=2)["node"] == "n1"
    other = api.add_token("other", "agent", node="n2")
    body = observation("n1", sequence=10**6, gpus=[])
    for query in ("", "?wait_s=0.0", "?wait_s="):
        answer = api.call("POST", f"nodes/n1/sync{query}", body, token="other")
        assert answer.status_code in (403, 422), query
        assert other not in answer.text
        assert "command" not in answer.json()
    refused = api.call("POST", "nodes/n1/sync", body, token="other").json()["detail"]
    assert refused == "this token belongs to node 'n2', not to 'n1'"
    _join_token(api)
    api.add_token("bound", "admin", ("team-a",))
    for name in ("admin", "operator", "viewer", "join", "bound"):
        assert api.sync(token=name).status_code == 403, name
    # What the stranger said was not noted, and the node goes on.
    assert api.sync(sequence=3).json()["acknowledged"] == 3


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


def test_a_join_token_that_another_process_revoked_enrols_no_more_nodes(
    api: Api,
) -> None:
    _join_token(api, uses=5)
    assert _enrol(api, "n9", "a") == 201
    api.execute("UPDATE token SET revoked_at = now() WHERE scope = 'join'")
    # 403 while this process remembers the token as valid, 401 afterwards.
    assert _enrol(api, "n10", "b") in (401, 403)


def test_an_enrolment_whose_answer_was_lost_is_asked_for_again_and_no_node_is_taken_over(
    api: Api,
) -> None:
    _join_token(api)
    assert [_enrol(api, "n9", "a") for _ in range(3)] == [201, 201, 201]
    # Of the same node and the same secret only.
    assert _enrol(api, "n10", "a") == 409
    assert len(api.get("events?kind=NodeEnrolled")["items"]) == 1
    _join_token(api, uses=5)
    assert _enrol(api, "n9", "b") == 409
    assert api.sync("n9", token="own-a").status_code == 200
    # Nor once its token has expired.
    api.clock.advance((ENROLLED_LIFETIME + timedelta(days=1)).total_seconds())
    _join_token(api)
    body = {"sha256": _sha256(_secret("b"))}
    answer = api.call("POST", "nodes/n9/enrol", body, token="join")
    assert answer.status_code == 409
    assert "--scope join --node n9" in answer.json()["detail"]
    # But by a token for it alone, which puts another machine in its place.
    _join_token(api, node="n9")
    assert _enrol(api, "n10", "c") == 403
    assert _enrol(api, "n9", "b") == 201
    assert api.sync("n9", token="own-a").status_code == 401
    assert api.sync("n9", token="own-b").status_code == 200


def test_of_many_that_enrol_at_once_as_many_get_in_as_the_token_has_uses(
    api: Api,
) -> None:
    _join_token(api, uses=3)
    found = [_enrol(api, f"m{number}", "abcde"[number]) for number in range(5)]
    assert sorted(found) == [201, 201, 201, 403, 403]


def test_fields_that_do_not_go_together_are_refused(api: Api) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"scope": "agent"}, "node"),
        ({"scope": "viewer", "node": "n1"}, "node"),
        ({"scope": "agent", "node": "n1", "projects": ["team-a"]}, "projects"),
        ({"scope": "viewer", "uses": 2}, "uses"),
        ({"scope": "join", "node": "n1", "uses": 2}, "uses"),
        ({"scope": "join", "expires_at": None}, "expires_at"),
    )
    for fields, field in cases:
        body = {"name": "odd", **fields}
        assert api.wrong("POST", "tokens", body)[0] == f"/{field}"


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


class AsgiTransport(HttpTransport):
    """The agent's requests, to the application in this process."""

    def __init__(self, api: Api) -> None:
        super().__init__("http://plimsoll.test", "")
        self.api = api
        self.loses_answers = False

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        answer = self._send(f"nodes/{observation.node}/sync", observation)
        return msgspec.json.decode(answer, type=SyncReply)

    async def post(self, path: str, document: object) -> bytes:
        answer = self._send(path, document)
        if self.loses_answers:
            raise ControlPlaneSilent("the answer is lost")
        return answer

    def _send(self, path: str, document: object) -> bytes:
        answer = self.api.client.post(
            f"/api/v1/{path}",
            content=msgspec.json.encode(document),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
            },
        )
        if answer.status_code == 409:
            raise Unacceptable(answer.text)
        return read_answer(answer.status_code, answer.content, None)


class Node:
    """An agent's way to the control plane, which ends and starts again."""

    def __init__(
        self, api: Api, directory: Path, join_token: str, *, ahead_s: float = 0.0
    ) -> None:
        self.reach = AsgiTransport(api)
        join_token_file = directory / "join"
        join_token_file.write_text(join_token)
        self.transport = EnrolledTransport(
            self.reach,
            node="n9",
            join_token_file=join_token_file if join_token else None,
            directory=directory,
            now_s=lambda: api.clock.now_s() + ahead_s,
        )

    def sync(self) -> SyncReply:
        return asyncio.run(self.transport.exchange(N9, wait_s=0.0))


def enrolled(api: Api, directory: Path, *, answered: bool = True) -> Node:
    """A node that has synced by a join token; where it was not answered it has yet to."""
    _join_token(api)
    node = Node(api, directory, api.secrets["join"])
    node.reach.loses_answers = not answered
    if answered:
        node.sync()
    return node


def newest_token(directory: Path) -> str:
    """The id of the newest one that a node keeps there."""
    return f"tok-{_sha256(read_kept(directory).secrets[0])[:20]}"


def test_an_agent_enrols_once_and_keeps_its_token_where_only_it_can_read(
    api: Api, tmp_path: Path
) -> None:
    node = enrolled(api, tmp_path, answered=False)
    with pytest.raises(ControlPlaneSilent):
        node.sync()
    # The machine crashes, too: it asks again with the same secret.
    Node(api, tmp_path, api.secrets["join"]).sync()
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    # It needs no join token any more.
    assert Node(api, tmp_path, "").sync().acknowledged == 1
    assert api.secrets["join"] not in (tmp_path / "token").read_text()


def test_an_agent_renews_its_token_in_time_also_when_an_answer_is_lost(
    api: Api, tmp_path: Path
) -> None:
    node = enrolled(api, tmp_path)
    first = read_kept(tmp_path).secrets
    api.clock.advance(HALF_A_LIFE_S + 1.0)
    node.reach.loses_answers = True
    node.sync()
    assert read_kept(tmp_path).secrets == first
    node.reach.loses_answers = False
    api.clock.advance(1000.0)
    node.sync()
    assert read_kept(tmp_path).secrets[1:] == first
    # Two lives later it has never been without a token.
    for _ in range(4):
        api.clock.advance(HALF_A_LIFE_S + 1.0)
        assert node.sync().acknowledged == 1


def test_a_revoked_token_ends_a_node_until_it_gets_a_new_join_token(
    api: Api, tmp_path: Path
) -> None:
    node = enrolled(api, tmp_path)
    own = newest_token(tmp_path)
    assert api.call("DELETE", f"tokens/{own}").status_code == 204
    for _ in range(3):
        with pytest.raises(NotAuthorised):
            node.sync()
    _join_token(api, node="n9")
    node = Node(api, tmp_path, api.secrets["join"])
    with pytest.raises(NotAuthorised):
        node.sync()
    node.sync()


def _log_out(api: Api) -> None:
    """Make the process look every token up again, as one that was started again does."""
    own_page = {"Origin": "http://testserver"}
    form = {"token": api.secrets["viewer"]}
    api.client.post("/login", data=form, headers=own_page)
    left = api.client.post("/logout", headers=own_page, follow_redirects=False)
    assert left.status_code == 303


def test_a_control_plane_that_was_restored_knows_the_secret_before_the_newest(
    api: Api, tmp_path: Path
) -> None:
    node = enrolled(api, tmp_path)
    api.clock.advance(HALF_A_LIFE_S + 1.0)
    node.sync()
    # The renewal was after the backup.
    newest = newest_token(tmp_path)
    api.execute("DELETE FROM token WHERE id = :id", id=newest)
    api.execute("UPDATE token SET rotated_at = NULL WHERE node = 'n9'")
    _log_out(api)
    with pytest.raises(NotAuthorised):
        node.sync()
    assert node.sync().acknowledged == 1


def test_an_agent_that_was_cut_off_after_a_renewal_without_an_answer_finds_its_token(
    api: Api, tmp_path: Path
) -> None:
    node = enrolled(api, tmp_path)
    api.clock.advance(HALF_A_LIFE_S + 1.0)
    node.reach.loses_answers = True
    node.sync()
    # Longer than the grace of the old token.
    api.clock.advance(2 * 3600.0)
    node = Node(api, tmp_path, "")
    with pytest.raises(NotAuthorised):
        node.sync()
    for _ in range(3):
        assert node.sync().acknowledged == 1
        api.clock.advance(HALF_A_LIFE_S + 1.0)


def test_a_renewal_that_is_refused_keeps_no_secret_and_is_tried_again_later(
    api: Api, tmp_path: Path
) -> None:
    node = enrolled(api, tmp_path)
    own = newest_token(tmp_path)
    api.clock.advance(HALF_A_LIFE_S + 1.0)
    # Somebody rotates it by hand, and has not given it to the agent yet.
    assert api.call("POST", f"tokens/{own}/rotate", {}).status_code == 201
    assert node.sync().acknowledged == 1
    kept = read_kept(tmp_path)
    assert kept.pending == ""
    assert kept.renew_at_s == api.clock.now_s() + RENEW_AGAIN_S


def test_a_token_that_ends_soon_by_a_clock_that_is_ahead_is_not_renewed_at_every_sync(
    api: Api, tmp_path: Path
) -> None:
    _join_token(api)
    ahead_s = 2.0 * ENROLLED_LIFETIME.total_seconds()
    node = Node(api, tmp_path, api.secrets["join"], ahead_s=ahead_s)
    for _ in range(3):
        node.sync()
    assert api.get("events?kind=TokenRotated")["items"] == []


JWT = "eyJhbGciOiJSUzI1NiJ9.eyJub2RlIjoi{}In0.c2lnbmF0dXJl"
"""As a service account's token looks; what is in it, the cluster judges."""


@pytest.fixture
def in_cluster(api: Api) -> Api:
    """The same API in a cluster, on whose node n9 a Pod of an agent is."""

    async def node_of(token: str) -> str | None:
        return "n9" if token in (JWT.format("first"), JWT.format("later")) else None

    app = api.client.app
    app.state.parts = replace(app.state.parts, node_of_pod=node_of)  # type: ignore[attr-defined]
    return api


def test_a_node_enrols_by_its_agents_service_account(
    in_cluster: Api, tmp_path: Path
) -> None:
    Node(in_cluster, tmp_path, JWT.format("first")).sync()
    (event,) = in_cluster.get("events?subject=node/n9&kind=NodeEnrolled")["items"]
    assert event["actor"] == "token/kubernetes/n9"
    # The node's disk was replaced; its cluster vouches for it as before, and the earlier token ends.
    lost = read_kept(tmp_path).secrets[0]
    (tmp_path / "token").unlink()
    Node(in_cluster, tmp_path, JWT.format("later")).sync()
    in_cluster.secrets["lost"] = lost
    assert in_cluster.call("GET", "auth/whoami", token="lost").status_code == 401


def test_an_agent_enrols_by_the_token_that_kubelet_renewed(
    in_cluster: Api, tmp_path: Path
) -> None:
    node = Node(in_cluster, tmp_path, JWT.format("ended"))
    for token in ("ended", "first"):
        (tmp_path / "join").write_text(JWT.format(token))
        with pytest.raises(NotAuthorised) if token == "ended" else nullcontext():
            node.sync()


def test_a_service_account_enrols_its_own_node_and_does_nothing_else(
    in_cluster: Api,
) -> None:
    in_cluster.secrets["join"] = JWT.format("first")
    assert _enrol(in_cluster, "n1", "a") == 403
    assert in_cluster.sync(token="join").status_code == 403
    assert in_cluster.call("GET", "services", token="join").status_code == 403
    in_cluster.secrets["join"] = JWT.format("forged")
    assert _enrol(in_cluster, "n9", "a") == 401
    assert _enrol(in_cluster, "n1", "a") == 401


def test_many_forged_tokens_are_slowed_down(in_cluster: Api) -> None:
    statuses = []
    for each in range(25):
        in_cluster.secrets["join"] = JWT.format(f"forged{each}")
        statuses.append(_enrol(in_cluster, "n9", "a"))
    assert statuses[0] == 401
    assert statuses[-1] == 429


def test_outside_of_a_cluster_no_service_account_is_known(api: Api) -> None:
    api.secrets["join"] = JWT.format("first")
    assert _enrol(api, "n9", "a") == 401
