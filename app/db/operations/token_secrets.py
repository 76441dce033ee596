"""Tokens: how a secret is made, what of it is kept, and who a valid one stands for.

A token reads `plim_<scope>_<43 characters>`: 256 random bits, so that its SHA-256 needs no salt and no stretching.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from app.db.base.transaction import Connection, Engine, transaction
from app.db.operations import events, tokens
from app.db.operations.tokens import Scope, TokenRow
from app.store.store import AuditEvent

PATTERN = re.compile(r"plim_(viewer|operator|admin|agent)_[A-Za-z0-9_-]{43}")
# 32 bytes are 43 characters of base64 without padding, as PATTERN has them.
RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token on the one occasion that its secret is known."""

    row: TokenRow
    secret: str


def digest(secret: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode()).digest()


async def create(
    connection: Connection,
    *,
    name: str,
    scope: Scope,
    at: datetime,
    projects: tuple[str, ...] | None = None,
    expires_at: datetime | None = None,
) -> NewToken:
    """Make a token and keep its hash. `projects`: the only ones that it may see; None = all."""
    secret = f"plim_{scope}_{secrets.token_urlsafe(RANDOM_BYTES)}"
    row = TokenRow(
        # Part of the hash, which everybody may know: the secret has 256 bits, not its id.
        id=f"tok-{digest(secret).hex()[:20]}",
        name=name,
        scope=scope,
        projects=projects,
        created_at=at,
        expires_at=expires_at,
    )
    await tokens.create(connection, row, digest(secret))
    return NewToken(row=row, secret=secret)


async def create_locally(
    engine: Engine,
    *,
    name: str,
    scope: Scope,
    at: datetime,
    projects: tuple[str, ...] | None = None,
) -> NewToken:
    """Make a token from the machine that holds the database, e.g. the first admin's; for `up` and `token create`."""
    # The token and its line in the audit in one transaction: no token without a trace.
    async with transaction(engine) as connection:
        made = await create(
            connection, name=name, scope=scope, at=at, projects=projects
        )
        await events.add(
            connection,
            AuditEvent(
                at=at,
                actor="local",
                kind="TokenCreated",
                subject=f"token/{made.row.id}",
                after={
                    "name": name,
                    "scope": scope,
                    "projects": None if projects is None else list(projects),
                },
            ),
        )
    return made
