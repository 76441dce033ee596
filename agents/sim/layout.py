"""Who serves what on a simulated cluster: ordinary replicas by weight, and spares while the others cannot keep up.

Routers are their nodes' own, so a spare takes requests only of those that the balancer deals its node by the plan's
weights: while the service is late there, by the rule of the real router (`agents.base.lateness`). A node without
another replica of the service is dealt none, but where no node has one left, the balancer sends to spares as backups.

The layout is looked up once for all steps in which nothing changes. Spares are decided on every LOOK_S.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agents.base.device import ServiceRoute
from agents.base.lateness import Lateness
from agents.sim.gpu import SimReplica
from agents.sim.node import SimNode
from agents.sim.queues.replica_queue import ExecutionPace
from agents.sim.tasks import SimTask

LOOK_S = 0.1
"""How often queues are looked at: a fraction of the SLOs, which are some hundred milliseconds."""
_ROUNDING = 1e-6
"""In looks: the third one is at 0.3 s, although three times 0.1 is somewhat more in binary fractions."""


RoutedTarget: TypeAlias = tuple[SimNode, SimReplica, float]
"""A replica with its node and its weight."""


Place: TypeAlias = tuple[str, str]
"""A service and the name of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareSite:
    """One service on one node that has ready spares of it."""

    place: Place
    node: SimNode
    spares: tuple[SimReplica, ...]
    replicas: tuple[SimReplica, ...]
    """Ready replicas that the node's router gives turns, spares apart."""
    planned_rps: float
    slo_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLayout:
    """Holds until a node's `changes` go up."""

    changes: int
    """The sums over all nodes."""
    targets: Mapping[str, list[RoutedTarget]]
    """Ready replicas that some node routes the service to, with their weights, by node and route; by service."""
    spares: Mapping[str, list[SpareSite]]
    """Where services have ready spares, by service and then by node; they are no targets."""
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
    sites: dict[str, list[SpareSite]] = {}
    launches_s: dict[str, float] = {}
    tasks: list[tuple[SimNode, SimTask]] = []
    for name, node in nodes.items():
        ready: dict[str, SimReplica] = {}
        spares: dict[str, list[SimReplica]] = {}
        for _, each in node.replicas():
            if each.executes:
                executing.append((node, each))
            if each.state == "starting":
                launches_s[name] = min(each.ready_at_s, launches_s.get(name, math.inf))
            elif each.state == "ready" and node.is_spare(each):
                spares.setdefault(each.command.service, []).append(each)
            elif each.state == "ready":
                ready[each.command.id] = each
        for _, task in node.tasks():
            if task.state == "running":
                tasks.append((node, task))
            elif task.due_s < math.inf:
                launches_s[name] = min(task.due_s, launches_s.get(name, math.inf))
        for route in node.routes:
            service = route.service
            if route.shares:
                shares = _ready_shares(route, ready)
                targets.setdefault(service, []).extend(
                    (node, each, weight) for each, weight in shares
                )
            if service in spares:
                site = _make_site(node, route, ready, spares[service])
                sites.setdefault(service, []).append(site)
    return WorkLayout(
        changes=changes,
        targets=targets,
        spares=sites,
        executing=executing,
        launches_s=launches_s,
        tasks=tasks,
    )


def _ready_shares(
    route: ServiceRoute,
    ready: Mapping[str, SimReplica],
) -> list[tuple[SimReplica, float]]:
    """The route's ready replicas, with their weights."""
    return [(ready[each], weight) for each, weight in route.shares if each in ready]


def _make_site(
    node: SimNode,
    route: ServiceRoute,
    ready: Mapping[str, SimReplica],
    spares: Sequence[SimReplica],
) -> SpareSite:
    planned_rps = sum(weight for _, weight in route.shares)
    has_rates = planned_rps > 0.0
    replicas = []
    for each, weight in _ready_shares(route, ready):
        # As the router does: where the plan gives rates, a replica without one gets no turn.
        if weight > 0.0 or not has_rates:
            replicas.append(each)
    return SpareSite(
        place=(route.service, node.spec.name),
        node=node,
        spares=tuple(spares),
        replicas=tuple(replicas),
        planned_rps=planned_rps,
        slo_ms=route.slo_ms,
    )


def service_rate_rps(pace: ExecutionPace) -> float:
    """Requests per second that a replica finishes in full batches."""
    return pace.batch / float(pace.batch_s[pace.batch])


class ClusterSpares:
    """The spares of all services, from look to look."""

    def __init__(self) -> None:
        self.next_look_s = 0.0
        """In trace time; there is none while no replica is a spare."""
        self._lateness: dict[Place, Lateness] = {}
        self._helping: set[Place] = set()
        self._answered: Counter[Place] = Counter()
        """Since the last look."""
        self._rejected: Counter[Place] = Counter()

    def read_counts(self, layout: WorkLayout) -> dict[Place, tuple[int, int]]:
        """Requests that were answered and rejected so far, where there are spares."""
        counts = {}
        for service, sites in layout.spares.items():
            for site in sites:
                tally = site.node.tally(service)
                counts[site.place] = (tally.served, tally.rejected)
        return counts

    def count(
        self,
        place: Place,
        *,
        answered: int = 0,
        rejected: int = 0,
    ) -> None:
        """Requests that were answered or rejected there."""
        self._answered[place] += answered
        self._rejected[place] += rejected

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
        for service, sites in layout.spares.items():
            is_backup = not layout.targets.get(service)
            for site in sites:
                # Without another replica here, the balancer sends only what no node has one for.
                is_dealt = bool(site.replicas) or is_backup
                is_late = self._is_late(site, now_s)
                helps = is_late and is_dealt
                for each in site.spares:
                    site.node.let_work(each, works=helps or each.queue.in_flight > 0)
                if helps:
                    self._helping.add(site.place)
                else:
                    self._helping.discard(site.place)
        self._answered.clear()
        self._rejected.clear()

    def targets(
        self,
        layout: WorkLayout,
        service: str,
        *,
        knows_losses: bool = True,
    ) -> Sequence[RoutedTarget]:
        """Where requests of a service go, with weights: nodes by their plan, spares beside the replicas of their node.

        `knows_losses`: False while the balancer still takes a lost node for one that serves.
        """
        ordinary = layout.targets.get(service, ())
        sites = [
            site
            for site in layout.spares.get(service, ())
            if site.place in self._helping
        ]
        if not sites:
            return ordinary
        if ordinary:
            return _beside(ordinary, sites)
        if not knows_losses:
            return []
        # A balancer knows of a backup only that it is one, so they share evenly.
        return [(site.node, each, 1.0) for site in sites for each in _awake(site)]

    def _is_late(self, site: SpareSite, now_s: float) -> bool:
        """What the node's router says."""
        place = site.place
        lateness = self._lateness.setdefault(place, Lateness(now_s))
        # Batches are turned without a change of the layout.
        batch_sum = sum(each.command.batch for each in site.replicas)
        lateness.expect(
            planned_rps=site.planned_rps,
            slo_ms=site.slo_ms,
            batch_sum=batch_sum,
        )
        lateness.note_answers(self._answered[place], now_s)
        # Replicas reject what would be late: behind a router, a deadline that passes while it waits.
        if self._rejected[place]:
            lateness.note_miss(now_s)
        ahead = sum(
            each.queue.in_flight
            for replicas in (site.replicas, site.spares)
            for each in replicas
        )
        return lateness.is_late(ahead, now_s)


def _awake(site: SpareSite) -> list[SimReplica]:
    """Its spares that work; one that became ready since the last look has no pace yet."""
    return [each for each in site.spares if each.pace is not None and not each.rests]


def _beside(
    ordinary: Sequence[RoutedTarget],
    sites: Sequence[SpareSite],
) -> list[RoutedTarget]:
    """The targets and the sites' spares. What a node is dealt by the plan's weights stays what it is dealt."""
    # Weights of zero everywhere count as equal, so they are before spares are put beside some.
    if all(weight <= 0.0 for _, _, weight in ordinary):
        ordinary = [(node, each, 1.0) for node, each, _ in ordinary]
    at_sites: dict[SimReplica, float] = {}
    for site in sites:
        dealt = sum(weight for node, _, weight in ordinary if node is site.node)
        at_sites |= _parts(site, dealt)
    found = [
        (node, each, at_sites.get(each, weight)) for node, each, weight in ordinary
    ]
    for site in sites:
        found += [(site.node, each, at_sites[each]) for each in _awake(site)]
    return found


def _parts(site: SpareSite, dealt: float) -> dict[SimReplica, float]:
    """What the node is dealt, by replica."""
    # A late router gives the emptiest one the next turn, so that each gets what it can do.
    rates_rps = {
        each: service_rate_rps(each.pace)
        for each in (*site.replicas, *_awake(site))
        if each.pace is not None
    }
    total_rps = sum(rates_rps.values())
    return {each: dealt * rate_rps / total_rps for each, rate_rps in rates_rps.items()}
