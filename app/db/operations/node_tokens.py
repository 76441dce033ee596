"""How a token follows another: a node's own after its join token, a renewed one after the old.

Whoever asks may have made the new secret itself and sends its hash: a lost answer is then asked for again, and costs
neither a second use of the join token nor a token whose secret nobody knows.
"""

from datetime import datetime, timedelta

from app.base.errors import Conflict, Forbidden
from app.db.base.transaction import Connection, lock_object
from app.db.operations import tokens
from app.db.operations.token_secrets import NewToken, TokenOrder, create
from app.db.operations.tokens import LIFETIMES, TokenRow


async def enrol(
    connection: Connection, join: TokenRow, node: str, *, sha256: bytes, at: datetime
) -> TokenRow:
    """Make the token of a node's agent, whose secret has that hash; the same row where it was made already.

    A join token that names the node ends the tokens which the node has: it is made for a machine that was replaced.
    Raises Forbidden for a join token that is for another node or used up, Conflict for a node that has a token.
    """
    if join.node not in (None, node):
        raise Forbidden(f"this token enrols node {join.node!r} only, not {node!r}")
    # Two machines that call themselves the same come one after the other.
    await lock_object(connection, "Node", node)
    made = await tokens.find(connection, sha256)
    if made is not None:
        return _same(made, node, at)
    present = await tokens.of_node(connection, node, at)
    # Else whoever holds a join token could take the place of any node.
    if present and join.node is None:
        raise Conflict(
            f"node {node!r} is enrolled already; to put another machine in its place, make a token with "
            f"`plimsoll token create --scope join --node {node} NAME`, or revoke {present[0].id}"
        )
    if not await tokens.take_use(connection, join.id):
        raise Forbidden(
            "this join token is used up; `plimsoll token create --scope join` makes another"
        )
    for row in present:
        await tokens.revoke(connection, row.id, at=at)
    order = TokenOrder(
        name=node, scope="agent", node=node, expires_at=at + LIFETIMES["agent"]
    )
    return (await create(connection, order, at=at, sha256=sha256)).row


async def rotate(
    connection: Connection,
    old: TokenRow,
    *,
    sha256: bytes = b"",
    at: datetime,
    grace: timedelta,
) -> NewToken:
    """A new token for whatever the old one may, which ends after `grace`; it lasts as long as the old one did.

    Raises Conflict for a join token, which has its uses counted, and for a hash that is another token's.
    """
    if old.scope == "join":
        raise Conflict("a join token is not rotated; make another and revoke this one")
    made = await tokens.find(connection, sha256) if sha256 else None
    if made is not None:
        return NewToken(row=_same(made, old.node, at), secret="")
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    order = TokenOrder(
        name=old.name,
        scope=old.scope,
        projects=old.projects,
        node=old.node,
        expires_at=None if lifetime is None else at + lifetime,
    )
    new = await create(connection, order, at=at, sha256=sha256)
    await tokens.end_by(connection, old.id, at + grace)
    return new


def _same(made: TokenRow, node: str | None, at: datetime) -> TokenRow:
    """The token of that hash, where it was made for the same node and is valid. Raises Conflict."""
    if made.node != node or made.node is None or not made.is_valid(at):
        raise Conflict("there is a token with this hash already; make another secret")
    return made
