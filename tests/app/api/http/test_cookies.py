"""The session's cookie among those that a browser sends."""

import pytest

from app.api.http.sessions import COOKIE, cookie_of


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
    assert cookie_of([(b"cookie", each.encode("latin-1")) for each in sent]) == cookie
