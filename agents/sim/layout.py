"""Who serves what on a simulated cluster: ordinary replicas by weight, and spares while the others cannot keep up.

The layout is looked up once for all steps in which nothing changes. Spares are decided on every LOOK_S. Replicas that
reject what would be late never have long queues, so rejections say as much as a backlog does.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agents.sim.node import SimNode, SimReplica
from agents.sim.replica_queue import ExecutionPace
from agents.sim.tasks import SimTask

LOOK_S = 0.1
"""How often queues are looked at: a fraction of the SLOs, which are some hundred milliseconds."""
CALM_S = 5.0
"""Spares work on for so long after the last sign of need: while they help, the others keep up."""
_ROUNDING = 1e-6
"""In looks: the third one is at 0.3 s, although three times 0.1 is somewhat more in binary fractions."""


RoutedTarget: TypeAlias = tuple[SimNode, SimReplica, float]
"""A replica with its node and its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLayout:
    """Holds until a node's `changes` go up."""

    changes: int
    """The sums over all nodes."""
    targets: Mapping[str, list[RoutedTarget]]
    """Ready replicas that some node routes the service to, with their weights, by node and route; by service."""
    spares: Mapping[str, list[tuple[SimNode, SimReplica]]]
    """Ready spare replicas by service; they are no targets."""
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
    spares: dict[str, list[tuple[SimNode, SimReplica]]] = {}
    launches_s: dict[str, float] = {}
    tasks: list[tuple[SimNode, SimTask]] = []
    for name, node in nodes.items():
        ready: dict[str, SimReplica] = {}
        for _, each in node.replicas():
            if each.executes:
                executing.append((node, each))
            if each.state == "starting":
                launches_s[name] = min(each.ready_at_s, launches_s.get(name, math.inf))
            elif each.state == "ready" and node.is_spare(each):
                spares.setdefault(each.command.service, []).append((node, each))
            elif each.state == "ready":
                ready[each.command.id] = each
        for _, task in node.tasks():
            if task.state == "running":
                tasks.append((node, task))
            elif task.due_s < math.inf:
                launches_s[name] = min(task.due_s, launches_s.get(name, math.inf))
        for route in node.routes:
            if route.shares:
                mine = targets.setdefault(route.service, [])
                mine.extend(
                    (node, ready[each], weight)
                    for each, weight in route.shares
                    if each in ready
                )
    return WorkLayout(
        changes=changes,
        targets=targets,
        spares=spares,
        executing=executing,
        launches_s=launches_s,
        tasks=tasks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryLoad:
    """What a service's ordinary replicas, those that are no spares, have to do together."""

    backlog: int
    """Requests that wait or run."""
    room: float
    """Requests that they finish within the SLO."""
    rejected: int
    """Requests that they have rejected since the last look."""


def cannot_keep_up(load: OrdinaryLoad) -> bool:
    """Whether spares must help."""
    # Without an ordinary replica there is no room, and requests may come at any moment.
    return load.room <= 0.0 or load.rejected > 0 or load.backlog > load.room


def room_of(pace: ExecutionPace) -> float:
    """Requests that a replica finishes within the SLO, batch after full batch."""
    batches = pace.slo_s / float(pace.batch_s[pace.batch])
    # Not rounded down where there is no SLO, since infinity cannot be.
    return pace.batch * (batches if math.isinf(batches) else math.floor(batches))


def service_rate_rps(pace: ExecutionPace) -> float:
    """Requests per second that a replica finishes in full batches."""
    return pace.batch / float(pace.batch_s[pace.batch])


class ClusterSpares:
    """The spares of all services, from look to look."""

    def __init__(self) -> None:
        self.next_look_s = 0.0
        """In trace time; there is none while no replica is a spare."""
        self._help_until_s: dict[str, float] = {}
        self._helping: set[str] = set()
        self._rejected: Counter[str] = Counter()

    def count_rejected(
        self,
        service: str,
        requests: int,
    ) -> None:
        """Requests that ordinary replicas of a service have rejected."""
        self._rejected[service] += requests

    def look(
        self,
        layout: WorkLayout,
        now_s: float,
    ) -> None:
        """Put spares to work where they must help, and to rest where they need not and have nothing left to do."""
        if now_s < self.next_look_s:
            return
        # On a grid, so that it does not matter how others cut the time.
        self.next_look_s = (math.floor(now_s / LOOK_S + _ROUNDING) + 1) * LOOK_S
        for service, spares in layout.spares.items():
            ordinary = [each for _, each, _ in layout.targets.get(service, ())]
            if cannot_keep_up(self._load(service, ordinary)):
                self._help_until_s[service] = now_s + CALM_S
            helps = now_s < self._help_until_s.get(service, -math.inf)
            for node, each in spares:
                node.let_work(each, works=helps or each.queue.in_flight > 0)
            (self._helping.add if helps else self._helping.discard)(service)
        self._rejected.clear()

    def targets(
        self,
        layout: WorkLayout,
        service: str,
    ) -> Sequence[RoutedTarget]:
        """Where requests of a service go, with weights: ordinary replicas by their plan, spares by what they can do."""
        ordinary = layout.targets.get(service, ())
        if service not in self._helping:
            return ordinary
        return [
            *ordinary,
            *(
                (node, each, service_rate_rps(each.pace))
                for node, each in layout.spares.get(service, ())
                # One that became ready since the last look has none yet.
                if each.pace is not None and not each.rests
            ),
        ]

    def _load(
        self,
        service: str,
        ordinary: Sequence[SimReplica],
    ) -> OrdinaryLoad:
        return OrdinaryLoad(
            backlog=sum(each.queue.in_flight for each in ordinary),
            room=sum(room_of(each.pace) for each in ordinary if each.pace is not None),
            rejected=self._rejected[service],
        )
