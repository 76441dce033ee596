"""Long parts of plans by their hashes, each stored once: rounds of jobs and plans that are kept have the same again."""

import hashlib
from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


async def save_contents(
    connection: AsyncConnection, bodies: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Keep the bodies of a plan that the same transaction records; returns their hashes, for the columns of its row."""
    named = {name: hashlib.sha256(body).digest() for name, body in bodies.items()}
    # In order, so that two processes that record plans lock them in the same one.
    for sha256, name in sorted((sha256, name) for name, sha256 in named.items()):
        found = await connection.execute(text(_USE), {"sha256": sha256})
        if not found.rowcount:
            values = {"sha256": sha256, "body": bodies[name]}
            await connection.execute(text(_ADD), values)
    return named


# What no plan has is forgotten a day after it was used last (`app.db.maintenance`): never between the two statements.
_USE = "UPDATE plan_content SET used_at = now() WHERE sha256 = :sha256"
_ADD = "INSERT INTO plan_content (sha256, body) VALUES (:sha256, :body) ON CONFLICT DO NOTHING"
