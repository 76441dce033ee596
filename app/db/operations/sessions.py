"""Sessions of people who look at the dashboard, by the SHA-256 of their cookie; the cookie itself never comes here."""

import secrets
from dataclasses import replace
from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import session, token
from app.db.base.transaction import lock_object
from app.db.operations import token_secrets, tokens
from app.db.operations.token_secrets import TokenOrder
from app.db.operations.tokens import TokenRow

MAX_PER_TOKEN = 50
"""Browsers in which one token is logged in; one more login by it ends the oldest session."""


async def create(
    connection: AsyncConnection,
    sha256: bytes,
    token_id: str,
    *,
    at: datetime,
    until: datetime,
) -> None:
    """Store the hash of a session's cookie; it ends at `until`, or when MAX_PER_TOKEN newer ones are there."""
    # Two logins at once would delete the same rows, in any order.
    await lock_object(connection, "Session", token_id)
    oldest = (
        select(session.c.sha256)
        .where(session.c.token == token_id)
        .order_by(session.c.created_at.desc(), session.c.sha256)
        .offset(MAX_PER_TOKEN - 1)
    )
    await connection.execute(delete(session).where(session.c.sha256.in_(oldest)))
    await connection.execute(
        insert(session).values(
            sha256=sha256, token=token_id, created_at=at, expires_at=until
        )
    )


async def token_of_person(
    connection: AsyncConnection, wanted: TokenOrder, *, at: datetime
) -> TokenRow:
    """The token of a login at the identity provider; one of an earlier login with the same rights lasts on.

    One for all browsers of a person: it is listed, limited and revoked once.
    """
    # Two first logins at the same moment would make a token each.
    await lock_object(connection, "Person", str(wanted.person))
    projects = None if wanted.projects is None else list(wanted.projects)
    valid = (
        select(token.c.id)
        .where(
            token.c.person == wanted.person,
            token.c.scope == wanted.scope,
            token.c.projects.is_not_distinct_from(projects),
            token.c.revoked_at.is_(None),
            token.c.expires_at > at,
        )
        .order_by(token.c.id)
        # Processes whose clocks differ may have made one each, around the end of an earlier one.
        .limit(1)
    )
    extended = await connection.execute(
        update(token)
        .where(token.c.id.in_(valid))
        .values(expires_at=wanted.expires_at)
        .returning(token.c.id)
    )
    found = extended.scalar_one_or_none()
    if found is not None:
        return await tokens.get(connection, found)
    # A secret with this hash is unknown: only sessions lead to the token.
    sha256 = secrets.token_bytes(32)
    return (await token_secrets.create(connection, wanted, at=at, sha256=sha256)).row


async def find(
    connection: AsyncConnection, sha256: bytes, now: datetime
) -> TokenRow | None:
    """The token that a session stands for, which ends with the session; None where that is not known or over."""
    statement = select(token.c.sha256, session.c.expires_at).join(
        session, session.c.token == token.c.id
    )
    found = (
        await connection.execute(statement.where(session.c.sha256 == sha256))
    ).one_or_none()
    if found is None or found.expires_at <= now:
        return None
    # Through the token itself: a token that is revoked, or replaced by another, ends its sessions, too.
    row = await tokens.find(connection, found.sha256)
    if row is None:
        return None
    ends = [found.expires_at, *([row.expires_at] if row.expires_at else [])]
    return replace(row, expires_at=min(ends))


async def end(connection: AsyncConnection, sha256: bytes) -> None:
    """Log out; harmless for a session that is over."""
    await connection.execute(delete(session).where(session.c.sha256 == sha256))
