"""People log in at a real identity provider (Canaille, a process over HTTP); what must not let them in does not."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import pytest
from httpx2 import Response

from app.api.http.sessions import COOKIE, LASTS
from app.web.identity_provider import LoginAttempt
from tests.integration.api_harness import Api, Prepared, service
from tests.integration.identities import come_back, running_identities

pytestmark = pytest.mark.integration

PUBLIC_URL = "http://testserver"
ORIGIN = {"Origin": PUBLIC_URL}
GROUPS = {"search-team": "operator@team-a", "everybody": "viewer"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider for the module."""
    with running_identities(PUBLIC_URL) as url:
        yield url


@contextmanager
def api_with(fleet: Prepared, issuer: str, **settings: object) -> Iterator[Api]:
    """The control plane of that provider."""
    given: dict[str, object] = {
        "public_url": PUBLIC_URL,
        "oidc_issuer": issuer,
        "oidc_client_id": "plimsoll",
        "oidc_client_secret": "plimsoll-secret",
        "oidc_groups": GROUPS,
        **settings,
    }
    with fleet.running_api(**given) as running:
        yield running


@pytest.fixture(scope="module")
def shared(small_fleet: Prepared, issuer: str) -> Iterator[Api]:
    with api_with(small_fleet, issuer) as running:
        yield running


@pytest.fixture
def api(shared: Api) -> Api:
    """To a browser without cookies, of a control plane that others have logged in at."""
    shared.client.cookies.clear()
    return shared


@pytest.fixture
def fresh_api(small_fleet: Prepared, issuer: str) -> Iterator[Api]:
    with api_with(small_fleet, issuer) as running:
        yield running


def begin(api: Api, path: str = "/login/oidc") -> str:
    """The address at the provider to which the browser is sent."""
    answer = api.client.get(path, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def follow(api: Api, address: str) -> Response:
    """What the control plane answers to the one who comes back."""
    assert address.startswith(f"{PUBLIC_URL}/login/oidc/callback?"), address
    return api.client.get(address, follow_redirects=False)


def log_in(api: Api, name: str, path: str = "/login/oidc") -> Response:
    return follow(api, come_back(begin(api, path), name, PUBLIC_URL))


def changed(url: str, **parameters: str) -> str:
    """The address with other parameters."""
    parts = urlsplit(url)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    return urlunsplit(parts._replace(query=urlencode({**query, **parameters})))


def whoami(api: Api) -> Response:
    return api.client.get("/api/v1/auth/whoami")


def test_a_group_opens_a_scope_and_a_project(api: Api) -> None:
    page = log_in(api, "alice")
    assert page.status_code == 200
    assert 'http-equiv="refresh" content="0; url=/services"' in page.text
    me = whoami(api).json()
    assert me["scope"] == "operator"
    assert me["projects"] == ["team-a"]
    assert me["person"] == "alice@example.org (alice)"
    assert api.client.get("/services").status_code == 200
    assert api.client.get("/api/v1/plans").status_code == 403


def test_the_cookies_are_closed_to_scripts_and_secrets(api: Api) -> None:
    there = api.client.get("/login/oidc", follow_redirects=False)
    asked = parse_qs(urlsplit(there.headers["location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{PUBLIC_URL}/login/oidc/callback"]
    assert set(asked["scope"][0].split()) == {"openid", "profile", "email", "groups"}
    assert "HttpOnly" in there.headers["set-cookie"]
    assert "SameSite=lax" in there.headers["set-cookie"]
    page = follow(api, come_back(there.headers["location"], "alice", PUBLIC_URL))
    begun, kept = sorted(page.headers.get_list("set-cookie"))
    assert begun.startswith('plimsoll_login=""')
    assert kept.startswith(f"{COOKIE}=") and "SameSite=strict" in kept
    assert f"Max-Age={int(LASTS.total_seconds())}" in kept


def test_somebody_of_several_groups_chooses(api: Api) -> None:
    page = log_in(api, "bob", "/login/oidc?next=/cost")
    # The highest scope at once, and no hurry past the other one.
    assert "http-equiv" not in page.text
    assert whoami(api).json()["projects"] == ["team-a"]
    assert "Continue as operator of team-a" in page.text
    assert 'href="/login/oidc?as=viewer&amp;next=%2Fcost"' in page.text
    page = log_in(api, "bob", "/login/oidc?as=viewer&next=/cost")
    assert 'content="0; url=/cost"' in page.text
    me = whoami(api).json()
    assert (me["scope"], me["projects"]) == ("viewer", None)


def test_a_scope_that_no_group_gives_cannot_be_chosen(api: Api) -> None:
    log_in(api, "alice", "/login/oidc?as=admin")
    assert whoami(api).json()["scope"] == "operator"


def test_nobody_gets_in_without_a_group_that_is_named(api: Api) -> None:
    page = log_in(api, "carol")
    assert page.status_code == 403
    assert "accounting" in page.text and "PLIMSOLL_OIDC_GROUPS" in page.text
    assert whoami(api).status_code == 401
    denied = [each for each in api.get("events")["items"] if "carol" in each["actor"]]
    assert [each["kind"] for each in denied] == ["AccessDenied"]
    # Of whom the provider says no group, though it was asked for more than the ID token says.
    page = log_in(api, "dave")
    assert page.status_code == 403
    assert "PLIMSOLL_OIDC_GROUPS_CLAIM" in page.text


def test_the_audit_names_the_person(fresh_api: Api) -> None:
    log_in(fresh_api, "bob", "/login/oidc?as=viewer")
    log_in(fresh_api, "alice")
    put = fresh_api.client.put(
        "/api/v1/services/other",
        json=service("other", project="team-a"),
        headers=ORIGIN,
    )
    assert put.status_code == 201
    done = [
        (each["kind"], each["reason"])
        for each in fresh_api.get("events")["items"]
        if each["actor"] == "person/alice@example.org (alice)"
    ]
    assert sorted(done) == [
        ("LoggedIn", "as operator of team-a, through the identity provider"),
        ("ServiceCreated", ""),
    ]


def test_two_logins_of_a_person_are_one_token_that_an_admin_ends(
    fresh_api: Api,
) -> None:
    api = fresh_api
    log_in(api, "alice")
    first = whoami(api).json()["token_id"]
    api.clock.advance(3600.0)
    log_in(api, "alice")
    assert whoami(api).json()["token_id"] == first
    mine = [each for each in api.get("tokens")["items"] if each["person"]]
    assert [each["id"] for each in mine] == [first]
    assert api.call("DELETE", f"tokens/{first}").status_code == 204
    assert whoami(api).status_code == 401
    # The provider decides who may come again.
    log_in(api, "alice")
    assert whoami(api).json()["token_id"] != first


def test_a_login_does_not_become_a_token_that_outlives_it(api: Api) -> None:
    log_in(api, "alice")
    me = whoami(api).json()["token_id"]
    path = f"/api/v1/tokens/{me}/rotate"
    assert api.client.post(path, json={}, headers=ORIGIN).status_code == 409
    assert api.call("POST", f"tokens/{me}/rotate", {}).status_code == 409


def test_an_answer_with_another_state_logs_nobody_in(api: Api) -> None:
    back = come_back(begin(api), "alice", PUBLIC_URL)
    for wrong in (changed(back, state="x" * 43), changed(back, state="ü")):
        begin(api)
        page = follow(api, wrong)
        assert page.status_code == 401 and "log in again" in page.text
    assert whoami(api).status_code == 401


def test_an_answer_with_another_state_does_not_end_a_login_that_goes_on(
    api: Api,
) -> None:
    there = begin(api)
    # Any site can lead a browser here; so can an older tab.
    stray = f"{PUBLIC_URL}/login/oidc/callback?state=stray&error=access_denied"
    assert follow(api, stray).status_code == 401
    assert follow(api, come_back(there, "alice", PUBLIC_URL)).status_code == 200
    assert whoami(api).status_code == 200


def test_an_answer_that_another_browser_asked_for_logs_nobody_in(api: Api) -> None:
    back = come_back(begin(api), "bob", PUBLIC_URL)
    api.client.cookies.clear()
    assert follow(api, back).status_code == 401
    # Nor with a login of its own, whose state somebody saw: the code is bound to the first one's verifier.
    state = parse_qs(urlsplit(begin(api)).query)["state"][0]
    page = follow(api, changed(back, state=state))
    assert page.status_code == 401 and "already used" in page.text
    assert whoami(api).status_code == 401
    # Who it was is not known, but from where.
    denied = api.get("events?kind=AccessDenied&actor=address/10.0.0.7")["items"]
    assert any("not started in this browser" in each["reason"] for each in denied)


def test_a_login_that_the_provider_refuses_is_a_denial_in_our_own_words(
    api: Api,
) -> None:
    state = parse_qs(urlsplit(begin(api)).query)["state"][0]
    said = {"error": "made-up", "error_description": "<b>no</b>"}
    path = f"/login/oidc/callback?{urlencode({'state': state, **said})}"
    page = follow(api, PUBLIC_URL + path)
    assert page.status_code == 401
    assert "made-up: &lt;b&gt;no" in page.text
    denied = api.get("events?kind=AccessDenied&actor=address/10.0.0.7")["items"]
    reasons = {each["reason"] for each in denied}
    assert "the provider's answer was not accepted" in reasons
    assert "made-up" not in str(denied)


def test_an_answer_logs_in_once(api: Api) -> None:
    there = begin(api)
    attempt = api.client.cookies["plimsoll_login"]
    back = come_back(there, "alice", PUBLIC_URL)
    assert follow(api, back).status_code == 200
    api.client.cookies.clear()
    assert follow(api, back).status_code == 401
    # The cookie of the attempt was kept: the provider knows the code as used.
    api.client.cookies.set("plimsoll_login", attempt)
    page = follow(api, back)
    assert page.status_code == 401 and "already used" in page.text
    assert whoami(api).status_code == 401


@pytest.mark.parametrize(
    ("parameter", "told"),
    [("nonce", "nonce"), ("code_challenge", "already used")],
)
def test_a_login_that_was_changed_on_the_way_ends(
    api: Api, parameter: str, told: str
) -> None:
    there = changed(begin(api), **{parameter: "y" * 43})
    page = follow(api, come_back(there, "alice", PUBLIC_URL))
    assert page.status_code == 401 and told in page.text
    assert whoami(api).status_code == 401


def test_an_id_token_without_the_providers_own_signature_is_refused(
    small_fleet: Prepared, issuer: str
) -> None:
    careless = {
        "oidc_client_id": "careless",
        "oidc_client_secret": "careless-secret",
    }
    with api_with(small_fleet, issuer, **careless) as api:
        page = log_in(api, "alice")
        assert page.status_code == 401 and "algorithm" in page.text
        assert whoami(api).status_code == 401


def test_another_providers_answer_logs_nobody_in(api: Api) -> None:
    back = come_back(begin(api), "alice", PUBLIC_URL)
    page = follow(api, changed(back, iss="https://other.example.org/"))
    assert page.status_code == 401 and "another provider" in page.text


def test_a_wrong_client_secret_is_the_operators_to_mend(
    small_fleet: Prepared, issuer: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = "not-the-secret-of-it"
    with api_with(small_fleet, issuer, oidc_client_secret=wrong) as api:
        page = log_in(api, "alice")
        assert page.status_code == 503
        assert "PLIMSOLL_OIDC_CLIENT_SECRET" in page.text
        assert wrong not in page.text + caplog.text


def test_tokens_log_in_while_the_provider_is_away(small_fleet: Prepared) -> None:
    attempt = LoginAttempt.begin("/cost", "")
    back = urlencode({"state": attempt.derived("state"), "code": "of-a-while-ago"})
    # Bound and not listening: nothing answers there, and nothing else comes to.
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        issuer = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with api_with(small_fleet, issuer) as api:
            api.client.cookies.set("plimsoll_login", attempt.cookie)
            for path in ("/login/oidc", f"/login/oidc/callback?{back}"):
                page = api.client.get(path, follow_redirects=False)
                assert page.status_code == 503 and page.headers["retry-after"]
                assert "log in with a token" in page.text
                assert 'name="token"' in page.text
            form = {"token": api.secrets["viewer"], "next": "/fleet"}
            api.client.post("/login", data=form, headers=ORIGIN)
            assert whoami(api).json()["scope"] == "viewer"


def test_who_logs_out_is_led_to_the_providers_logout(api: Api) -> None:
    log_in(api, "alice")
    page = api.client.post("/logout", headers=ORIGIN, follow_redirects=False)
    assert page.status_code == 200
    back = urlencode({"post_logout_redirect_uri": f"{PUBLIC_URL}/login"})
    assert "/oauth/end_session?client_id=plimsoll&amp;" + back in page.text
    assert f'{COOKIE}=""' in page.headers["set-cookie"]
    assert whoami(api).status_code == 401


def test_nobody_is_sent_elsewhere_by_a_cookie_that_is_not_ours(api: Api) -> None:
    there = begin(api)
    attempt = LoginAttempt.parse(api.client.cookies["plimsoll_login"])
    assert attempt is not None
    api.client.cookies.clear()
    forged = replace(attempt, wanted="https://evil.example/")
    api.client.cookies.set("plimsoll_login", forged.cookie)
    page = follow(api, come_back(there, "alice", PUBLIC_URL))
    assert page.status_code == 200 and "evil" not in page.text


@pytest.mark.parametrize(
    # Others that a login must not follow have their test in test_sessions.
    "wanted",
    ["//evil.example", "/\t/evil"],
)
def test_nobody_is_sent_elsewhere(api: Api, wanted: str) -> None:
    page = log_in(api, "alice", f"/login/oidc?{urlencode({'next': wanted})}")
    # A path of ours is no other place.
    assert "evil" not in page.text.replace("/%09/evil", "")


def test_the_login_page_offers_the_provider_only_where_there_is_one(
    api: Api, small_fleet: Prepared
) -> None:
    page = api.client.get("/login?next=/cost").text
    assert f'href="{PUBLIC_URL}/login/oidc?next=/cost"' in page
    with small_fleet.running_api() as other:
        assert "oidc" not in other.client.get("/login").text
        assert other.client.get("/login/oidc").status_code == 404


def test_a_session_ends_after_half_a_day(api: Api) -> None:
    log_in(api, "alice")
    api.clock.advance(LASTS.total_seconds() - 1.0)
    assert whoami(api).status_code == 200
    api.clock.advance(1.0)
    assert whoami(api).status_code == 401


def test_who_came_by_a_token_logs_out_here_alone(api: Api) -> None:
    api.client.post("/login", data={"token": api.secrets["viewer"]}, headers=ORIGIN)
    answer = api.client.post("/logout", headers=ORIGIN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
