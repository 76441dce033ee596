"""Tokens: how a secret is made, what of it is kept, and who a valid one stands for.

A token reads `plim_<scope>_<43 characters>`: 256 random bits, so that its SHA-256 needs no salt and no stretching.
"""

import hashlib
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime

from app.base.scopes import SCOPES, Scope
from app.db.base.transaction import Connection, Engine, transaction
from app.db.operations import events, tokens
from app.db.operations.tokens import TokenRow
from app.store.store import AuditEvent

PATTERN = re.compile(rf"plim_({'|'.join(SCOPES)})_[A-Za-z0-9_-]{{43}}")
SERVICE_ACCOUNT_TOKEN = re.compile(r"ey[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
"""A JSON Web Token, as a Kubernetes cluster gives its Pods."""
# 32 bytes are 43 characters of base64 without padding, as PATTERN has them.
RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token on the one occasion that its secret is known."""

    row: TokenRow
    secret: str
    """Empty where its holder made it."""
    is_new: bool = True
    """False: it was made before, and is asked for again."""


def digest(secret: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode()).digest()


def token_id(sha256: bytes) -> str:
    """The name under which tokens are listed and revoked."""
    return f"tok-{sha256.hex()[:20]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOrder:
    """A token that is wanted; what the fields mean says `TokenRow`."""

    name: str
    scope: Scope
    root: str = ""
    """Empty: it begins a family of its own."""
    projects: tuple[str, ...] | None = None
    node: str | None = None
    uses_left: int | None = None
    person: str | None = None
    expires_at: datetime | None = None


async def create(
    connection: Connection, order: TokenOrder, *, at: datetime, sha256: bytes = b""
) -> NewToken:
    """Make a token and keep its hash; with a `sha256` its holder made the secret, which is then empty here."""
    secret = (
        "" if sha256 else f"plim_{order.scope}_{secrets.token_urlsafe(RANDOM_BYTES)}"
    )
    kept = sha256 or digest(secret)
    # Part of the hash, which everybody may know: the secret has 256 bits, not its id.
    id_ = token_id(kept)
    wanted = {**asdict(order), "root": order.root or id_}
    row = TokenRow(**wanted, id=id_, created_at=at)
    await tokens.create(connection, row, kept)
    return NewToken(row=row, secret=secret)


async def create_locally(
    engine: Engine, order: TokenOrder, *, at: datetime
) -> NewToken:
    """Make a token from the machine that holds the database, e.g. the first admin's; for `up` and `token create`."""
    # The token and its line in the audit in one transaction: no token without a trace.
    async with transaction(engine) as connection:
        made = await create(connection, order, at=at)
        await events.add(
            connection,
            AuditEvent(
                at=at,
                actor="local",
                kind="TokenCreated",
                subject=f"token/{made.row.id}",
                after={
                    "name": order.name,
                    "scope": order.scope,
                    "projects": None
                    if order.projects is None
                    else list(order.projects),
                    "node": order.node,
                },
            ),
        )
    return made
