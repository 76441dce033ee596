"""The session's cookie among those that a browser sends."""

import pytest

from app.api.http.sessions import COOKIE, HOST_COOKIE, cookie_of


@pytest.mark.parametrize(
    ("sent", "cookie"),
    [
        ((f"{COOKIE}=abc",), "abc"),
        # Programs on other ports of the same host set these.
        ((f'layout={{"left": 1}}; {COOKIE}=abc',), "abc"),
        ((f"name=Jos\u00e9; {COOKIE}=abc; last",), "abc"),
        (("a=1", f"{COOKIE}=abc"), "abc"),
        (("a=1; =; ;",), ""),
        ((), ""),
    ],
)
def test_the_sessions_cookie_is_found_whatever_else_is_sent(
    sent: tuple[str, ...], cookie: str
) -> None:
    assert found("http", *sent) == cookie


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_host_beside_ours_does_not_replace_the_cookie(scheme: str) -> None:
    tossed = f"{COOKIE}=theirs"
    assert found(scheme, f"{HOST_COOKIE}=ours; {tossed}") == "ours"
    assert found("https", tossed) == ""


def found(scheme: str, *sent: str) -> str:
    headers = [(b"cookie", each.encode("latin-1")) for each in sent]
    return cookie_of({"scheme": scheme, "headers": headers})
