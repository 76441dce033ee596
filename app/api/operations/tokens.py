"""Tokens: who may call, and what their holders may do."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Path, Request, Response
from pydantic import AwareDatetime, Field, StringConstraints

from app.api.http.answers import LIST, problems
from app.api.http.auth import ADMIN, Admin, Anyone, forget_tokens
from app.api.http.body import resource_router
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.known_names import check_known
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.base.errors import InvalidRequest
from app.base.scopes import NODE_SCOPES, Scope
from app.db.base.transaction import Connection
from app.db.operations import tokens
from app.db.operations.node_tokens import rotate
from app.db.operations.token_secrets import NewToken, TokenOrder, create
from app.db.operations.tokens import LIFETIMES
from app.db.workloads import projects
from app.manifests.parts import Name, Strict

OWN_GRACE_S = 3600
"""Longest grace for callers that rotate their own token: a stolen one must not be kept alive for long next to the new
one."""

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a secret, in hexadecimal digits."""


class TokenRequest(Strict):
    """A token that is wanted."""

    name: Name
    scope: Scope
    projects: list[Name] | None = Field(
        default=None, min_length=1, max_length=100, description="Absent: all"
    )
    node: Name | None = Field(
        default=None,
        description="An agent's: its node; a join token's: the only node that it may enrol",
    )
    uses: int = Field(
        default=1, ge=1, le=10_000, description="Nodes that a join token enrols"
    )
    expires_at: AwareDatetime | None = Field(
        default=None,
        description="Absent: after 90 days, a join token after one; null: never",
    )


class RotateRequest(Strict):
    """How a token is replaced by a new one."""

    grace_s: int = Field(
        default=OWN_GRACE_S,
        ge=0,
        le=30 * 86_400,
        description="How long the old one stays valid; at most an hour for one's own token",
    )
    sha256: Hash | None = Field(
        default=None,
        description="Of a secret that the caller made; absent: the server creates it",
    )


class TokenView(View):
    """What is known of a token."""

    id: str
    root: str = Field(
        description="First token of its family: those that replaced one another"
    )
    name: str
    scope: Scope
    projects: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    rotated_at: datetime | None = Field(description="When another one replaced it")
    node: str | None
    uses_left: int | None
    person: str | None = Field(
        default=None, description="Who logged in at the identity provider"
    )


class NewTokenView(TokenView):
    """A token that was made just now."""

    secret: str | None = Field(
        description="Shown only once; null when the request is repeated, or the caller made it"
    )


class CallerView(View):
    """Who is calling."""

    token_id: str
    name: str
    scope: Scope
    projects: list[str] | None
    node: str | None
    person: str | None = Field(
        default=None, description="Who logged in at the identity provider"
    )


router = resource_router("tokens")

TokenId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@router.get("/auth/whoami", responses=problems())
async def get_caller(context: Anyone) -> CallerView:
    """The caller's own token."""
    caller = context.caller
    return CallerView(
        token_id=caller.id,
        name=caller.name,
        scope=caller.scope,
        projects=None if caller.projects is None else list(caller.projects),
        node=caller.node,
        person=caller.person,
    )


@router.get("/tokens", responses=LIST)
async def list_tokens(context: Admin, paging: Paging) -> Page[TokenView]:
    """Tokens by id, revoked ones too; never their secrets."""
    async with context.transaction() as connection:
        rows = await tokens.list_rows(
            connection, after=paging.after, limit=paging.fetch
        )
    # Who may do what is worth knowing to the thief of one of them.
    await context.note_access("Read", subject="tokens")
    return paging.page(rows, view=TokenView.model_validate, key=lambda row: row.id)


@router.post(
    "/tokens",
    status_code=201,
    response_model=NewTokenView,
    responses=problems(400, 409, 413, 415),
)
async def create_token(
    context: Admin, wanted: TokenRequest, request: Request, key: IdempotencyKey = None
) -> Response:
    """Make a token. Its secret is in this answer and nowhere else; a repeated request gets null instead."""

    async def work(connection: Connection) -> NewTokenView:
        return await _create(context, connection, wanted)

    return await once(context, request, key, work, status=201, kept=_without_secret)


@router.post(
    "/tokens/{token_id}/rotate",
    status_code=201,
    response_model=NewTokenView,
    responses=problems(400, 404, 409, 413, 415),
)
async def rotate_token(
    context: Anyone,
    token_id: TokenId,
    wanted: RotateRequest,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Replace a token by a new one that may do the same. Admins rotate any token, everybody else their own."""
    _check_rotation(context, token_id, wanted, request)
    roots: set[str] = set()

    async def work(connection: Connection) -> NewTokenView:
        row = await tokens.get(connection, token_id, lock=True)
        made = await rotate(
            connection,
            row,
            sha256=bytes.fromhex(wanted.sha256 or ""),
            at=context.now(),
            grace=timedelta(seconds=wanted.grace_s),
        )
        # Asked again with the same hash, it is the same rotation.
        if made.is_new:
            await context.audit(
                connection,
                "TokenRotated",
                f"token/{row.id}",
                after={"token": made.row.id, "grace_s": wanted.grace_s},
            )
        roots.add(row.root)
        return _new_view(made)

    answer = await once(context, request, key, work, status=201, kept=_without_secret)
    # The old one ends earlier now, and those before it have ended.
    forget_tokens(request, lambda row: row.root in roots)
    return answer


def _check_rotation(
    context: Context, token_id: str, wanted: RotateRequest, request: Request
) -> None:
    """Raise Forbidden for the tokens of others, InvalidRequest for a long grace of one's own, unless an admin asks."""
    if token_id != context.caller.id:
        ADMIN.check(request)
    elif context.caller.scope != "admin" and wanted.grace_s > OWN_GRACE_S:
        raise InvalidRequest(
            f"your own token can stay valid for at most {OWN_GRACE_S} s; an admin can allow more",
            field="grace_s",
        )


@router.delete("/tokens/{token_id}", status_code=204, responses=problems(404))
async def revoke_token(context: Admin, token_id: TokenId, request: Request) -> None:
    """End a token's family: it, and those that replaced it or that it replaced.

    Other processes of the control plane follow within seconds.
    """
    async with context.transaction() as connection:
        row = await tokens.get(connection, token_id)
        ended = await tokens.revoke(connection, token_id, at=context.now())
        if ended:
            await context.audit(
                connection,
                "TokenRevoked",
                f"token/{row.id}",
                before={"name": row.name, "tokens": list(ended)},
            )
    # This process remembers tokens for some seconds; the caller expects the end at once.
    forget_tokens(request, lambda known: known.root == row.root)


async def _create(
    context: Context, connection: Connection, wanted: TokenRequest
) -> NewTokenView:
    order = order_of(wanted, context.now())
    known = [row.name for row in await projects.list_rows(connection)]
    check_known(wanted.projects or (), known, what="project", field="projects")
    made = await create(connection, order, at=context.now())
    await context.audit(
        connection,
        "TokenCreated",
        f"token/{made.row.id}",
        # What was asked for, which has no secret in it.
        after=wanted.model_dump(mode="json"),
    )
    return _new_view(made)


def order_of(wanted: TokenRequest, now: datetime) -> TokenOrder:
    """The token that is asked for. Raises InvalidRequest where its fields do not go together."""
    _check_node(wanted)
    return TokenOrder(
        name=wanted.name,
        scope=wanted.scope,
        projects=None if wanted.projects is None else tuple(wanted.projects),
        node=wanted.node,
        uses_left=wanted.uses if wanted.scope == "join" else None,
        expires_at=_expiry(wanted, now),
    )


def _expiry(wanted: TokenRequest, now: datetime) -> datetime | None:
    """When it ends: as asked for, else after the time that its scope has. Raises InvalidRequest."""
    if "expires_at" not in wanted.model_fields_set:
        return now + LIFETIMES[wanted.scope]
    # A token that is expired when it is made would only be noticed by its first use.
    if wanted.expires_at is not None and wanted.expires_at <= now:
        raise InvalidRequest("is in the past", field="expires_at")
    # Anyone who finds a forgotten one would be let in as a node.
    if wanted.expires_at is None and wanted.scope == "join":
        raise InvalidRequest("a join token must expire", field="expires_at")
    return wanted.expires_at


def _check_node(wanted: TokenRequest) -> None:
    """Raise InvalidRequest unless node, projects and uses are given where they mean something, and only there."""
    if wanted.scope == "agent" and wanted.node is None:
        raise InvalidRequest(
            "an agent's token belongs to one node: name the node, or create a token of scope join, with which nodes "
            "enrol",
            field="node",
        )
    if wanted.scope not in NODE_SCOPES and wanted.node is not None:
        raise InvalidRequest(
            f"a token of scope {wanted.scope} does not belong to a node", field="node"
        )
    if wanted.scope in NODE_SCOPES and wanted.projects is not None:
        raise InvalidRequest("nodes serve all projects", field="projects")
    if wanted.scope != "join" and wanted.uses != 1:
        raise InvalidRequest("only join tokens have a number of uses", field="uses")
    if wanted.node is not None and wanted.uses != 1:
        raise InvalidRequest(
            "a join token that names a node can be used only once", field="uses"
        )


def _new_view(made: NewToken) -> NewTokenView:
    return NewTokenView(
        **TokenView.model_validate(made.row).model_dump(), secret=made.secret or None
    )


def _without_secret(answer: NewTokenView) -> NewTokenView:
    return answer.model_copy(update={"secret": None})
