"""Who serves what on a simulated cluster, looked up once for all steps in which nothing changes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from agents.sim.gpu import SimReplica
from agents.sim.node import SimNode
from agents.sim.tasks import SimTask

RoutedTarget: TypeAlias = tuple[SimNode, SimReplica, float]
"""A replica with its node and its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLayout:
    """Holds until a node's `changes` go up."""

    changes: int
    """The sums over all nodes."""
    targets: Mapping[str, list[RoutedTarget]]
    """Ready replicas that some node routes the service to, with their weights, by node and route; by service."""
    executing: list[tuple[SimNode, SimReplica]]
    """Replicas that may run batches, by node, GPU and start."""
    launches_s: Mapping[str, float]
    """When the next replica or task of a node is ready or has been moved, in trace time; of nodes that wait for one."""
    tasks: list[tuple[SimNode, SimTask]]
    """Tasks that run, by node, GPU and start."""


def make_layout(
    nodes: Mapping[str, SimNode],
    changes: int,
) -> WorkLayout:
    """The layout of nodes that have changed so often."""
    targets: dict[str, list[RoutedTarget]] = {}
    executing: list[tuple[SimNode, SimReplica]] = []
    launches_s: dict[str, float] = {}
    tasks: list[tuple[SimNode, SimTask]] = []
    for name, node in nodes.items():
        ready: dict[str, SimReplica] = {}
        for _, each in node.replicas():
            if each.executes:
                executing.append((node, each))
            if each.state == "starting":
                launches_s[name] = min(each.ready_at_s, launches_s.get(name, math.inf))
            elif each.state == "ready":
                ready[each.command.id] = each
        for _, task in node.tasks():
            if task.state == "running":
                tasks.append((node, task))
            elif task.due_s < math.inf:
                launches_s[name] = min(task.due_s, launches_s.get(name, math.inf))
        for route in node.routes:
            if route.shares:
                targets.setdefault(route.service, []).extend(
                    (node, ready[each], weight)
                    for each, weight in route.shares
                    if each in ready
                )
    return WorkLayout(
        changes=changes,
        targets=targets,
        executing=executing,
        launches_s=launches_s,
        tasks=tasks,
    )
