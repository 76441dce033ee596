"""Lines of the audit about agents that only their observations tell: refused commands, names that two agents share."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.protocol import Ack


async def note_refusals(connection: AsyncConnection, acks: Mapping[tuple[str, int], Ack], at: datetime) -> None:
    """One line per refused command and reason; call it before the acknowledgements, by (node, generation), are kept."""
    refused = [(node, ack) for (node, _), ack in sorted(acks.items()) if ack.status == "refused"]
    if refused:
        await connection.execute(
            text(_NOTE_REFUSALS),
            {
                "at": at,
                "nodes": [node for node, _ in refused],
                "generations": [ack.generation for _, ack in refused],
                "details": [ack.detail for _, ack in refused],
            },
        )


async def note_shared_names(connection: AsyncConnection, rivals: Mapping[str, datetime], at: datetime) -> None:
    """One line per node at which an agent still reports although a younger one was first heard at the given time."""
    if rivals:
        nodes = sorted(rivals)
        await connection.execute(
            text(_NOTE_SHARED_NAMES), {"at": at, "nodes": nodes, "since": [rivals[node] for node in nodes]}
        )


_NOTE_REFUSALS = """
INSERT INTO event (at, actor, kind, subject, reason)
SELECT :at, 'node/' || w.node, 'CommandRefused', 'node/' || w.node, format('generation %s: %s', generation, detail)
FROM unnest(CAST(:nodes AS text[]), CAST(:generations AS bigint[]), CAST(:details AS text[]))
     AS w (node, generation, detail)
WHERE NOT EXISTS (SELECT FROM acknowledgement a
                  WHERE (a.node, a.generation, a.status, a.detail) = (w.node, w.generation, 'refused', w.detail))
"""

_NOTE_SHARED_NAMES = """
INSERT INTO event (at, actor, kind, subject, reason)
SELECT :at, 'node/' || w.node, 'NodeNameShared', 'node/' || w.node,
       'two agents report under this name: both carry out its commands, and their counts add up; '
       'give each machine a name of its own by --node'
FROM unnest(CAST(:nodes AS text[]), CAST(:since AS timestamptz[])) AS w (node, since)
WHERE NOT EXISTS (SELECT FROM event e
                  WHERE e.subject = 'node/' || w.node AND e.kind = 'NodeNameShared' AND e.at >= w.since)
"""
