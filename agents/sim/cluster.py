"""A simulated cluster: several nodes, one load balancer, one trace, moved on to "now" whenever somebody looks.

Nothing runs in the background. A device's method first advances the whole cluster to the clock's present; events
(launches that end, faults that begin or end) cut the way there into steps in which nothing changes. One thread only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agents.base.clock import Clock
from agents.base.device import UnknownPart
from agents.sim.faults import ClusterFaults, NodeLoss, before_loss
from agents.sim.gpu import SimReplica
from agents.sim.layout import RoutedTarget, WorkLayout, make_layout
from agents.sim.load.clients import ClientLoad, Clients, Target, make_clients
from agents.sim.load.load_balancer import ArrivalSource, HandOut, make_balancers
from agents.sim.load.models import ModelService, RoutedEngine, SimulatedModels
from agents.sim.node import SimNode
from agents.sim.pace import PaceMaker, SimulatedWorld
from agents.sim.queues.engine_queue import EngineQueue
from agents.sim.queues.tally import PRESENT_S, Floats, ServiceTally, ServiceTotals
from agents.sim.spec import Fault, SimulatedNodeSpec

_SAME_S = 1e-6
"""Moments so near to each other are one: a clock that counts from 1970 tells no finer ones apart."""
_NOISE_STREAM = 1_000_000
"""Random stream of the first node's noise, far from the services' streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScript:
    """What happens to a cluster."""

    loads: Mapping[str, ArrivalSource]
    """Requests by service, in trace time."""
    seed: int
    faults: tuple[Fault, ...] = ()
    clients: Mapping[str, ClientLoad] = field(default_factory=dict)
    """Services whose clients wait for an answer before they send again, in place of a load."""
    models: Mapping[str, ModelService] = field(default_factory=dict)
    """The services of language models."""


class SimulatedCluster:
    """Simulated nodes that share a load balancer. Trace time 0 is the clock's `start_s`."""

    def __init__(
        self,
        nodes: tuple[SimulatedNodeSpec, ...],
        scenario: ClusterScript,
        *,
        world: SimulatedWorld,
        clock: Clock,
        start_s: float | None = None,
    ) -> None:
        """`start_s`: the clock's time at which the trace begins; None = now."""
        # By name, so that the order of the items changes neither random streams nor results.
        ordered = sorted(nodes, key=lambda node: node.name)
        if len({node.name for node in ordered}) < len(ordered) or not ordered:
            raise ValueError(
                "a simulated cluster needs at least one node, each with its own name"
            )
        # One for all nodes, so that a time that one has looked up serves the others.
        paces = PaceMaker(world)
        self._models = SimulatedModels(scenario.models, scenario.seed)
        self.nodes = {
            node.name: SimNode(
                node,
                paces,
                np.random.default_rng([scenario.seed, _NOISE_STREAM + number]),
                self._models,
            )
            for number, node in enumerate(ordered)
        }
        self.world = world
        self._clock = clock
        self._start_s = clock.now_s() if start_s is None else start_s
        self._now_s = 0.0
        self._faults = ClusterFaults(scenario.faults, self.nodes)
        self.node_losses: list[NodeLoss] = []
        """Every loss of a node so far."""
        self._balancers = make_balancers(scenario.loads, scenario.seed)
        self._clients = make_clients(scenario.clients, scenario.seed)
        if both := sorted(self._balancers.keys() & self._clients.keys()):
            raise ValueError(
                f"{', '.join(both)}: a service has a load or clients, not both"
            )
        self._past: dict[str, ServiceTally] = {}
        self._laid_out = make_layout(self.nodes, changes=0)
        self._apply_faults()

    @property
    def home(self) -> SimNode:
        """The node that counts the requests of services without a replica: the first by name that is not lost."""
        # What a lost node counts is never received, and then no plan would know of these requests.
        nodes = list(self.nodes.values())
        present = (
            each for each in nodes if not self._faults.is_node_lost(each.spec.name)
        )
        return next(present, nodes[0])

    @property
    def services(self) -> tuple[str, ...]:
        """Every service that has a load."""
        return (*self._balancers, *self._clients)

    @property
    def used_energy_j(self) -> float:
        """Energy of all GPUs while anything was on them, idle power included, up to each node's newest reading."""
        return sum(
            gpu.used_energy_j for node in self.nodes.values() for gpu in node.gpus
        )

    @property
    def busy_s(self) -> float:
        """GPU-seconds in which anything ran, over all GPUs, up to each node's newest reading."""
        return sum(gpu.busy_s for node in self.nodes.values() for gpu in node.gpus)

    def waiting(self, service: str) -> int:
        """Requests of a service that wait for a replica."""
        return self._balancers[service].waiting if service in self._balancers else 0

    def node(self, name: str) -> SimNode:
        """The node of that name; raises UnknownPart."""
        if name not in self.nodes:
            raise UnknownPart(
                f"no simulated node {name!r}; known: {', '.join(self.nodes)}"
            )
        return self.nodes[name]

    def is_lost(
        self,
        name: str,
        reported_at_s: float,
    ) -> bool:
        """Whether what the node's agent reported at that time of the clock does not reach anybody now."""
        return self._faults.is_cut_off(name, reported_at_s - self._start_s, self._now_s)

    def next_launches_s(self) -> Mapping[str, float]:
        """When, by the clock, the next replica or task of each node is ready or moved; of nodes that wait for one."""
        self.advance()
        return {
            name: self._start_s + end_s
            for name, end_s in self._layout().launches_s.items()
        }

    def advance(self) -> float:
        """Move everything on to the clock's present; returns the trace time."""
        target_s = self._clock.now_s() - self._start_s
        # From event to event: between two of them nothing changes but the queues.
        while self._now_s < target_s:
            next_s = min([target_s, *self._events(self._now_s, target_s)])
            self._step(self._now_s, next_s)
            self._now_s = next_s
            for name, ready_s in self._layout().launches_s.items():
                if ready_s <= next_s + _SAME_S:
                    # A moment later than the event, so that rounding leaves none that is due for a step
                    # of its own.
                    self.nodes[name].launch_ends(next_s + _SAME_S)
            for node in {
                node.spec.name: node for node, _ in self._layout().tasks
            }.values():
                node.finish_tasks(next_s + _SAME_S)
            self._apply_faults()
        return self._now_s

    def _layout(self) -> WorkLayout:
        """Who serves what now; looked up again after changes alone."""
        changes = sum(node.changes for node in self.nodes.values())
        # Looking everything up in each step would take longer than the steps.
        if changes != self._laid_out.changes:
            self._laid_out = make_layout(self.nodes, changes)
        return self._laid_out

    def clear_tallies(self, node: SimNode) -> dict[str, ServiceTally]:
        """Take the node's counts of the window; they stay in the totals."""
        # Replaced and not cleared: the caller keeps the old ones.
        taken, node.tallies = node.tallies, {}
        for service, tally in taken.items():
            self._past.setdefault(service, ServiceTally()).add(tally)
        return taken

    def totals(self) -> tuple[ServiceTotals, ...]:
        """Every service's counts since the start, up to the clock's present; by service."""
        self.advance()
        replicas: dict[str, list[SimReplica]] = {
            service: [] for service in self.services
        }
        for node in self.nodes.values():
            for _, each in node.replicas():
                replicas.setdefault(each.command.service, []).append(each)
        return tuple(
            self._totals_of(service, replicas[service])
            for service in sorted(self.services)
        )

    def tally(self, service: str) -> ServiceTally:
        """A service's counts on all nodes since the start, up to the clock's present; a copy."""
        self.advance()
        return self._tally(service)

    def _tally(self, service: str) -> ServiceTally:
        total = ServiceTally()
        present = (node.tallies.get(service) for node in self.nodes.values())
        for tally in (self._past.get(service), *present):
            if tally is not None:
                total.add(tally)
        return total

    def _totals_of(
        self,
        service: str,
        mine: Sequence[SimReplica],
    ) -> ServiceTotals:
        total, balancer = self._tally(service), self._balancers.get(service)
        # Who still waits has spent time, too; without it long queues would look short.
        age_s = sum(each.queue.age_s(self._now_s) for each in mine) + (
            balancer.age_s(self._now_s) if balancer else 0.0
        )
        return ServiceTotals(
            service=service,
            arrivals=total.arrivals,
            served=total.served,
            in_slo=total.in_slo,
            rejected=total.rejected,
            queued=sum(each.queue.in_flight for each in mine) + self.waiting(service),
            replicas=sum(each.state == "ready" for each in mine),
            latency_buckets=tuple(int(count) for count in total.buckets),
            present_s=total.present_s,
            sojourn_s=total.sojourn_s + age_s,
        )

    def _events(
        self,
        after_s: float,
        until_s: float,
    ) -> Iterator[float]:
        """Times at which something changes by itself; tasks that end after `until_s` may be left out."""
        yield from self._layout().launches_s.values()
        yield from (task.finish_s(until_s) for _, task in self._layout().tasks)
        yield from self._faults.moments_s(after_s)

    def _step(
        self,
        start_s: float,
        end_s: float,
    ) -> None:
        """Hand the requests of [start_s, end_s) out and let every replica work; nothing changes meanwhile."""
        layout = self._layout()
        window = (start_s, end_s)
        handed_to: dict[SimReplica, tuple[Floats, Floats]] = {}
        for service in self._balancers:
            if service in self._models:
                self._step_model(service, window)
            else:
                handed_to.update(self._hand_out(service, window))
        for service, clients in self._clients.items():
            self._step_clients(service, clients, window)
        for _, task in layout.tasks:
            task.run(start_s, end_s)
        for node, each in layout.executing:
            queue, service = each.queue, each.command.service
            # Engines are advanced together with the others of their service.
            if service in self._clients or isinstance(queue, EngineQueue):
                continue
            if each.pace is not None:
                share = handed_to.get(each, _NOTHING)
                queue.advance(window, share, each.pace, node.tally(service))

    def _hand_out(
        self,
        service: str,
        window: tuple[float, float],
    ) -> Iterator[tuple[SimReplica, tuple[Floats, Floats]]]:
        """Deal a service's requests; every replica that gets some, with them."""
        targets = self._targets(service)
        handed = self._deal(service, window, [weight for _, _, weight in targets])
        here = len(targets)
        for (node, each, _), share, new in zip(
            targets,
            handed.shares[:here],
            handed.new[:here],
            strict=True,
        ):
            node.tally(service).arrivals += new
            yield each, share

    def _targets(self, service: str) -> Sequence[RoutedTarget]:
        return self._layout().targets.get(service, ())

    def _deal(
        self,
        service: str,
        window: tuple[float, float],
        weights: Sequence[float],
    ) -> HandOut:
        """A service's requests over targets of these weights; what goes to lost nodes among them is lost."""
        lost = self._faults.lost_targets(service, window[0])
        handed = self._balancers[service].step(
            *window, [*weights, *(each.weight for each in lost)]
        )
        home = self.home.tally(service)
        home.reject(handed.dropped, after_s=handed.dropped_age_s)
        home.sums[PRESENT_S] += handed.waited_s
        here = len(weights)
        if not (weights or lost):
            # What no node serves is counted by one node, which is the same in each run.
            home.arrivals += handed.arrived
            return handed
        for astray, (reached_s, since_s), new in zip(
            lost,
            handed.shares[here:],
            handed.new[here:],
            strict=True,
        ):
            tally = astray.node.tally(service)
            tally.arrivals += new
            waited_s = float(np.sum(reached_s - since_s))
            tally.reject(len(since_s), after_s=waited_s)
        return handed

    def _step_model(self, service: str, window: tuple[float, float]) -> None:
        """Deal a language model's requests, each to the engine that has least to do, and let all engines work."""
        weights = {each: weight for _, each, weight in self._targets(service)}
        handed = self._deal(service, window, [1.0] if weights else [])
        engines = [
            RoutedEngine(
                queue=each.queue,
                tally=node.tally(service),
                weight=weights.get(each, 0.0),
                is_open=each in weights,
            )
            for node, each in self._layout().executing
            if each.command.service == service and isinstance(each.queue, EngineQueue)
        ]
        share = handed.shares[0] if weights else _NOTHING
        self._models.serve(service, engines, share, window)

    def _step_clients(
        self,
        service: str,
        clients: Clients,
        window: tuple[float, float],
    ) -> None:
        layout = self._layout()
        weights = {each: weight for _, each, weight in self._targets(service)}
        tallies, targets = [], []
        for node, each in layout.executing:
            queue = each.queue
            if each.command.service != service or isinstance(queue, EngineQueue):
                continue
            if each.pace is not None:
                tallies.append(node.tally(service))
                weight = weights.get(each, 0.0)
                targets.append(
                    Target(
                        queue=queue,
                        pace=each.pace,
                        tally=tallies[-1],
                        weight=weight,
                    )
                )
        # Clients wait for answers, so that their replicas are advanced together with them.
        *sent, refused = clients.step(*window, targets).tolist()
        for tally, requests in zip(tallies, sent, strict=True):
            tally.arrivals += requests
        self.home.tally(service).arrivals += refused
        self.home.tally(service).reject(refused)

    def _apply_faults(self) -> None:
        for fault in self._faults.lose_nodes(self._now_s):
            # Before anything is lost, since the requests that were there count as lost with the node.
            tallies = {service: self._tally(service) for service in self.services}
            self.node_losses.append(before_loss(fault, self.nodes, tallies))
        self._faults.apply(self._now_s)


_NOTHING = (np.empty(0), np.empty(0))
