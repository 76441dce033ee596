"""Forms that are sent to the login page without a token: how much of them is read, and for how long."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from app.web import login
from app.web.login import MAX_FORM_BYTES
from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import Api, Prepared

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    """Listening on a socket."""
    with running_dashboard(small_fleet) as running:
        yield running


def begun_login(api: Api, length: int, sent: bytes, *, is_own: bool = True) -> str:
    """The answer to a form of `length` bytes, of which only these come."""
    address = urlsplit(str(api.client.base_url))
    origin = f"Origin: {api.client.base_url}".rstrip("/") if is_own else "X-None: 1"
    head = (
        f"POST /login HTTP/1.1\r\nHost: {address.netloc}\r\n{origin}\r\n"
        f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), 30.0) as client:
        client.sendall(head.encode() + sent)
        return client.recv(65_536).decode("utf-8", "replace")


def test_a_form_of_another_page_is_refused_before_it_has_come(api: Api) -> None:
    answer = begun_login(api, 4_000_000, b"", is_own=False)
    assert answer.startswith("HTTP/1.1 401 ")


def test_a_long_form_is_refused_as_soon_as_it_is_too_long(api: Api) -> None:
    answer = begun_login(api, 4_000_000, b"a" * (MAX_FORM_BYTES + 1))
    assert answer.startswith("HTTP/1.1 413 ")


def test_a_form_that_does_not_come_is_given_up_and_cut(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "FORM_WITHIN_S", 0.2)
    answer = begun_login(api, 100, b"token=")
    assert answer.startswith("HTTP/1.1 408 ")
    assert "connection: close" in answer.lower()
