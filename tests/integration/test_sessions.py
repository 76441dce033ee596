"""The dashboard's door: who comes in, what a cookie may do, and when it ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any, cast

import pytest
from fastapi import FastAPI
from httpx2 import Response
from sqlalchemy.ext.asyncio import AsyncEngine

from app.api.http.parts import LOGINS_AT_ONCE
from app.api.http.sessions import COOKIE, HOST_COOKIE, LASTS
from app.db.base.transaction import transaction
from app.db.operations import sessions
from app.db.operations.token_secrets import TokenOrder
from app.web.topics import feed
from app.web.topics.feed import TopicFeed
from tests.integration.api_harness import Api, Prepared, service
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

ORIGIN = {"Origin": "http://testserver"}


@pytest.fixture(scope="module")
def shared(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        yield running


@pytest.fixture
def api(shared: Api) -> Api:
    """To a browser without cookies."""
    shared.client.cookies.clear()
    return shared


def whoami(api: Api, cookie: str | None = None) -> int:
    """The status of that question; with the client's own cookies where none is given."""
    headers = {} if cookie is None else {"Cookie": f"{COOKIE}={cookie}"}
    return api.client.get("/api/v1/auth/whoami", headers=headers).status_code


def log_in(
    api: Api,
    secret: str,
    *,
    wanted: str = "/fleet",
    origin: str | None = ORIGIN["Origin"],
) -> Response:
    return api.client.post(
        "/login",
        data={"token": secret, "next": wanted},
        headers={} if origin is None else {"Origin": origin},
        follow_redirects=False,
    )


def test_over_https_the_cookie_has_the_prefix_that_keeps_other_hosts_from_setting_it(
    api: Api,
) -> None:
    own = "https://testserver"
    form = {"token": api.secrets["viewer"], "next": "/fleet"}
    entered = api.client.post(
        f"{own}/login", data=form, headers={"Origin": own}, follow_redirects=False
    )
    kept = entered.headers["set-cookie"]
    assert kept.startswith(f"{HOST_COOKIE}=")
    assert "; Secure" in kept and "; Path=/" in kept and "Domain" not in kept
    cookie = entered.cookies[HOST_COOKIE]
    api.client.cookies.clear()

    def status(name: str) -> int:
        sent = {"Cookie": f"{name}={cookie}"}
        return int(api.client.get(f"{own}/fleet", headers=sent).status_code)

    assert (status(HOST_COOKIE), status(COOKIE)) == (200, 401)
    left = api.client.post(
        f"{own}/logout",
        headers={"Cookie": f"{HOST_COOKIE}={cookie}", "Origin": own},
        follow_redirects=False,
    )
    gone = left.headers["set-cookie"]
    assert gone.startswith(f'{HOST_COOKIE}=""') and "; Secure" in gone
    assert status(HOST_COOKIE) == 401


def test_a_page_sends_a_stranger_to_the_door_and_back(api: Api) -> None:
    answer = api.client.get(
        "/fleet", headers={"Accept": "text/html"}, follow_redirects=False
    )
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Ffleet"
    assert 'value="/fleet"' in api.client.get(answer.headers["location"]).text
    entered = log_in(api, api.secrets["viewer"])
    assert (entered.status_code, entered.headers["location"]) == (303, "/fleet")
    assert api.client.get("/fleet").status_code == 200


def test_the_cookie_is_closed_to_scripts_and_other_sites(api: Api) -> None:
    kept = log_in(api, api.secrets["viewer"]).headers["set-cookie"]
    assert kept.startswith(f"{COOKIE}=")
    for word in (
        "HttpOnly",
        "SameSite=strict",
        f"Max-Age={int(LASTS.total_seconds())}",
    ):
        assert word in kept
    assert api.secrets["viewer"] not in kept
    assert "Secure" not in kept  # This is plain HTTP; a browser would drop it.


def test_a_page_carries_its_first_data_and_forbids_foreign_scripts(api: Api) -> None:
    log_in(api, api.secrets["admin"])
    page = api.client.get("/fleet")
    assert '"n1/gpu-0"' in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["content-encoding"] == "gzip"
    assert '"n1/gpu-0"' in api.client.get("/", follow_redirects=False).text


@pytest.mark.parametrize("secret", ["", "plim_viewer_", "plim_admin_" + "x" * 43])
def test_nobody_comes_in_without_a_valid_token(api: Api, secret: str) -> None:
    answer = log_in(api, secret)
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", ""]
)
def test_nobody_is_sent_elsewhere(api: Api, wanted: str) -> None:
    assert log_in(api, api.secrets["viewer"], wanted=wanted).headers["location"] == "/"


@pytest.mark.parametrize(
    "origin", [None, "http://evil.example", "null", "http://testserver:81"]
)
def test_a_form_of_another_site_logs_nobody_in(api: Api, origin: str | None) -> None:
    answer = log_in(api, api.secrets["viewer"], origin=origin)
    assert answer.status_code == 401
    assert "Origin" in answer.text


def test_a_cookie_may_read_and_change_what_its_token_may(api: Api) -> None:
    log_in(api, api.secrets["operator"])
    assert api.client.get("/api/v1/auth/whoami").json()["scope"] == "operator"
    for act in ("cordon", "uncordon"):
        answer = api.client.post(f"/api/v1/nodes/n1/{act}", headers=ORIGIN)
        assert answer.status_code == 200
    wanted = {"name": "x", "scope": "admin"}
    answer = api.client.post("/api/v1/tokens", json=wanted, headers=ORIGIN)
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "http://evil.example"}, {"Origin": "null"}]
)
def test_another_sites_page_changes_nothing(api: Api, headers: dict[str, str]) -> None:
    log_in(api, api.secrets["operator"])
    answer = api.client.post("/api/v1/nodes/n1/cordon", headers=headers)
    assert answer.status_code == 403
    assert "Origin" in answer.json()["detail"]
    assert not api.get("nodes/n1")["spec"]["cordoned"]


def test_a_token_is_no_cookie(api: Api) -> None:
    api.get("auth/whoami", token="admin")  # It is remembered now, as a token.
    assert whoami(api, api.secrets["admin"]) == 401


def test_a_session_ends_with_its_time(api: Api) -> None:
    log_in(api, api.secrets["viewer"])
    api.clock.advance((LASTS - timedelta(seconds=1)).total_seconds())
    assert whoami(api) == 200
    api.clock.advance(1.0)
    assert whoami(api) == 401


def test_a_session_ends_with_its_token(api: Api) -> None:
    log_in(api, api.add_token("guest", "viewer"))
    me = api.client.get("/api/v1/auth/whoami").json()["token_id"]
    assert api.call("DELETE", f"tokens/{me}").status_code == 204
    assert whoami(api) == 401


def test_who_logs_out_is_out(api: Api) -> None:
    cookie = log_in(api, api.secrets["viewer"]).cookies[COOKIE]
    answer = api.client.post("/logout", headers=ORIGIN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert whoami(api, cookie) == 401


def test_logins_of_one_person_at_the_same_moment_are_one_token(api: Api) -> None:
    at = api.clock.now()
    order = TokenOrder(
        name="oidc", scope="viewer", person="alice", expires_at=at + LASTS
    )

    async def log_in_often(engine: AsyncEngine) -> list[str]:
        async def once() -> str:
            async with transaction(engine) as connection:
                return (await sessions.token_of_person(connection, order, at=at)).id

        return await asyncio.gather(*(once() for _ in range(6)))

    assert len(set(api.on_engine(log_in_often))) == 1


def test_a_token_has_a_bounded_number_of_sessions_and_the_newest_stay(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PER_TOKEN", 3)
    cookies = []
    for _ in range(sessions.MAX_PER_TOKEN + 2):
        cookies.append(log_in(api, api.secrets["viewer"]).cookies[COOKIE])
        api.clock.advance(1.0)
    other = log_in(api, api.secrets["operator"]).cookies[COOKIE]
    api.client.cookies.clear()
    found = [whoami(api, each) for each in (*cookies, other)]
    assert found == [401, 401, 200, 200, 200, 200]


def test_logins_from_one_address_have_a_pace(small_fleet: Prepared) -> None:
    with small_fleet.running_api() as api:
        parts = cast(FastAPI, api.client.app).state.parts
        assert api.client.portal is not None
        now_s = api.client.portal.call(_loop_time)
        # Spent an hour ahead, so that no stall of this machine earns a login meanwhile.
        parts.logins.take("10.0.0.7", LOGINS_AT_ONCE + 2.0, now_s + 3600.0)
        refused = log_in(api, api.secrets["viewer"])
    assert (refused.status_code, "set-cookie" in refused.headers) == (429, False)
    assert "logins per second" in refused.json()["detail"]


async def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def test_agents_see_no_page(api: Api) -> None:
    assert "can only report" in log_in(api, api.secrets["agent"]).text
    for path in ("/fleet", "/live?topic=header"):
        answer = api.call("GET", path, token="agent")
        assert (answer.status_code, "report" in answer.json()["detail"]) == (403, True)


@pytest.mark.parametrize("is_session", [False, True])
def test_an_open_feed_ends_with_the_token_or_session_that_opened_it(
    api: Api, monkeypatch: pytest.MonkeyPatch, *, is_session: bool
) -> None:
    monkeypatch.setattr(feed, "BEAT_S", 0.05)
    made = api.call("POST", "tokens", {"name": "mine", "scope": "viewer"}).json()
    api.secrets["mine"] = made["secret"]
    sent = {"Authorization": f"Bearer {made['secret']}"}
    if is_session:
        cookie = log_in(api, made["secret"]).cookies[COOKIE]
        sent = {"Cookie": f"{COOKIE}={cookie}"}
    api.client.cookies.clear()
    opened = Event()

    def watched(self: TopicFeed, *given: Any) -> AsyncIterator[bytes]:
        opened.set()
        return stream(self, *given)

    stream = TopicFeed.stream
    monkeypatch.setattr(TopicFeed, "stream", watched)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(api.client.get, "/live?topic=header", headers=sent)
        assert opened.wait(PATIENCE_S)
        if is_session:
            own_page = {**sent, **ORIGIN}
            api.client.post("/logout", headers=own_page, follow_redirects=False)
        else:
            assert api.call("DELETE", f"tokens/{made['id']}").status_code == 204
        assert answer.result(PATIENCE_S).status_code == 200


@pytest.mark.parametrize(
    "query", ["", "topic=nonsense", "&".join(["topic=header"] * 9)]
)
def test_the_feed_says_which_topics_there_are(api: Api, query: str) -> None:
    answer = api.call("GET", f"/live?{query}", token="viewer")
    assert answer.status_code == 422
    assert "fleet" in answer.json()["errors"][0]["detail"]


@pytest.mark.parametrize(
    "topic",
    ["service/made-up", "gpu/n1/gpu-77", "gpu/x", "gpu"],
)
def test_the_feed_loads_nothing_for_names_that_do_not_exist(
    api: Api, topic: str
) -> None:
    answer = api.call("GET", f"/live?topic={topic}", token="viewer")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert topic in answer.json()["detail"]


def test_the_feed_does_not_say_that_another_projects_service_exists(api: Api) -> None:
    api.put("services/hidden", service("hidden", project="team-b"))
    api.add_token("of-team-a", "viewer", ("team-a",))
    answer = api.call("GET", "/live?topic=service/hidden", token="of-team-a")
    assert answer.status_code == 404


def test_files_are_kept_for_good_and_nothing_else_is_served(api: Api) -> None:
    page = api.client.get("/login").text
    css = page.split('rel="stylesheet" href="')[1].split('"')[0]
    answer = api.client.get(css)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]
    for other in (
        "/static/000000000000/plimsoll.css",
        css.replace("plimsoll.css", "../templates/page.html"),
    ):
        assert api.client.get(other).status_code == 404


def test_a_header_goes_before_a_cookie(api: Api) -> None:
    log_in(api, api.secrets["viewer"])
    assert api.get("auth/whoami", token="admin")["scope"] == "admin"
