"""Bearer tokens: only their hashes are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import AnyRow, token
from app.errors import NotFound

Scope = Literal["viewer", "operator", "admin", "agent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """What is known of a token; never its secret."""

    id: str
    name: str
    scope: Scope
    projects: tuple[str, ...] | None
    """None = every project."""
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


async def add(connection: AsyncConnection, row: TokenRow, sha256: bytes) -> None:
    """Keep a new token by its hash."""
    await connection.execute(
        insert(token).values(
            id=row.id,
            name=row.name,
            sha256=sha256,
            scope=row.scope,
            projects=None if row.projects is None else list(row.projects),
            created_at=row.created_at,
            expires_at=row.expires_at,
        )
    )


async def find(connection: AsyncConnection, sha256: bytes) -> TokenRow | None:
    """The token with that hash, be it expired or revoked; None: there never was one."""
    row = (await connection.execute(select(token).where(token.c.sha256 == sha256))).one_or_none()
    return None if row is None else _row(row)


async def get(connection: AsyncConnection, token_id: str) -> TokenRow:
    """One token. Raises NotFound."""
    row = (await connection.execute(select(token).where(token.c.id == token_id))).one_or_none()
    if row is None:
        raise NotFound(f"there is no token {token_id!r}")
    return _row(row)


async def list_rows(connection: AsyncConnection, *, after: str = "", limit: int | None = None) -> Sequence[TokenRow]:
    """Tokens by id, revoked ones among them."""
    statement = select(token).where(token.c.id > after).order_by(token.c.id).limit(limit)
    return tuple(_row(row) for row in await connection.execute(statement))


async def revoke(connection: AsyncConnection, token_id: str, *, at: datetime) -> None:
    """End a token; once revoked it stays so. Raises NotFound."""
    row = await get(connection, token_id)
    if row.revoked_at is None:
        await connection.execute(update(token).where(token.c.id == token_id).values(revoked_at=at))


async def mark_used(connection: AsyncConnection, token_id: str, *, at: datetime) -> None:
    """Remember when a token was last used."""
    await connection.execute(update(token).where(token.c.id == token_id).values(last_used_at=at))


def _row(row: AnyRow) -> TokenRow:
    return TokenRow(
        id=row.id,
        name=row.name,
        scope=row.scope,
        projects=None if row.projects is None else tuple(row.projects),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
