"""Bearer tokens, by the SHA-256 of their secret; the secret itself never comes here."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, token

Scope = Literal["viewer", "operator", "admin", "agent", "join"]
"""viewer, operator and admin are people's; an agent's token is one node's; a join token makes such ones."""

USE_NOTED_EVERY = timedelta(minutes=1)
"""`last_used_at` is written no more often, so that reading does not write."""

LIFETIMES: dict[Scope, timedelta] = {
    "viewer": timedelta(days=90),
    "operator": timedelta(days=90),
    "admin": timedelta(days=90),
    # Its agent renews it by itself, long before.
    "agent": timedelta(days=30),
    "join": timedelta(days=1),
}
"""How long a token is valid where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token without its hash."""

    id: str
    name: str
    scope: Scope
    projects: tuple[str, ...] | None = None
    """None: every project."""
    node: str | None = None
    """Whose agent's it is; of a join token, the only node that it may enrol. None: any."""
    uses_left: int | None = None
    """Nodes that a join token may still enrol; None for all other scopes."""
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def is_persons(self) -> bool:
        """Whether its holder may look at anything; tokens of nodes only report and enrol."""
        return self.scope not in ("agent", "join")

    def is_valid(self, now: datetime) -> bool:
        """Whether it may be used."""
        return self.revoked_at is None and (
            self.expires_at is None or now < self.expires_at
        )


async def create(connection: AsyncConnection, row: TokenRow, sha256: bytes) -> None:
    """Add a token."""
    await connection.execute(
        insert(token).values(
            id=row.id,
            name=row.name,
            sha256=sha256,
            scope=row.scope,
            projects=None if row.projects is None else list(row.projects),
            node=row.node,
            uses_left=row.uses_left,
            created_at=row.created_at,
            expires_at=row.expires_at,
        )
    )


async def find(connection: AsyncConnection, sha256: bytes) -> TokenRow | None:
    """The token with that hash, valid or not."""
    row = (
        await connection.execute(select(*_COLUMNS).where(token.c.sha256 == sha256))
    ).one_or_none()
    return None if row is None else _row(row)


async def get(connection: AsyncConnection, token_id: str) -> TokenRow:
    """The token of that id, valid or not. Raises NotFound."""
    statement = select(*_COLUMNS).where(token.c.id == token_id)
    missing = f"there is no token {token_id!r}"
    return _row(await one_row(connection, statement, missing=missing))


async def take_use(connection: AsyncConnection, token_id: str) -> bool:
    """Count one use of a join token; False where none is left."""
    taken = await connection.execute(
        update(token)
        .where(token.c.id == token_id, token.c.uses_left > 0)
        .values(uses_left=token.c.uses_left - 1)
    )
    return taken.rowcount == 1


async def of_node(
    connection: AsyncConnection, node: str, now: datetime
) -> tuple[TokenRow, ...]:
    """The valid tokens of a node's agent, by id."""
    statement = (
        select(*_COLUMNS)
        .where(token.c.node == node, token.c.scope == "agent")
        .order_by(token.c.id)
    )
    rows = [_row(row) for row in await connection.execute(statement)]
    return tuple(row for row in rows if row.is_valid(now))


async def end_by(connection: AsyncConnection, token_id: str, at: datetime) -> None:
    """Let a token expire then, unless it does earlier."""
    await connection.execute(
        update(token)
        # The later of two orders must not give a token more time.
        .where(
            token.c.id == token_id,
            or_(token.c.expires_at.is_(None), token.c.expires_at > at),
        )
        .values(expires_at=at)
    )


async def note_use(connection: AsyncConnection, row: TokenRow, now: datetime) -> None:
    """Remember when a token was last used, to the minute."""
    if row.last_used_at is None or now - row.last_used_at >= USE_NOTED_EVERY:
        await connection.execute(
            # To the minute only: every request of every agent would write a row otherwise.
            update(token).where(token.c.id == row.id).values(last_used_at=now)
        )


async def list_rows(
    connection: AsyncConnection, *, after: str = "", limit: int | None = None
) -> tuple[TokenRow, ...]:
    """Tokens by id, revoked ones too."""
    statement = (
        select(*_COLUMNS).where(token.c.id > after).order_by(token.c.id).limit(limit)
    )
    return tuple(_row(row) for row in await connection.execute(statement))


async def revoke(
    connection: AsyncConnection, token_id: str, *, at: datetime
) -> TokenRow:
    """Make a token invalid for ever; harmless for one that is. Raises NotFound."""
    await connection.execute(
        update(token)
        # The first revocation's time stays.
        .where(token.c.id == token_id, token.c.revoked_at.is_(None))
        .values(revoked_at=at)
    )
    return await get(connection, token_id)


# The hash stays in the database: nothing that reads tokens needs it, and nothing can print it by mistake.
_COLUMNS = tuple(column for column in token.c if column.name != "sha256")


def _row(row: AnyRow) -> TokenRow:
    projects = None if row.projects is None else tuple(row.projects)
    return TokenRow(**{**row._mapping, "projects": projects})
