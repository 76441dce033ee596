"""How a token follows another: a node's own after its join token, a renewed one after the old.

The caller may have made the new secret itself and sends its hash: a lost answer is then asked for again, and costs
neither a second use of the join token nor a token whose secret is unknown.
"""

from datetime import datetime, timedelta

from app.base.errors import Conflict, Forbidden
from app.db.base.transaction import Connection, lock_object
from app.db.operations import tokens
from app.db.operations.token_secrets import NewToken, TokenOrder, create
from app.db.operations.tokens import TokenRow

ENROLLED_LIFETIME = timedelta(days=30)
"""An agent renews the token that it enrolled for by itself, when half of this is over."""


def vouched_for(node: str, at: datetime) -> TokenRow:
    """A join token of that node in no table, for an agent that its cluster vouches for."""
    name = f"kubernetes/{node}"
    return TokenRow(id="", root=name, name=name, scope="join", node=node, created_at=at)


async def enrol(
    connection: Connection, join: TokenRow, node: str, *, sha256: bytes, at: datetime
) -> NewToken:
    """Make the token of a node's agent, whose secret has that hash; the same one where it was made already.

    A join token that names the node ends the tokens which the node has: it is made for a machine that was replaced.
    Raises Forbidden for a join token that is for another node, used up or ended, Conflict for a node that ever had a
    token.
    """
    if join.node not in (None, node):
        raise Forbidden(f"this token enrols node {join.node!r} only, not {node!r}")
    # Two machines that call themselves the same come one after the other.
    await lock_object(connection, "Node", node)
    made = await tokens.find(connection, sha256)
    if made is not None:
        if made.node != node or not made.is_valid(at):
            raise _hash_is_taken()
        return NewToken(row=made, secret="", is_new=False)
    present = await tokens.of_node(connection, node)
    # Tokens that have ended count, too: else the holder of any join token could take the place of such a node.
    if present and join.node is None:
        raise Conflict(
            f"a node {node!r} was enrolled before; to put a machine in its place, make a token with "
            f"`plimsoll token create --scope join --node {node} NAME`"
        )
    # What a cluster vouches for cannot be used up.
    if join.uses_left is not None and not await tokens.take_use(
        connection, join.id, at=at
    ):
        raise Forbidden(
            "this join token is used up or has ended; `plimsoll token create --scope join` makes another"
        )
    for row in present:
        if row.is_valid(at):
            await tokens.revoke(connection, row.id, at=at)
    order = TokenOrder(
        name=node, scope="agent", node=node, expires_at=at + ENROLLED_LIFETIME
    )
    return await create(connection, order, at=at, sha256=sha256)


async def rotate(
    connection: Connection,
    old: TokenRow,
    *,
    sha256: bytes = b"",
    at: datetime,
    grace: timedelta,
) -> NewToken:
    """A new token of the same family for whatever the old one may, which ends after `grace`.

    It lasts as long as the old one did. `old` is locked. Raises Conflict for a token that has ended or was replaced
    already, for a join token, which has its uses counted, for a person's login, which would become a token that
    outlives it, and for a hash that is another token's.
    """
    if old.person is not None:
        raise Conflict("a login is not rotated; ask an admin for a token")
    if old.scope == "join":
        raise Conflict("a join token is not rotated; make another and revoke this one")
    if not old.is_valid(at):
        raise Conflict("this token has ended; make a new one")
    made = await tokens.find(connection, sha256) if sha256 else None
    if made is not None:
        # Asked for again: the new token must still be this one's successor.
        if made.root != old.root or made.id == old.id or not made.is_valid(at):
            raise _hash_is_taken()
        return NewToken(row=made, secret="", is_new=False)
    # Else each of the two would have successors, of which the holder of the other knows nothing.
    if old.rotated_at is not None:
        raise Conflict(
            "this token was replaced already; rotate the one that replaced it"
        )
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    order = TokenOrder(
        name=old.name,
        scope=old.scope,
        root=old.root,
        projects=old.projects,
        node=old.node,
        expires_at=None if lifetime is None else at + lifetime,
    )
    new = await create(connection, order, at=at, sha256=sha256)
    await tokens.note_rotation(connection, old, new=new.row.id, at=at, until=at + grace)
    return new


def _hash_is_taken() -> Conflict:
    return Conflict("there is a token with this hash already; make another secret")
