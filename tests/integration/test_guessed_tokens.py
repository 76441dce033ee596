"""Guessed tokens: slowed down, told once, and harmless to those behind the same address."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from httpx2 import Response

from app.api.http.guesses import GUESSES
from app.api.http.parts import LOOK_UP_RULES
from app.db.base.listen import conninfo
from tests.integration.api_harness import Api
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration


def _guess(api: Api, secret: str = "") -> Response:
    guessed = secret or f"plim_admin_{secrets.token_urlsafe(32)}"
    return api.client.get(
        "/api/v1/services", headers={"Authorization": f"Bearer {guessed}"}
    )


def _guess_at_login(api: Api) -> Response:
    form = {"token": f"plim_viewer_{secrets.token_urlsafe(32)}"}
    return api.client.post("/login", data=form, headers={"Origin": "http://testserver"})


def _metrics(api: Api) -> str:
    return str(api.client.get("/metrics").text)


def _episodes(api: Api) -> str:
    (line,) = (
        line
        for line in _metrics(api).splitlines()
        if line.startswith("plimsoll_http_guessing_addresses_total ")
    )
    return line.split()[1]


def test_guessing_is_answered_429_with_a_back_off_that_doubles_and_told_once(
    api: Api,
) -> None:
    guesses = [f"plim_admin_{secrets.token_urlsafe(32)}" for _ in range(GUESSES + 3)]
    answers = [_guess(api, guess) for guess in guesses]
    assert [answer.status_code for answer in answers[: GUESSES - 1]] == [401] * (
        GUESSES - 1
    )
    assert [
        (answer.status_code, answer.headers["Retry-After"])
        for answer in answers[GUESSES - 1 :]
    ] == [(429, "1"), (429, "2"), (429, "4"), (429, "8")]
    (event,) = api.get("events?kind=TokenGuessed")["items"]
    assert event["subject"] == "address/10.0.0.7"
    assert not any(guess in str(event) for guess in guesses)
    assert _episodes(api) == "1.0"


def test_a_valid_token_from_an_address_that_guesses_still_works(api: Api) -> None:
    assert api.call("GET", "services", token="viewer").status_code == 200
    for _ in range(GUESSES):
        last = _guess(api)
    assert last.status_code == 429
    # One that this process has seen, and one that it has not.
    assert api.call("GET", "services", token="viewer").status_code == 200
    assert api.call("GET", "services", token="operator").status_code == 200


def test_one_unknown_token_however_often_it_comes_is_no_guess(api: Api) -> None:
    revoked = f"plim_agent_{secrets.token_urlsafe(32)}"
    assert {_guess(api, revoked).status_code for _ in range(2 * GUESSES)} == {401}
    assert api.get("events?kind=TokenGuessed")["items"] == []


def test_the_login_page_counts_guesses_as_the_api_does(api: Api) -> None:
    answers = [_guess_at_login(api).status_code for _ in range(GUESSES)]
    assert answers == [401] * (GUESSES - 1) + [429]
    assert _guess(api).status_code == 429


@contextmanager
def _tokens_locked(api: Api) -> Iterator[psycopg.Connection]:
    """While it lasts, those who look a token up wait in the database."""
    with psycopg.connect(conninfo(api.url)) as connection:
        connection.execute("LOCK TABLE token IN ACCESS EXCLUSIVE MODE")
        yield connection


def _waiting(connection: psycopg.Connection) -> int:
    found = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE relation = 'token'::regclass AND NOT granted"
    ).fetchone()
    return 0 if found is None else int(found[0])


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine stands still, a guess waits for its look-up, and is remembered."""
    rules = replace(LOOK_UP_RULES, wait_s=PATIENCE_S)
    monkeypatch.setattr("app.api.http.parts.LOOK_UP_RULES", rules)
    monkeypatch.setattr("app.api.http.auth.UNKNOWN_S", PATIENCE_S)


def _waiting_after_a_turn(api: Api, connection: psycopg.Connection) -> int:
    _metrics(api)
    return _waiting(connection)


@pytest.mark.parametrize("guess", [_guess, _guess_at_login])
def test_a_flood_of_unknown_tokens_from_one_address_takes_one_connection(
    api: Api, guess: Callable[[Api], Response]
) -> None:
    count = GUESSES
    # The one that reads the metrics is under way, too.
    all_there = f"plimsoll_http_requests_in_flight {count + 1}.0"
    with ThreadPoolExecutor(count) as threads:
        with _tokens_locked(api) as connection:
            guesses = [threads.submit(guess, api) for _ in range(count)]
            until(lambda: all_there in _metrics(api))
            # They have had turns enough to come to the database, had it been theirs.
            assert max(_waiting_after_a_turn(api, connection) for _ in range(20)) == 1
        # The last of them is one too many.
        assert {each.result().status_code for each in guesses} == {401, 429}


def test_a_token_that_is_unknown_is_not_looked_up_again_at_once(api: Api) -> None:
    guess = f"plim_admin_{secrets.token_urlsafe(32)}"
    assert _guess(api, guess).status_code == 401
    with _tokens_locked(api):
        assert _guess(api, guess).status_code == 401


def test_a_fleet_whose_tokens_ended_together_does_not_guess(api: Api) -> None:
    ended = [api.add_token(f"node-{n}", "agent") for n in range(GUESSES + 3)]
    api.execute("UPDATE token SET revoked_at = now() WHERE name ~ '^node-'")
    assert [_guess(api, secret).status_code for secret in ended] == [401] * len(ended)
    assert _episodes(api) == "0.0"
