"""From where a request comes, as guesses are counted."""

import pytest

from app.api.http.guesses import address_of


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.7", 4711), "192.0.2.7"),
        # Of IPv6 a customer has half of the bits to itself.
        (("2001:db8:1:2:3:4:5:6", 4711), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 4711), "2001:db8:1:2::/64"),
        (("::ffff:192.0.2.7", 4711), "192.0.2.7"),
        (("testclient", 4711), "testclient"),
        (None, "unknown"),
    ],
)
def test_an_address_is_what_somebody_cannot_choose_freely(
    client: tuple[str, int] | None, address: str
) -> None:
    scope = {
        "client": client,
        "headers": [(b"x-forwarded-for", b"203.0.113.9")],
    }
    assert address_of(scope) == address
