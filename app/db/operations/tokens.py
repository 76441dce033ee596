"""Bearer tokens, by the SHA-256 of their secret; the secret itself never comes here.

Tokens that replaced one another are one family, under the id of its first token, its root. A family has the limits of
one token and ends as a whole. A rotation or revocation locks the root's row first, so that no token joins a family
that is being ended.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.scopes import PERSON_SCOPES, Scope
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, token

TOKEN_CHANNEL = "plimsoll_token"
"""Notified with the root of a family that is rotated or revoked."""

USE_NOTED_EVERY = timedelta(minutes=1)
"""`last_used_at` is written no more often, so that reading does not write."""

LIFETIMES: dict[Scope, timedelta] = {
    "viewer": timedelta(days=90),
    "operator": timedelta(days=90),
    "admin": timedelta(days=90),
    # Made by hand, it is replaced by hand; enrolled nodes have one of `node_tokens.ENROLLED_LIFETIME`.
    "agent": timedelta(days=90),
    "join": timedelta(days=1),
}
"""How long a token is valid where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token without its hash."""

    id: str
    root: str
    """Id of the first token of its family; its own, unless it replaced another one."""
    name: str
    scope: Scope
    projects: tuple[str, ...] | None = None
    """None: every project."""
    node: str | None = None
    """Whose agent's it is; of a join token, the only node that it may enrol. None: any."""
    uses_left: int | None = None
    """Nodes that a join token may still enrol; None for all other scopes."""
    person: str | None = None
    """Who logged in at the identity provider; None: a token that somebody made, with a secret."""
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    rotated_at: datetime | None = None
    """When another token took its place."""

    @property
    def is_persons(self) -> bool:
        """Whether its holder may look at anything; tokens of nodes only report and enrol."""
        return self.scope in PERSON_SCOPES

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
            root=None if row.root == row.id else row.root,
            name=row.name,
            sha256=sha256,
            scope=row.scope,
            projects=None if row.projects is None else list(row.projects),
            node=row.node,
            uses_left=row.uses_left,
            person=row.person,
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


async def get(
    connection: AsyncConnection, token_id: str, *, lock: bool = False
) -> TokenRow:
    """The token of that id, valid or not; `lock`: with its family, until the transaction ends. Raises NotFound."""
    statement = select(*_COLUMNS).where(token.c.id == token_id)
    missing = f"there is no token {token_id!r}"
    row = _row(await one_row(connection, statement, missing=missing))
    if not lock:
        return row
    await connection.execute(
        select(token.c.id).where(token.c.id == row.root).with_for_update()
    )
    # Read again: the last holder of the lock may have rotated or revoked it.
    return _row(await one_row(connection, statement, missing=missing))


async def take_use(connection: AsyncConnection, token_id: str, *, at: datetime) -> bool:
    """Count one use of a join token; False where none is left, or the token has ended."""
    taken = await connection.execute(
        update(token)
        .where(
            token.c.id == token_id,
            token.c.uses_left > 0,
            # The caller may have been let in from memory, seconds after another process ended the token.
            token.c.revoked_at.is_(None),
            or_(token.c.expires_at.is_(None), token.c.expires_at > at),
        )
        .values(uses_left=token.c.uses_left - 1)
    )
    return taken.rowcount == 1


async def of_node(connection: AsyncConnection, node: str) -> tuple[TokenRow, ...]:
    """The tokens of a node's agent, by id; those that have ended, too."""
    statement = (
        select(*_COLUMNS)
        .where(token.c.node == node, token.c.scope == "agent")
        .order_by(token.c.id)
    )
    return tuple(_row(row) for row in await connection.execute(statement))


async def note_rotation(
    connection: AsyncConnection,
    old: TokenRow,
    *,
    new: str,
    at: datetime,
    until: datetime,
) -> None:
    """Let the old token last until then, unless it expires earlier, and end those before it at once.

    `new`: the id of the token that takes its place.
    """
    # It cannot end before it was made, whatever the clocks of two processes say.
    until = max(until, old.created_at + timedelta(microseconds=1))
    await connection.execute(
        update(token)
        .where(token.c.id == old.id)
        .values(rotated_at=at, expires_at=min(old.expires_at or until, until))
    )
    # Two tokens of a family are valid at a time, however often it is rotated.
    await connection.execute(
        update(token)
        .where(
            _is_of(old.root),
            token.c.id.not_in([old.id, new]),
            token.c.revoked_at.is_(None),
        )
        .values(revoked_at=at)
    )
    await _announce(connection, old.root)


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
) -> tuple[str, ...]:
    """End a token's family for ever; the ids of the tokens that ended, none where all had. Raises NotFound."""
    row = await get(connection, token_id, lock=True)
    ended = await connection.execute(
        update(token)
        # The first revocation's time stays.
        .where(_is_of(row.root), token.c.revoked_at.is_(None))
        .values(revoked_at=at)
        .returning(token.c.id)
    )
    await _announce(connection, row.root)
    return tuple(sorted(ended.scalars()))


async def _announce(connection: AsyncConnection, root: str) -> None:
    """Let every process ask for these tokens again as soon as the transaction is committed."""
    await connection.execute(select(func.pg_notify(TOKEN_CHANNEL, root)))


def _is_of(root: str) -> ColumnElement[bool]:
    return or_(token.c.id == root, token.c.root == root)


# The hash stays in the database: nothing that reads tokens needs it, and nothing can print it by mistake.
_COLUMNS = (
    *(column for column in token.c if column.name not in ("sha256", "root")),
    func.coalesce(token.c.root, token.c.id).label("root"),
)


def _row(row: AnyRow) -> TokenRow:
    projects = None if row.projects is None else tuple(row.projects)
    return TokenRow(**{**row._mapping, "projects": projects})
