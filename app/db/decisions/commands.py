"""Commands: what each node was told last, whether its agent follows that, and what changes with a new target."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.digests import digest_of
from agents.base.protocol import NodeCommand
from app.db.base.packing import packed, unpacked
from app.db.base.tables import command, node, target

COMMAND_CHANNEL = "plimsoll_command"
"""Notified with the generation when new commands are there, or with NODE_GONE."""

NODE_GONE = "a node is gone"
"""With its commands: an agent that comes back under its name must not be given the old ones."""

PUSHED = select(func.coalesce(func.max(target.c.generation), 0)).scalar_subquery()
"""Generation of the newest target; the counter in `cluster` is above it after a restore."""

WANTED = (
    select(func.coalesce(func.max(command.c.generation), 0))
    .where(command.c.node == node.c.id)
    .scalar_subquery()
)
"""Generation of a node's newest command, which is older than the newest target where that changed nothing for it."""


async def announce(connection: AsyncConnection, what: str) -> None:
    """Tell all processes that give nodes their commands; sent with the commit, so that they find what it says."""
    await connection.execute(select(func.pg_notify(COMMAND_CHANNEL, what)))


async def newest_command(
    connection: AsyncConnection, name: str, after_generation: int
) -> NodeCommand | None:
    """The newest command for a node if its generation is newer than the one given."""
    found = await connection.execute(
        select(command.c.body)
        .where(command.c.node == name, command.c.generation > after_generation)
        .order_by(command.c.generation.desc())
        .limit(1)
    )
    body = found.scalar_one_or_none()
    return None if body is None else unpacked(body, NodeCommand)


async def load_commands(
    connection: AsyncConnection, generation: int
) -> tuple[NodeCommand, ...]:
    """The commands of one generation, in no order."""
    found = await connection.execute(text(_COMMANDS), {"generation": generation})
    return tuple(unpacked(body, NodeCommand) for body in found.scalars())


# A look-up for each node, which the limit asks for: by generation alone all commands that are kept would be read.
_COMMANDS = """
SELECT c.body FROM node n
CROSS JOIN LATERAL (SELECT body FROM command WHERE node = n.id AND generation = :generation LIMIT 1) AS c
"""


@dataclass(frozen=True, slots=True)
class NewestCommand:
    """The newest command of a node; generation 0: it has none."""

    generation: int = 0
    digest: str = ""
    observed_generation: int = 0
    """The one that its agent says is in force."""

    def says(self, wanted: NodeCommand) -> bool:
        """Whether this is the same but for its number."""
        same = msgspec.structs.replace(wanted, generation=self.generation)
        return self.digest == digest_of(same)

    def is_followed_as(self, wanted: NodeCommand) -> bool:
        """Whether the node's agent follows this one already, under an older number."""
        # Where its agent has not said so, it may hold what another history of the database gave it.
        is_followed = 0 < self.generation == self.observed_generation
        return is_followed and self.says(wanted)


async def load_newest(
    connection: AsyncConnection, names: Sequence[str] | None = None
) -> dict[str, NewestCommand]:
    """The newest command of each node, or of these, by node."""
    wanted = None if names is None else list(names)
    found = await connection.execute(text(_NEWEST), {"names": wanted})
    return {
        row.id: NewestCommand(row.generation or 0, row.digest or "", row.observed)
        for row in found
    }


_NEWEST = """
SELECT n.id, n.observed_generation AS observed, c.generation, c.digest FROM node n
LEFT JOIN LATERAL (SELECT generation, digest FROM command WHERE node = n.id
                   ORDER BY generation DESC LIMIT 1) AS c ON true
WHERE CAST(:names AS text[]) IS NULL OR n.id = ANY(CAST(:names AS text[]))
"""


async def save_commands(
    connection: AsyncConnection,
    commands: Sequence[NodeCommand],
    at: datetime,
    *,
    all_anew: bool,
) -> None:
    """Write what changes for a node: a job that starts on one of them costs no command for each of a fleet.

    `all_anew`: also what does not, since nodes may hold generations of a history that a restore ended.
    """
    newest = await load_newest(connection)
    rows = [
        {
            "node": entry.node,
            "generation": entry.generation,
            "body": packed(entry),
            "digest": digest_of(entry),
            "created_at": at,
        }
        for entry in commands
        # A node that was removed while the plan was made cannot be commanded.
        if entry.node in newest
        and (all_anew or not newest[entry.node].is_followed_as(entry))
    ]
    if rows:
        await connection.execute(insert(command), rows)
