"""Who calls and what they may do. Deny by default: a path that is not listed as public needs a valid token.

Scopes: viewer < operator < admin. Two stand apart: agent, by which one node syncs, and join, by which it gets such a
token. A token that is bound to projects reaches their services and the catalogue, and nothing that would show other
projects' business.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeAlias

from fastapi import Depends, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from app.api.caches import shared_tasks
from app.api.http.errors import TooMany, refusal
from app.api.http.guesses import address_of, named_address
from app.api.http.parts import ApiParts, Context
from app.api.http.sessions import cookie_of, require_own_page
from app.base.errors import Forbidden, PlimsollError, Unauthorised, Unavailable
from app.base.scopes import PERSON_SCOPES, Scope
from app.db.base.transaction import Connection, transaction
from app.db.operations import sessions, tokens
from app.db.operations.node_tokens import vouched_for
from app.db.operations.token_secrets import PATTERN, SERVICE_ACCOUNT_TOKEN, digest
from app.db.operations.tokens import TokenRow

PUBLIC = frozenset(
    {
        *("/livez", "/readyz", "/healthz", "/metrics", "/docs", "/openapi.json"),
        *("/login", "/login/oidc", "/login/oidc/callback"),
    }
)

PUBLIC_PREFIX = "/static/"
"""The dashboard's files, which say nothing of any cluster."""

RANK: dict[Scope, int] = {
    scope: rank for rank, scope in enumerate(PERSON_SCOPES, start=1)
}

REMEMBERED_S = 60.0
"""Syncs would else cost a query each. Every process hears at once of a token that is revoked; where one cannot hear,
because its connection died, it looks again after `UNHEARD_S` (`TokenNews`)."""

UNKNOWN_S = 5.0
"""For this long, unknown or ended tokens, and sessions, are not looked up again: no notice announces their changes.
A token that is made in that time, by somebody who tried it before it was there, waits for it in another process."""

REMEMBERED_TOKENS = 10_000

UNKNOWN_TOKENS = 10_000
"""How many are remembered; a flood of different ones evicts only other unknown ones."""

bearer = HTTPBearer(
    auto_error=False,
    description="A token made by `plimsoll up` or `plimsoll token create`",
)


_Find: TypeAlias = Callable[[Connection, bytes, datetime], Awaitable[TokenRow | None]]
"""(connection, hash of what was sent, now) → the token behind it."""

_Key: TypeAlias = tuple[_Find, bytes]
"""Who may find it, and its hash: a token is no cookie, and a cookie no token."""


@dataclass(slots=True)
class _Remembered:
    row: TokenRow
    asked_s: float
    until_s: float


class Tokens:
    """Finds the token behind a secret or a session's cookie, and remembers it for a moment."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, _Remembered] = OrderedDict()
        self._unknown: OrderedDict[_Key, float] = OrderedDict()
        """Until when they count as unknown without another look."""
        self._forgotten = 0
        """How often something was forgotten: an answer that was asked for before is used once and not kept."""
        self._asking: dict[_Key, asyncio.Task[TokenRow | None]] = {}
        """One question to the database per token, however many requests wait for its answer."""

    async def caller(self, scope: AsgiScope, parts: ApiParts) -> TokenRow:
        """Who calls, by the header or else by the session's cookie. Raises Unauthorised, TooMany, Forbidden."""
        headers = scope["headers"]
        header = Headers(raw=headers).get("authorization")
        # The header wins: a program that sends one means it, and a browser sends none by itself.
        cookie = cookie_of(scope) if header is None else ""
        if not cookie:
            return await self.authenticate(header, scope, parts)
        caller = await self.authenticate_session(cookie, scope, parts)
        # Only where the cookie alone speaks: another site can make a browser send it, but never the header.
        try:
            require_own_page(scope["method"], headers)
        except Forbidden as error:
            await _note_denied(caller, scope, parts, str(error))
            raise
        return caller

    async def authenticate(
        self, authorization: str | None, scope: AsgiScope, parts: ApiParts
    ) -> TokenRow:
        """The caller's token. Raises Unauthorised, TooMany, Unavailable."""
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and SERVICE_ACCOUNT_TOKEN.fullmatch(secret):
            return await self._vouched(secret, scope, parts)
        if scheme.lower() != "bearer" or not PATTERN.fullmatch(secret):
            raise Unauthorised(
                "send `Authorization: Bearer plim_...`; `plimsoll token create` creates one"
            )
        return await self._valid((_find_token, digest(secret)), scope, parts)

    async def authenticate_session(
        self, cookie: str, scope: AsgiScope, parts: ApiParts
    ) -> TokenRow:
        """The token that somebody logged in with. Raises Unauthorised, TooMany."""
        return await self._valid((sessions.find, digest(cookie)), scope, parts)

    def forget(self, is_meant: Callable[[TokenRow], bool]) -> None:
        """Ask the database again for these tokens, and for unknown ones."""
        self._forgotten += 1
        self._unknown.clear()
        # They stay known: else a person who logs out would make all agents wait behind unknown tokens.
        for known in self._known.values():
            if is_meant(known.row):
                known.until_s = 0.0

    async def _vouched(
        self, secret: str, scope: AsgiScope, parts: ApiParts
    ) -> TokenRow:
        """Who may enrol one node and do nothing else, since the cluster says so; asked again for each request."""
        address = address_of(scope)
        # Each request with anything that looks like such a token causes a question to the cluster.
        await parts.guesses.wait(address)
        async with parts.look_ups.taken(address):
            node = await parts.node_of_pod(secret)
        if node is not None:
            return vouched_for(node, parts.clock.now())
        await parts.note_denial(scope, "the service account's token is not an agent's")
        await parts.guesses.note(address, digest(secret))
        raise Unauthorised("this is no token of an agent's service account")

    async def _valid(self, key: _Key, scope: AsgiScope, parts: ApiParts) -> TokenRow:
        address = address_of(scope)
        row = await self._find(key, parts, address)
        if row is not None and row.is_valid(parts.clock.now()):
            return row
        # One that has ended is no guess: a fleet whose tokens ended together would be taken for an attack.
        if row is None:
            # Not of cookies: a page that was left open yesterday asks with its ended session all night.
            if key[0] is _find_token:
                await parts.note_denial(scope, "the token is unknown")
            await parts.guesses.note(address, key[1])
        else:
            ended = "has expired" if row.revoked_at is None else "was revoked"
            await _note_denied(row, scope, parts, f"the token {ended}")
        # The same words for all: a caller learns nothing about a secret that is not valid.
        raise Unauthorised("this token is unknown, revoked or expired")

    async def _find(self, key: _Key, parts: ApiParts, address: str) -> TokenRow | None:
        now_s = asyncio.get_running_loop().time()
        known = self._known.get(key)
        if (
            known is not None
            and known.until_s > now_s
            and not parts.token_news.is_old(known.row.root, known.asked_s)
        ):
            return known.row
        if self._unknown.get(key, 0.0) > now_s:
            return None
        asking = self._asking.get(key)
        if asking is None:
            # One that was valid before is no guess, and does not wait behind those of others at the same address.
            ask = (
                self._ask(key, parts)
                if known
                else self._ask_for_unknown(key, parts, address)
            )
            asking = shared_tasks.begin(ask, "token")
            # One task for all who ask: a fleet that comes back after an outage would else send a query per agent.
            self._asking[key] = asking
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        # Shielded: the others that wait for the same answer get it even if this request is given up.
        return await asyncio.shield(asking)

    async def _ask_for_unknown(
        self, key: _Key, parts: ApiParts, address: str
    ) -> TokenRow | None:
        """Ask for a token that this process does not know, when it is the address's turn. Raises TooMany."""
        await parts.guesses.wait(address)
        async with parts.look_ups.taken(address):
            return await self._ask(key, parts)

    async def _ask(self, key: _Key, parts: ApiParts) -> TokenRow | None:
        find, sha256 = key
        now, forgotten = parts.clock.now(), self._forgotten
        asked_s = asyncio.get_running_loop().time()
        # Tokens that were valid a moment ago are mostly agents', and do not wait behind unknown ones.
        engine = parts.sync_engine if key in self._known else parts.engine
        async with transaction(engine) as connection:
            row = await find(connection, sha256, now)
            if row is not None:
                await tokens.note_use(connection, row, now)
        is_lasting = find is _find_token and row is not None and row.is_valid(now)
        lasts_s = REMEMBERED_S if is_lasting else UNKNOWN_S
        # What was forgotten meanwhile may have changed after the look.
        until_s = asyncio.get_running_loop().time()
        until_s += lasts_s if forgotten == self._forgotten else 0.0
        self._keep(key, row, asked_s=asked_s, until_s=until_s)
        return row

    def _keep(
        self, key: _Key, row: TokenRow | None, *, asked_s: float, until_s: float
    ) -> None:
        if row is None:
            self._known.pop(key, None)
            self._unknown[key] = until_s
            self._unknown.move_to_end(key)
            if len(self._unknown) > UNKNOWN_TOKENS:
                self._unknown.popitem(last=False)
            return
        self._known[key] = _Remembered(row, asked_s, until_s)
        self._known.move_to_end(key)
        # The token that was looked up longest ago goes; if it comes again, it costs one more query.
        if len(self._known) > REMEMBERED_TOKENS:
            self._known.popitem(last=False)


async def _note_denied(
    caller: TokenRow, scope: AsgiScope, parts: ApiParts, reason: str
) -> None:
    request_id = str(scope["plimsoll.request_id"])
    context = Context(parts=parts, caller=caller, request_id=request_id)
    # Named by its address: no route is known yet, and the path is the caller's to choose.
    subject = named_address(address_of(scope))
    await context.note_access("AccessDenied", subject=subject, reason=reason)


class AuthMiddleware:
    """Refuses a request without a valid token before anything else looks at it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tokens = Tokens()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Also for the login page, which is public and looks tokens up as everybody does.
        scope["plimsoll.tokens"] = self._tokens
        # Deny by default: only what is listed goes by without a token, so that a new route is closed until somebody
        # opens it.
        if scope["path"] in PUBLIC or scope["path"].startswith(PUBLIC_PREFIX):
            await self._app(scope, receive, send)
            return
        request_id = str(scope["plimsoll.request_id"])
        parts: ApiParts = scope["app"].state.parts
        try:
            caller = await self._tokens.caller(scope, parts)
        # Answered here, since this layer lies outside the application's own handlers of errors.
        except PlimsollError as error:
            await refusal(error, scope, request_id)(scope, receive, send)
            return
        scope["plimsoll.context"] = Context(
            parts=parts, caller=caller, request_id=request_id
        )
        await self._app(scope, receive, send)


async def _find_token(
    connection: Connection, sha256: bytes, _: datetime
) -> TokenRow | None:
    return await tokens.find(connection, sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Who may call a route: a dependency that gives the context to those, and a rule that a test can read."""

    scopes: tuple[Scope, ...] = ()
    """Named one by one; an agent's scope has no rank, so it is allowed where it is named and nowhere else."""
    min_scope: Scope | None = None
    """This scope and those above."""
    everywhere: bool = False
    """Not for tokens that are bound to projects: what the route says or does concerns the cluster."""

    # Not a plain function: FastAPI would send it to a thread.
    async def __call__(
        self, request: Request, _: Annotated[object, Security(bearer)]
    ) -> Context:
        """The context of a caller who may. Raises Forbidden."""
        return self.check(request)

    def check(self, request: Request) -> Context:
        """The context of a caller who may. Raises Forbidden."""
        context: Context = request.scope["plimsoll.context"]
        self.require(context.caller)
        return context

    def require(self, caller: TokenRow) -> None:
        """Raise Forbidden, which names what is wanted, unless that caller may."""
        if not self._has_scope(caller.scope):
            raise Forbidden(
                f"this needs a token of scope {self._wanted()}; this one is of scope {caller.scope}"
            )
        # Cut down to its projects the answer would be wrong rather than partial: it is about the cluster.
        if self.everywhere and caller.projects is not None:
            raise Forbidden(
                f"this concerns the whole cluster; this token is bound to {', '.join(caller.projects)}"
            )

    def _has_scope(self, scope: Scope) -> bool:
        is_above = (
            self.min_scope is not None and RANK.get(scope, 0) >= RANK[self.min_scope]
        )
        return is_above or scope in self.scopes

    def _wanted(self) -> str:
        above = () if self.min_scope is None else (f"{self.min_scope} or above",)
        return " or ".join((*self.scopes, *above))


def who_may(route: Dependant) -> tuple[Allowed, ...]:
    """The rules that a route's own parameters name; empty: its function takes no context of a caller."""
    return tuple(
        each.call for each in route.dependencies if isinstance(each.call, Allowed)
    )


Anyone = Annotated[Context, Depends(Allowed(scopes=(*PERSON_SCOPES, "agent")))]
"""Any valid token."""

Viewer = Annotated[Context, Depends(Allowed(min_scope="viewer"))]
"""Reads; what it sees is cut down to its projects."""

ClusterViewer = Annotated[
    Context, Depends(Allowed(min_scope="viewer", everywhere=True))
]
"""Reads what concerns all projects at once."""

Operator = Annotated[Context, Depends(Allowed(min_scope="operator"))]
"""Writes services of its projects."""

ClusterOperator = Annotated[
    Context, Depends(Allowed(min_scope="operator", everywhere=True))
]
"""Runs the cluster: approves, pauses, cordons."""

ADMIN = Allowed(min_scope="admin", everywhere=True)

Admin = Annotated[Context, Depends(ADMIN)]
"""Changes the catalogue, the policy and who may do what."""

AGENT = Allowed(scopes=("agent",))

Agent = Annotated[Context, Depends(AGENT)]
"""A node's agent; `Context.require_node` says whose."""

Joiner = Annotated[Context, Depends(Allowed(scopes=("join",)))]
"""A node that is to be enrolled."""


def forget_tokens(
    request: Request, is_meant: Callable[[TokenRow], bool] = lambda _: True
) -> None:
    """Let this process notice at once that these tokens changed; others hear of it."""
    known: Tokens = request.scope["plimsoll.tokens"]
    known.forget(is_meant)


async def is_still_valid(request: Request) -> bool:
    """Whether the caller of a request that was let in would still be; for answers that take minutes."""
    known: Tokens = request.scope["plimsoll.tokens"]
    try:
        await known.caller(request.scope, request.app.state.parts)
    # A token that was valid is refused as one of too many only when it is not there any more.
    except (Unauthorised, TooMany):
        return False
    # The database does not answer: who was let in stays.
    except Unavailable:
        return True
    return True
