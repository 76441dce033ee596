"""The manifest of a webhook."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, field_validator

from app.manifests.parts import Metadata, Strict

EventKind = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z]{1,62}$")]


class WebhookSpec(Strict):
    """Where events are sent, and which."""

    url: str = Field(
        max_length=2000,
        pattern=r"^https?://[\x21-\x7e]+$",
        description="http or https, no credentials",
    )
    kinds: list[EventKind] = Field(
        default_factory=list,
        max_length=100,
        description="Kinds of events, e.g. BudgetSpent; empty: all",
    )
    enabled: bool = Field(
        default=True, description="false: events are neither sent nor queued for it"
    )

    @field_validator("url")
    @classmethod
    def _has_a_host_alone(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            # The port is checked when it is read.
            host = parts.hostname
            _port = parts.port
        except ValueError as error:
            raise ValueError(f"is not a URL: {error}") from error
        if not host:
            raise ValueError("must name a host")
        # Secrets in a URL would show in lists, logs and events; the signature is what proves us.
        if "@" in parts.netloc or parts.fragment:
            raise ValueError("must have neither credentials nor a fragment")
        return url


class Webhook(Strict):
    """An address that is sent events, signed."""

    apiVersion: Literal["plimsoll/v1"] = "plimsoll/v1"  # noqa: N815  the field's name in every manifest
    kind: Literal["Webhook"] = "Webhook"
    metadata: Metadata
    spec: WebhookSpec
