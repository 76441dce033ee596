"""What goes wrong on a simulated cluster: faults begin and end, and the balancer learns late that a node is lost."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from agents.sim.gpu import SimGpu
from agents.sim.load.load_balancer import DETECTION_S
from agents.sim.node import SimNode
from agents.sim.queues.tally import ServiceTally
from agents.sim.spec import BUSIEST, Fault

_GPU_LOSSES = ("gpu_lost", "node_lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTarget:
    """A lost node to which requests of a service still go, since the load balancer does not know of the loss yet."""

    node: SimNode
    weight: float
    """What the service's replicas there had together."""
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoss:
    """How things stood at the moment before a node was lost."""

    fault: Fault
    """With the name of the node that it took."""
    tallies: Mapping[str, ServiceTally]
    """Counts by service since the start."""
    replicas: Mapping[str, int]
    """Ready replicas by service, on all nodes."""
    replicas_lost: Mapping[str, int]
    """Those of them that were on the node."""


def before_loss(
    fault: Fault, nodes: Mapping[str, SimNode], tallies: Mapping[str, ServiceTally]
) -> NodeLoss:
    """How things stand before a fault takes its node; tallies: by service."""
    ready = [
        (node.spec.name, each.command.service)
        for node in nodes.values()
        for _, each in node.replicas()
        if each.state == "ready"
    ]
    return NodeLoss(
        fault=fault,
        tallies=tallies,
        replicas=Counter(service for _, service in ready),
        replicas_lost=Counter(service for name, service in ready if name == fault.node),
    )


class ClusterFaults:
    """The faults of a cluster, in trace time."""

    def __init__(
        self,
        faults: tuple[Fault, ...],
        nodes: Mapping[str, SimNode],
    ) -> None:
        self._faults = faults
        self._nodes = nodes
        self._lost: set[str] = set()
        self._lost_targets: dict[str, tuple[LostTarget, ...]] = {}

    def is_node_lost(self, name: str) -> bool:
        """Whether the node is lost now."""
        return name in self._lost

    def is_cut_off(
        self,
        name: str,
        reported_at_s: float,
        now_s: float,
    ) -> bool:
        """Whether what the node's agent reported then does not reach anybody now."""
        return any(
            fault.kind in ("silent", "node_lost")
            or (fault.kind == "stale" and now_s < reported_at_s + fault.delay_s)
            for fault in self._faults
            if fault.node == name and fault.is_on(now_s)
        )

    def moments_s(self, after_s: float) -> Iterator[float]:
        """When something begins or ends after that."""
        for fault in self._faults:
            yield from (
                moment for moment in (fault.start_s, fault.end_s) if moment > after_s
            )
        for targets in self._lost_targets.values():
            yield from (each.until_s for each in targets if each.until_s > after_s)

    def lost_targets(
        self,
        service: str,
        now_s: float,
    ) -> tuple[LostTarget, ...]:
        """Lost nodes to which requests of the service go all the same."""
        known = self._lost_targets.get(service, ())
        return tuple(each for each in known if now_s < each.until_s)

    def lose_nodes(self, now_s: float) -> tuple[Fault, ...]:
        """Faults that take a node now, each with its node's name. Call it before `apply`.

        From now on requests go astray until the load balancer has noticed.
        """
        self._name_busiest(now_s)
        for name in sorted(self._lost):
            if not any(_takes(fault, name, now_s) for fault in self._faults):
                self._lost.discard(name)
        new = []
        for fault in self._faults:
            if _takes(fault, fault.node, now_s) and fault.node not in self._lost:
                self._lost.add(fault.node)
                self._go_astray(self._nodes[fault.node], now_s)
                new.append(fault)
        return tuple(new)

    def apply(self, now_s: float) -> None:
        """GPUs are lost, come back, become slow or fail to launch, as the faults say."""
        # Most nodes have no fault, and this is asked at every event.
        named = {fault.node for fault in self._faults}
        for name, node in self._nodes.items():
            if name in named:
                for gpu in node.gpus:
                    self._apply_to(node, gpu, now_s)

    def _apply_to(
        self,
        node: SimNode,
        gpu: SimGpu,
        now_s: float,
    ) -> None:
        active = [
            fault
            for fault in self._faults
            if fault.hits(node.spec.name, gpu.index, now_s)
        ]
        gpu.launch_fails = any(fault.kind == "launch_failure" for fault in active)
        is_lost = any(fault.kind in _GPU_LOSSES for fault in active)
        slowdown = float(
            np.prod([fault.factor for fault in active if fault.kind == "straggler"])
        )
        # Once, at the moment of the fault: what is lost is counted there.
        if is_lost and gpu.is_healthy:
            node.lose_gpu(gpu, now_s)
        # A GPU that comes back is empty: its replicas failed when it was lost.
        gpu.is_healthy = not is_lost
        # Looking execution times up is the expensive part, so it is done after changes alone.
        if slowdown != gpu.slowdown:
            gpu.slowdown = slowdown
            node.set_paces(gpu)

    def _name_busiest(self, now_s: float) -> None:
        """Faults of the busiest node get the name of the one that is it when they begin, and keep it."""
        begun = [fault for fault in self._faults if fault.is_on(now_s)]
        if all(fault.node != BUSIEST for fault in begun):
            return
        # A node that is lost already cannot be lost again, so the busiest of the others is meant.
        lost = {fault.node for fault in begun if fault.kind == "node_lost"}
        named = []
        for fault in self._faults:
            if fault.node == BUSIEST and fault in begun:
                left = [node for name, node in self._nodes.items() if name not in lost]
                chosen = max(left or self._nodes.values(), key=planned_rate_rps)
                fault = replace(fault, node=chosen.spec.name)
                lost |= {fault.node} if fault.kind == "node_lost" else set()
            named.append(fault)
        self._faults = tuple(named)

    def _go_astray(
        self,
        node: SimNode,
        now_s: float,
    ) -> None:
        for route in node.routes:
            weight = sum(rate_rps for _, rate_rps in _ready_shares(node, route.service))
            if weight > 0.0:
                target = LostTarget(
                    node=node,
                    weight=weight,
                    until_s=now_s + DETECTION_S,
                )
                before = self.lost_targets(route.service, now_s)
                self._lost_targets[route.service] = (*before, target)


def planned_rate_rps(node: SimNode) -> float:
    """The rate that the plan gives a node's ready replicas, over all services."""
    return sum(
        rate_rps
        for route in node.routes
        for _, rate_rps in _ready_shares(node, route.service)
    )


def _ready_shares(node: SimNode, service: str) -> Iterator[tuple[str, float]]:
    """The shares of a service's route whose replicas are ready; a weight is the plan's rate."""
    ready = {each.command.id for _, each in node.replicas() if each.state == "ready"}
    return (
        (replica_id, rate_rps)
        for route in node.routes
        if route.service == service
        for replica_id, rate_rps in route.shares
        if replica_id in ready and not math.isclose(rate_rps, 0.0)
    )


def _takes(
    fault: Fault,
    node: str,
    now_s: float,
) -> bool:
    return fault.kind == "node_lost" and fault.node == node and fault.is_on(now_s)
