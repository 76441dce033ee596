"""Sessions in a browser: a cookie that stands for the token with which its owner logged in.

The cookie holds 256 random bits of its own, never the token: scripts cannot read it (HttpOnly), other sites' pages do
not send it (SameSite=Strict), and it ends after half a day, with the token, or when its owner logs out. A request that
changes something and carries only the cookie must come from a page of ours: browsers say so in the header Origin.
"""

import secrets
from collections.abc import Iterable
from datetime import timedelta
from urllib.parse import urlsplit

from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope

from app.api.http.parts import ApiParts
from app.base.errors import Forbidden
from app.db.base.transaction import transaction
from app.db.operations import sessions
from app.db.operations.token_secrets import digest
from app.db.operations.tokens import TokenRow

COOKIE = "plimsoll_session"
HOST_COOKIE = f"__Host-{COOKIE}"
"""Over HTTPS. Browsers take a cookie of this prefix from this very host only: no host besides ours can put a session of
its own in the place of a visitor's."""
LASTS = timedelta(hours=12)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = Iterable[tuple[bytes, bytes]]
"""As ASGI gives them: names in lower case."""


def cookie_of(scope: Scope) -> str:
    """The session's cookie; empty: none was sent."""
    return _cookie_of(scope)[1]


def _cookie_of(scope: Scope) -> tuple[str, str]:
    """The name and the value of the session's cookie."""
    # Not by `http.cookies`, which reads nothing behind a cookie that it does not like: servers on other ports of the
    # same host share their cookies with this one.
    cookies = cookie_parser("; ".join(_values(scope["headers"], b"cookie")))
    # Over plain HTTP, too: a proxy in front may speak HTTPS with the browser.
    if scope["scheme"] == "https" or HOST_COOKIE in cookies:
        return HOST_COOKIE, cookies.get(HOST_COOKIE, "")
    return COOKIE, cookies.get(COOKIE, "")


def require_own_page(method: str, headers: Headers) -> None:
    """Raise Forbidden where a change that carries only a cookie does not come from a page of this very address."""
    if method in SAFE_METHODS:
        return
    headers = list(headers)
    origins = _values(headers, b"origin")
    hosts = _values(headers, b"host")
    # Exactly one of each: of two, a proxy might check one while this server reads the other.
    if len(origins) != 1 or len(hosts) != 1 or urlsplit(origins[0]).netloc != hosts[0]:
        raise Forbidden(
            "a change with a session cookie must come from the dashboard itself (header Origin equal to Host); "
            "programs send `Authorization: Bearer plim_...`"
        )


async def log_in(
    parts: ApiParts, caller: TokenRow, response: Response, *, secure: bool
) -> None:
    """Begin a session for the holder of a valid token. `secure`: the browser sends the cookie over HTTPS only."""
    # The database has its hash only, as of tokens: a reader of the table can log in nowhere.
    cookie = secrets.token_urlsafe(32)
    now = parts.clock.now()
    until = (
        now + LASTS
        if caller.expires_at is None
        else min(now + LASTS, caller.expires_at)
    )
    async with transaction(parts.engine) as connection:
        await sessions.create(
            connection, digest(cookie), caller.id, at=now, until=until
        )
    response.set_cookie(
        HOST_COOKIE if secure else COOKIE,
        cookie,
        # The browser forgets it as the server does; a cookie without an age ends with the browser.
        max_age=int((until - now).total_seconds()),
        httponly=True,
        samesite="strict",
        secure=secure,
    )


async def log_out(parts: ApiParts, scope: Scope, response: Response) -> None:
    """End the session of a request; harmless without one."""
    name, cookie = _cookie_of(scope)
    async with transaction(parts.engine) as connection:
        await sessions.end(connection, digest(cookie))
    # Browsers ignore what does not suit the prefix, also where it ends the cookie.
    secure = name == HOST_COOKIE
    response.delete_cookie(name, httponly=True, samesite="strict", secure=secure)


def _values(headers: Headers, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name == wanted]
