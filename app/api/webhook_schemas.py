"""What the API answers about webhooks."""

from datetime import datetime

from pydantic import Field

from app import webhook_manifests
from app.api.schemas import View


class WebhookStatusView(View):
    """How a webhook fares."""

    waiting: int = Field(description="Events that wait to be sent, at most 10000")
    last_delivered_at: datetime | None
    last_error: str | None = Field(description="Of the newest try, if it failed")
    failed_at: datetime | None = Field(description="When an event was given up, with none delivered since")
    secret: str | None = Field(default=None, description="In the answer that created it, and nowhere else")


class WebhookView(webhook_manifests.Webhook):
    """A webhook."""

    status: WebhookStatusView
