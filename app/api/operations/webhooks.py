"""Webhooks: addresses that are sent events. An admin's alone: events tell of every project."""

import dataclasses
import secrets
from datetime import datetime
from functools import partial

from fastapi import Response
from pydantic import Field

from app.api.http.answers import DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Admin
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.objects import (
    Conditions,
    ObjectKind,
    check_name,
    delete,
    list_page,
    read,
    replace,
)
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.db.base.transaction import Connection
from app.db.operations import webhooks
from app.db.operations.webhooks import WebhookRow
from app.manifests import webhooks as webhook_manifests
from app.manifests.parts import Metadata, Name

router = resource_router("webhooks", prefix="/webhooks", route_class=ManifestRoute)

SECRET_BYTES = 32


class WebhookStatusView(View):
    """How a webhook fares."""

    waiting: int = Field(description="Events that wait to be sent, at most 10000")
    last_delivered_at: datetime | None
    last_error: str | None = Field(description="Of the latest attempt, if it failed")
    failed_at: datetime | None = Field(
        description="When an event was dropped, if none was delivered since"
    )
    secret: str | None = Field(
        default=None, description="Only in the answer that created it"
    )


class WebhookView(webhook_manifests.Webhook):
    """A webhook."""

    status: WebhookStatusView


@router.get("", responses=LIST)
async def list_webhooks(context: Admin, paging: Paging) -> Page[WebhookView]:
    """Webhooks by name, never their secrets."""
    async with context.transaction() as connection:
        rows = await webhooks.list_rows(
            connection, after=paging.after, limit=paging.fetch
        )
        page = await list_page(KIND, connection, paging, [_view(row) for row in rows])
    # Of many receivers the address itself is the secret.
    await context.note_access("Read", subject="webhooks")
    return page


@router.get("/{name}", responses=READ)
async def get_webhook(context: Admin, name: Name, response: Response) -> WebhookView:
    """One webhook, without its secret."""
    seen = await read(context, KIND, name, response)
    await context.note_access("Read", subject=f"webhook/{name}")
    return seen


@router.put("/{name}", responses=WRITE | created(WebhookView))
async def put_webhook(
    context: Admin,
    name: Name,
    manifest: webhook_manifests.Webhook,
    conditions: Conditions,
    response: Response,
) -> WebhookView:
    """Create or replace a webhook. `status.secret` is in the answer that creates it and nowhere else."""
    check_name(name, manifest.metadata)
    secret = f"whsec_{secrets.token_urlsafe(SECRET_BYTES)}"
    # The secret is made before it is known whether the webhook is new; an existing one keeps its own.
    kind = dataclasses.replace(KIND, save=partial(_save, secret=secret))
    seen = await replace(
        context, kind, name, manifest, conditions=conditions, response=response
    )
    # 200: it existed, and the secret that was made belongs to none.
    if response.status_code != 201:
        return seen
    return seen.model_copy(
        update={"status": seen.status.model_copy(update={"secret": secret})}
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_webhook(context: Admin, name: Name, conditions: Conditions) -> None:
    """Delete a webhook, and what waits to be sent to it."""
    await delete(context, KIND, name, conditions)


def _view(row: WebhookRow) -> WebhookView:
    return WebhookView(
        metadata=Metadata(name=row.name, created_at=row.created_at),
        spec=webhook_manifests.WebhookSpec(
            url=row.url, kinds=list(row.kinds), enabled=row.is_enabled
        ),
        status=WebhookStatusView(
            waiting=row.waiting,
            last_delivered_at=row.last_delivered_at,
            last_error=row.last_error,
            failed_at=row.failed_at,
        ),
    )


async def _load(_context: Context, connection: Connection, name: str) -> WebhookView:
    return _view(await webhooks.get(connection, name))


async def _save(
    context: Context,
    connection: Connection,
    manifest: webhook_manifests.Webhook,
    *,
    secret: str = "",
) -> None:
    """The secret counts for a new webhook only; the empty one is refused by the table."""
    spec = manifest.spec
    values = {"url": spec.url, "kinds": spec.kinds, "is_enabled": spec.enabled}
    await webhooks.save(
        connection, manifest.metadata.name, values, secret=secret, at=context.now()
    )


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await webhooks.remove(connection, name)


KIND: ObjectKind[WebhookView, webhook_manifests.Webhook] = ObjectKind(
    name="Webhook", notes_labels=True, load=_load, save=_save, remove=_remove
)
