"""Tokens: who may call, and what their holders may do."""

from datetime import datetime
from typing import Annotated

from fastapi import Path, Request, Response
from pydantic import AwareDatetime, Field

from app.api.http.answers import LIST, problems
from app.api.http.auth import Admin, Anyone, forget_tokens
from app.api.http.body import resource_router
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.known_names import check_known
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.base.errors import InvalidRequest
from app.db.base.transaction import Connection
from app.db.operations import tokens
from app.db.operations.token_secrets import create
from app.db.operations.tokens import Scope
from app.db.workloads import projects
from app.manifests.parts import Name, Strict


class TokenRequest(Strict):
    """A token that is wanted."""

    name: Name
    scope: Scope
    projects: list[Name] | None = Field(
        default=None, min_length=1, max_length=100, description="Absent: all"
    )
    expires_at: AwareDatetime | None = None


class TokenView(View):
    """What is known of a token."""

    id: str
    name: str
    scope: Scope
    projects: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewTokenView(TokenView):
    """A token that was made just now."""

    secret: str | None = Field(
        description="Shown this once; null when the request is repeated"
    )


class CallerView(View):
    """Who is calling."""

    token_id: str
    name: str
    scope: Scope
    projects: list[str] | None


router = resource_router("tokens")

TokenId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@router.get("/auth/whoami", responses=problems())
async def whoami(context: Anyone) -> CallerView:
    """The caller's own token."""
    caller = context.caller
    return CallerView(
        token_id=caller.id,
        name=caller.name,
        scope=caller.scope,
        projects=None if caller.projects is None else list(caller.projects),
    )


@router.get("/tokens", responses=LIST)
async def list_tokens(context: Admin, paging: Paging) -> Page[TokenView]:
    """Tokens by id, revoked ones too; never their secrets."""
    async with context.transaction() as connection:
        rows = await tokens.list_rows(
            connection, after=paging.after, limit=paging.fetch
        )
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


@router.delete("/tokens/{token_id}", status_code=204, responses=problems(404))
async def revoke_token(context: Admin, token_id: TokenId, request: Request) -> None:
    """End a token. Other processes of the control plane follow within seconds."""
    async with context.transaction() as connection:
        row = await tokens.revoke(connection, token_id, at=context.now())
        await context.audit(
            connection, "TokenRevoked", f"token/{row.id}", before={"name": row.name}
        )
    # This process remembers tokens for some seconds; the caller expects the end at once.
    forget_tokens(request)


async def _create(
    context: Context, connection: Connection, wanted: TokenRequest
) -> NewTokenView:
    # A token that is expired when it is made would only be noticed by its first use.
    if wanted.expires_at is not None and wanted.expires_at <= context.now():
        raise InvalidRequest("is in the past", field="expires_at")
    known = [row.name for row in await projects.list_rows(connection)]
    check_known(wanted.projects or (), known, what="project", field="projects")
    made = await create(
        connection,
        name=wanted.name,
        scope=wanted.scope,
        at=context.now(),
        projects=None if wanted.projects is None else tuple(wanted.projects),
        expires_at=wanted.expires_at,
    )
    await context.audit(
        connection,
        "TokenCreated",
        f"token/{made.row.id}",
        # What was asked for, which has no secret in it.
        after=wanted.model_dump(mode="json"),
    )
    return NewTokenView(
        **TokenView.model_validate(made.row).model_dump(), secret=made.secret
    )


def _without_secret(answer: NewTokenView) -> NewTokenView:
    return answer.model_copy(update={"secret": None})
