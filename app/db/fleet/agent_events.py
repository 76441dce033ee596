"""Lines of the audit that only agents' observations tell: refused commands and shared names."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import Ack
from app.db.base.rows import all_rows
from app.db.operations.events import add_limited
from app.store.event_limits import LimitedEvents
from app.store.store import AuditEvent

MAX_REFUSALS = 5
"""Lines of the audit for one command; a node that refuses it for one reason after the other says nothing new."""


async def note_refusals(
    connection: AsyncConnection,
    acks: Mapping[tuple[str, int], Ack],
    at: datetime,
    limited: LimitedEvents,
) -> None:
    """One line per refused command and reason; call it before the acknowledgements, by (node, generation), are kept.

    Of commands that were made for the node only, and MAX_REFUSALS of each: reasons are the node's own text.
    """
    refused = [
        (node, ack)
        for (node, _), ack in sorted(acks.items())
        if ack.status == "refused"
    ]
    if refused:
        found = await all_rows(
            connection,
            _NEW_REFUSALS,
            nodes=[node for node, _ in refused],
            generations=[ack.generation for _, ack in refused],
            details=[ack.detail for _, ack in refused],
        )
        lines = [
            agent_line(row.node, "CommandRefused", row.reason, at) for row in found
        ]
        await add_limited(connection, lines, limited)


async def note_shared_names(
    connection: AsyncConnection,
    rivals: Mapping[str, datetime],
    at: datetime,
    limited: LimitedEvents,
) -> None:
    """One line per node at which an agent still reports although a younger one was first heard at the given time."""
    if rivals:
        nodes = sorted(rivals)
        since = [rivals[node] for node in nodes]
        found = await all_rows(connection, _NEWLY_SHARED, nodes=nodes, since=since)
        lines = [agent_line(row.node, "NodeNameShared", _SHARED, at) for row in found]
        await add_limited(connection, lines, limited)


def agent_line(node: str, kind: str, reason: str, at: datetime) -> AuditEvent:
    """What a node's agent has told, as a line of the audit."""
    name = f"node/{node}"
    return AuditEvent(at=at, actor=name, kind=kind, subject=name, reason=reason)


# Agents repeat an acknowledgement until it arrived; the same refusal for the same reason is one event. Counted from an
# hour before the command: the clocks of its maker and of the event's writer may differ.
_NEW_REFUSALS = f"""
SELECT w.node, format('generation %s: %s', generation, detail) AS reason
FROM unnest(CAST(:nodes AS text[]), CAST(:generations AS bigint[]), CAST(:details AS text[]))
     AS w (node, generation, detail)
JOIN command c USING (node, generation)
WHERE NOT EXISTS (SELECT FROM acknowledgement a
                  WHERE (a.node, a.generation, a.status, a.detail) = (w.node, w.generation, 'refused', w.detail))
  AND {MAX_REFUSALS} > (SELECT count(*) FROM event e
                WHERE e.subject = 'node/' || w.node AND e.kind = 'CommandRefused'
                  AND e.at >= c.created_at - interval '1 hour'
                  AND starts_with(e.reason, format('generation %s: ', w.generation)))
"""

_SHARED = (
    "two agents report under this name: both carry out its commands, and their counts are "
    "added; give each machine its own name with --node"
)

# Once per pair of agents: `since` moves with the youngest start, so a third agent is reported again.
_NEWLY_SHARED = """
SELECT w.node FROM unnest(CAST(:nodes AS text[]), CAST(:since AS timestamptz[])) AS w (node, since)
WHERE NOT EXISTS (SELECT FROM event e
                  WHERE e.subject = 'node/' || w.node AND e.kind = 'NodeNameShared' AND e.at >= w.since)
"""
