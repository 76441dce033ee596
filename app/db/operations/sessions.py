"""Sessions of people who look at the dashboard, by the SHA-256 of their cookie; the cookie itself never comes here."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import session, token
from app.db.operations import tokens
from app.db.operations.tokens import TokenRow


async def create(
    connection: AsyncConnection,
    sha256: bytes,
    token_id: str,
    *,
    at: datetime,
    until: datetime,
) -> None:
    """Log the holder of a token in."""
    await connection.execute(
        insert(session).values(
            sha256=sha256, token=token_id, created_at=at, expires_at=until
        )
    )


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
    # Through the token itself: a revoked token ends its sessions, too.
    row = await tokens.find(connection, found.sha256)
    return None if row is None else replace(row, expires_at=found.expires_at)


async def end(connection: AsyncConnection, sha256: bytes) -> None:
    """Log out; harmless for a session that is over."""
    await connection.execute(delete(session).where(session.c.sha256 == sha256))
