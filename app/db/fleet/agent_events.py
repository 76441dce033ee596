"""Lines of the audit that only agents' observations tell: refused commands, shared names, GPUs that fail."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import Ack, GpuReading, Observation
from solvers.types.state import gpu_id


async def note_refusals(
    connection: AsyncConnection, acks: Mapping[tuple[str, int], Ack], at: datetime
) -> None:
    """One line per refused command and reason; call it before the acknowledgements, by (node, generation), are kept."""
    refused = [
        (node, ack)
        for (node, _), ack in sorted(acks.items())
        if ack.status == "refused"
    ]
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


async def note_shared_names(
    connection: AsyncConnection, rivals: Mapping[str, datetime], at: datetime
) -> None:
    """One line per node at which an agent still reports although a younger one was first heard at the given time."""
    if rivals:
        nodes = sorted(rivals)
        await connection.execute(
            text(_NOTE_SHARED_NAMES),
            {"at": at, "nodes": nodes, "since": [rivals[node] for node in nodes]},
        )


async def save_health(
    connection: AsyncConnection, newest: Sequence[Observation], at: datetime
) -> None:
    """Keep which GPUs are healthy, by the newest observation of each node; one line per GPU that changed."""
    readings = [(report, gpu) for report in newest for gpu in report.gpus]
    if readings:
        await connection.execute(
            text(_SAVE_HEALTH),
            {
                "at": at,
                "gpus": [gpu_id(report.node, gpu.index) for report, gpu in readings],
                "healthy": [gpu.healthy for _, gpu in readings],
                "whys": [_health(report.problems, gpu) for report, gpu in readings],
            },
        )


def _health(problems: Sequence[str], gpu: GpuReading) -> str:
    """What the node says of one GPU, as the audit shows it."""
    name = f"GPU {gpu.index}"
    if gpu.healthy:
        return f"{name} takes work again"
    # Problems are the node's, as text; with a word boundary, so that GPU 1 does not find GPU 12.
    return next(
        (problem for problem in problems if re.search(rf"\b{name}\b", problem)),
        f"{name}: no word why",
    )


# In one statement: only rows that the UPDATE changed make events, so a GPU that stays as it is makes none.
_SAVE_HEALTH = """
WITH changed AS (
    UPDATE gpu SET healthy = w.healthy
    FROM unnest(CAST(:gpus AS text[]), CAST(:healthy AS boolean[]), CAST(:whys AS text[])) AS w (gpu, healthy, why)
    WHERE gpu.id = w.gpu AND gpu.healthy <> w.healthy
    RETURNING gpu.node, gpu.index, w.healthy, w.why)
INSERT INTO event (at, actor, kind, subject, reason)
SELECT :at, 'node/' || node, CASE WHEN healthy THEN 'GpuRecovered' ELSE 'GpuFailed' END, 'node/' || node, why
FROM changed ORDER BY node, index
"""

# Agents repeat an acknowledgement until it arrived; the same refusal for the same reason is one event.
_NOTE_REFUSALS = """
INSERT INTO event (at, actor, kind, subject, reason)
SELECT :at, 'node/' || w.node, 'CommandRefused', 'node/' || w.node, format('generation %s: %s', generation, detail)
FROM unnest(CAST(:nodes AS text[]), CAST(:generations AS bigint[]), CAST(:details AS text[]))
     AS w (node, generation, detail)
WHERE NOT EXISTS (SELECT FROM acknowledgement a
                  WHERE (a.node, a.generation, a.status, a.detail) = (w.node, w.generation, 'refused', w.detail))
"""

# Once per pair of agents: `since` moves with the youngest start, so a third agent is reported again.
_NOTE_SHARED_NAMES = """
INSERT INTO event (at, actor, kind, subject, reason)
SELECT :at, 'node/' || w.node, 'NodeNameShared', 'node/' || w.node,
       'two agents report under this name: both carry out its commands, and their counts add up; '
       'give each machine a name of its own by --node'
FROM unnest(CAST(:nodes AS text[]), CAST(:since AS timestamptz[])) AS w (node, since)
WHERE NOT EXISTS (SELECT FROM event e
                  WHERE e.subject = 'node/' || w.node AND e.kind = 'NodeNameShared' AND e.at >= w.since)
"""
