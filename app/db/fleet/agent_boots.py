"""Starts of agents: which observations are new, which were sent before, and whether two agents share a name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.observation_rows import WindowedObservation

NEW_BOOTS_PER_HOUR = 720
"""Starts of one node's agent that are taken: one in five seconds, as a service manager starts again what crashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBoot:
    """One start of an agent."""

    last_sequence: int
    """Highest sequence number so far."""
    first_seen_at: datetime
    younger_at: datetime | None
    """When the youngest start under the same name was first heard; None: it is this one."""


async def load_boots(
    connection: AsyncConnection, boots: Sequence[tuple[str, str]], received: datetime
) -> dict[tuple[str, str], AgentBoot]:
    """What is known of these starts of agents, whose nodes are locked; new ones are written down.

    Without those by which a node would have more than NEW_BOOTS_PER_HOUR: no agent is started so often, and each is
    a row that is kept as long as observations are.
    """
    known = await _load_known(connection, boots)
    new = [key for key in boots if key not in known]
    # Nearly always all are known, and a commit of many nodes then writes nothing here.
    if new:
        await connection.execute(
            text(_ADD_BOOTS),
            {**_columns_of(new), "at": received, "limit": NEW_BOOTS_PER_HOUR},
        )
        known |= await _load_known(connection, new)
    return known


async def _load_known(
    connection: AsyncConnection, boots: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], AgentBoot]:
    found = await connection.execute(text(_KNOWN_BOOTS), _columns_of(boots))
    return {
        (row.node, row.boot): AgentBoot(
            last_sequence=row.last_sequence,
            first_seen_at=row.first_seen_at,
            younger_at=row.younger_at,
        )
        for row in found
    }


def _columns_of(boots: Sequence[tuple[str, str]]) -> dict[str, object]:
    return {
        "nodes": [node for node, _ in boots],
        "boots": [boot for _, boot in boots],
    }


_KNOWN_BOOTS = """
SELECT b.node, b.boot, b.last_sequence, b.first_seen_at,
       (SELECT max(o.first_seen_at) FROM agent_boot o
        WHERE o.node = b.node AND o.first_seen_at > b.first_seen_at) AS younger_at
FROM unnest(CAST(:nodes AS text[]), CAST(:boots AS text[])) AS w (node, boot)
JOIN agent_boot b ON b.node = w.node AND b.boot = w.boot
"""

# Counted per node: what came within the last hour, and the new ones of this very statement.
_ADD_BOOTS = """
INSERT INTO agent_boot (node, boot, first_seen_at)
SELECT w.node, w.boot, :at FROM (
    SELECT node, boot, row_number() OVER (PARTITION BY node ORDER BY boot) AS number
    FROM unnest(CAST(:nodes AS text[]), CAST(:boots AS text[])) AS each (node, boot)) AS w
WHERE w.number + (SELECT count(*) FROM agent_boot b WHERE b.node = w.node
                  AND b.first_seen_at > CAST(:at AS timestamptz) - interval '1 hour') <= :limit
ORDER BY 1, 2
"""


def rivals_of(
    fresh: Sequence[WindowedObservation], boots: Mapping[tuple[str, str], AgentBoot]
) -> dict[str, datetime]:
    """Nodes that a start of the agent reports of after a younger one was first heard, with that moment.

    A restarted agent never looks so: what the old one saw ended before the new one began.
    """
    return {
        entry.observation.node: younger_at
        for entry in fresh
        if (younger_at := boots[entry.boot].younger_at) is not None
        and entry.end > younger_at
    }


async def fresh_of(
    connection: AsyncConnection,
    placed: Sequence[WindowedObservation],
    last: dict[tuple[str, str], int],
) -> list[WindowedObservation]:
    """The observations that are not there yet, each once. Above the last sequence number all are new."""
    # Reversed, so that of equal keys in one batch the first observation stays.
    by_key = {
        (*entry.boot, entry.observation.sequence): entry for entry in reversed(placed)
    }
    doubtful = sorted(key for key in by_key if key[2] <= last[(key[0], key[1])])
    if doubtful:
        found = await connection.execute(
            text(
                "SELECT o.node, o.boot, o.sequence FROM observation o "
                "JOIN unnest(CAST(:nodes AS text[]), CAST(:boots AS text[]), CAST(:sequences AS bigint[])) "
                "AS w (node, boot, sequence) USING (node, boot, sequence)"
            ),
            {
                "nodes": [key[0] for key in doubtful],
                "boots": [key[1] for key in doubtful],
                "sequences": [key[2] for key in doubtful],
            },
        )
        for row in found:
            by_key.pop((row.node, row.boot, row.sequence), None)
    return [by_key[key] for key in sorted(by_key)]


async def save_sequences(
    connection: AsyncConnection, acknowledged: dict[tuple[str, str], int]
) -> None:
    """Note the highest sequence number of each start that is durable."""
    keys = sorted(acknowledged)
    await connection.execute(
        text(
            "UPDATE agent_boot AS b SET last_sequence = w.sequence "
            "FROM unnest(CAST(:nodes AS text[]), CAST(:boots AS text[]), CAST(:sequences AS bigint[])) "
            "AS w (node, boot, sequence) "
            "WHERE b.node = w.node AND b.boot = w.boot AND b.last_sequence < w.sequence"
        ),
        {
            "nodes": [node for node, _ in keys],
            "boots": [boot for _, boot in keys],
            "sequences": [acknowledged[key] for key in keys],
        },
    )
