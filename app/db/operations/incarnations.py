"""Incarnations of the database: a restore to an older state begins a new one, whose generations nodes must follow.

After a restore nodes hold commands of generations that the database does not know any more, and refuse what is older.
So the counter of generations jumps above theirs, as `etcdutl snapshot restore --bump-revision` does: the next target is
newer than anything that any node holds. `plimsoll restore` makes it jump at once; where somebody restored by other
means, the first node that reports a command which this database did not make for it does: one of a generation above its
newest command's, or another one under that number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.digests import SCHEMA
from agents.base.protocol import Observation
from app.db.base.listen import wake
from app.db.decisions.commands import NewestCommand, load_newest
from app.db.operations import events
from app.store.store import AuditEvent

JUMP = 1_000_000
"""Above the highest generation that is known to be held: nodes that are not heard yet may hold a somewhat higher one.
At one target in each period of five seconds these are 58 days."""

FARTHEST = 10_000_000
"""Further ahead no history of this database can be: a year and a half of such targets. Who claims more is not believed.

With one jump an hour at most, nodes that lie would need ten years to reach 10^12, the protocol's limit:
10^12 / (FARTHEST + JUMP) / 24 / 365.
"""


@dataclass(slots=True)
class MadeCommands:
    """What a process remembers of nodes' newest commands."""

    _target: tuple[int, datetime | None] = (0, None)
    _newest: dict[str, NewestCommand] = field(default_factory=dict)

    async def diverged(
        self,
        connection: AsyncConnection,
        reports: Sequence[Observation],
        generation: int,
        since: datetime | None,
    ) -> list[Observation]:
        """The reports of nodes that follow a command which this database never made for them.

        `generation`, `since`: the newest target and when it came into force.
        """
        # A new target may replace any node's command.
        if self._target != (generation, since):
            self._target, self._newest = (generation, since), {}
        if new := [
            report.node for report in reports if report.node not in self._newest
        ]:
            # Nodes that are not registered are not there; they are not asked for again either.
            self._newest |= dict.fromkeys(new, NewestCommand())
            self._newest |= await load_newest(connection, new)
        return [
            report
            for report in reports
            if report.generation > generation or self._is_other(report)
        ]

    def _is_other(self, report: Observation) -> bool:
        """Whether the node follows a newer command than its newest one, or another one under that number."""
        newest = self._newest.get(report.node, NewestCommand())
        # A node that was removed and registered again has none here, and may hold what it was given before.
        if newest.generation == 0:
            return False
        # Also where the newest target has that number: one that changed nothing for the node made no command for it.
        if report.generation > newest.generation:
            return True
        # A node that follows an older one is only late; its command says nothing of the database's history.
        if report.generation < newest.generation:
            return False
        # Another release writes the same command otherwise: where schemas differ, digests cannot be compared.
        if not report.command_digest.startswith(SCHEMA):
            return False
        return newest.digest.startswith(SCHEMA) and (
            newest.digest != report.command_digest
        )


async def note_diverged(
    connection: AsyncConnection, reports: Sequence[Observation], at: datetime
) -> None:
    """Begin a new incarnation where registered nodes hold what this database never made; see `MadeCommands.diverged`.

    In a transaction of its own after the reports are kept: it locks the row of `cluster`, as every change of the
    catalogue does before it locks nodes. Nodes that claim too much, or too soon after the last time, move nothing: they
    stay ahead, or follow their command until the next target, which is written again for them.
    """
    found = await connection.execute(
        text(_RENUMBER),
        {
            "nodes": [report.node for report in reports],
            "generations": [report.generation for report in reports],
            "jump": JUMP,
            "farthest": FARTHEST,
        },
    )
    row = found.one_or_none()
    if row is not None:
        await events.add(connection, _restored(row, at))
        await wake(connection, "restored")
        return
    # By id, as reports lock nodes.
    held = sorted((report.node, report.generation) for report in reports)
    pairs = [{"node": name, "generation": number} for name, number in held]
    await connection.execute(text(_FOLLOWS_NOTHING), pairs)


def _restored(row: Row[Any], at: datetime) -> AuditEvent:
    made = (
        f"this database made none after {row.made}"
        if row.held > row.made
        else "with a command that this database did not make for it"
    )
    return AuditEvent(
        at=at,
        actor=f"node/{row.node}",
        kind="ControlPlaneRestored",
        subject="cluster",
        reason=(
            f"{row.node} follows generation {row.held}, but {made}: the database was restored to an older "
            "state, or the node followed another control plane; the next plan gets a higher generation "
            "than any node has, and all nodes follow it"
        ),
        before={"generation": row.made, "incarnation": str(row.old)},
        after={"generation": row.generation, "incarnation": str(row.new)},
    )


# Else a target that changes nothing for the node would make no command for it.
_FOLLOWS_NOTHING = """
UPDATE node SET observed_generation = 0
WHERE id = :node AND :generation >= (SELECT max(c.generation) FROM command c WHERE c.node = node.id)
"""


async def begin_anew(connection: AsyncConnection, *, held: int) -> int:
    """Begin a new incarnation after a restore; returns the generation above which the next plan is.

    `held`: the highest generation that nodes may have got from elsewhere; 0 = not known.
    """
    found = await connection.execute(
        text(
            "UPDATE cluster SET target_generation = greatest(target_generation, :held) + :jump, "
            "incarnation = gen_random_uuid(), renumbered_at = NULL RETURNING target_generation"
        ),
        {"held": held, "jump": JUMP},
    )
    return int(found.scalar_one())


# One statement, which touches no row while all is well. Of two at once the second one waits for the row, finds that it
# was renumbered just now, and changes nothing.
_RENUMBER = """
WITH held AS (
    SELECT w.node, w.generation, c.target_generation AS made, c.incarnation AS old
    FROM cluster c, unnest(CAST(:nodes AS text[]), CAST(:generations AS bigint[])) AS w (node, generation)
    WHERE (w.generation > c.target_generation
           OR w.generation >= (SELECT max(m.generation) FROM command m WHERE m.node = w.node))
      AND w.generation <= c.target_generation + :farthest
      AND EXISTS (SELECT FROM node WHERE node.id = w.node)
    ORDER BY w.generation DESC, w.node LIMIT 1
), renumbered AS (
    UPDATE cluster SET target_generation = greatest(target_generation, held.generation) + :jump,
                       incarnation = gen_random_uuid(), renumbered_at = now()
    FROM held WHERE renumbered_at IS NULL OR renumbered_at < now() - interval '1 hour'
    RETURNING held.node, held.generation AS held, held.made, held.old, target_generation AS generation,
              incarnation AS new
)
SELECT * FROM renumbered
"""
