"""A node that the cluster keeps Pods off (`kubectl cordon`, `kubectl drain`) is drained, and used again afterwards.

Drained and not only cordoned: a drain by kubectl waits until the budgets of `app.kubernetes.pools` let Pods go, which
is when services serve elsewhere. Tasks run on, as under a cordon, until somebody evicts them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from agents.base.arguments import as_node_name
from agents.kubernetes.manifest import GPUS
from app.api.http.parts import Context
from app.db.base.transaction import Connection
from app.db.fleet import nodes
from app.db.operations import events
from app.kubernetes.objects import ClusterNode
from solvers.types.state import Node

DRAIN = timedelta(days=7)
"""Nothing has to leave by itself before; set again in time for as long as the cluster keeps Pods off the node."""
AGAIN_BEFORE = timedelta(days=6)


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """What has to be changed here. Each node by its name in Plimsoll."""

    drained: tuple[str, ...]
    used_again: tuple[str, ...]
    """Unless a person keeps it out of use."""


def node_changes(
    cluster: Mapping[str, ClusterNode], known: Iterable[Node]
) -> NodeChanges:
    """Compare the cluster's nodes with those that Plimsoll knows."""
    closed = {
        as_node_name(each.metadata.name): each.spec.unschedulable
        for each in cluster.values()
    }
    drained: list[str] = []
    used_again: list[str] = []
    for node in known:
        is_closed = closed.get(node.id)
        left_s = node.drain_in_s
        if is_closed and (left_s is None or left_s < AGAIN_BEFORE.total_seconds()):
            drained.append(node.id)
        elif is_closed is False and node.cordoned:
            used_again.append(node.id)
    return NodeChanges(
        drained=tuple(drained),
        used_again=tuple(used_again),
    )


def lost_nodes(seen: Iterable[str], known: Iterable[Node]) -> set[str]:
    """What to do about nodes that were the cluster's. `seen`: those that were, and are not any more."""
    here = {node.id for node in known}
    return {
        f"node {name} has lost its label {GPUS}=true, or has left the cluster, so that no agent runs there: label it "
        f"again, or `plimsoll delete node {name}`"
        for name in seen
        if name in here
    }


async def change_nodes(
    context: Context, connection: Connection, changes: NodeChanges
) -> None:
    """Drain and use again; what a person has drained or cordoned is left as it is."""
    ours = await events.newest_actors(
        connection,
        [f"node/{name}" for name in (*changes.drained, *changes.used_again)],
        kinds=("NodeDraining", "NodeCordoned", "NodeUncordoned"),
    )

    def is_ours(name: str) -> bool:
        return ours.get(f"node/{name}") == context.actor

    for name in changes.drained:
        row = await nodes.get(connection, name, context.now())
        # A person's deadline, which may be a shorter one, holds.
        if row.node.drain_in_s is not None and not is_ours(name):
            continue
        until = context.now() + DRAIN
        await nodes.set_drain(connection, name, until=until)
        # Set again it is no news.
        if row.node.drain_in_s is None:
            await context.audit(
                connection,
                "NodeDraining",
                f"node/{name}",
                after={"deadline": until.isoformat()},
                reason="the cluster schedules nothing there any more (kubectl cordon)",
            )
    for name in filter(is_ours, changes.used_again):
        await nodes.set_cordon(connection, name, cordoned=False)
        await context.audit(
            connection,
            "NodeUncordoned",
            f"node/{name}",
            after={"cordoned": False},
            reason="the cluster schedules there again (kubectl uncordon)",
        )
