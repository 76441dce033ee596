"""How much of each language model's service is lost with a node or a zone, while its replicas get their places."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from solvers.types.plan import BoundReplica
from solvers.types.state import Node, NodeId
from solvers.types.survival import SurvivalGoal

_DIGITS = 9
"""Sums of the same rates in another order differ in their last digits."""


class ModelLosses:
    """What stands where; only goals that teams asked for count, and GPUs apart any two replicas are lost apart."""

    def __init__(
        self,
        replicas: Iterable[BoundReplica],
        nodes: Sequence[Node],
        goals: Sequence[SurvivalGoal],
    ) -> None:
        self._goals = {
            goal.service: goal
            for goal in goals
            if goal.is_asked and goal.loss in ("node", "zone")
        }
        self._zones = {node.id: node.zone for node in nodes}
        self._replicas = Counter[str]()
        self._rps: defaultdict[str, float] = defaultdict(float)
        self._replicas_on = Counter[tuple[str, str]]()
        self._rps_on: defaultdict[tuple[str, str], float] = defaultdict(float)
        for each in replicas:
            self._replicas[each.service] += 1
            self._rps[each.service] += each.arrival_rate_rps

    def add(self, replica: BoundReplica, node: NodeId) -> None:
        """It stands there."""
        self._count(replica, node, 1)

    def remove(self, replica: BoundReplica, node: NodeId) -> None:
        """It does not stand there any more."""
        self._count(replica, node, -1)

    def _count(self, replica: BoundReplica, node: NodeId, number: int) -> None:
        key = self._lost_with(replica.service, node)
        self._replicas_on[key] += number
        self._rps_on[key] += number * replica.arrival_rate_rps

    def _lost_with(self, service: str, node: NodeId) -> tuple[str, str]:
        """The service, with the node, or with its zone where the service must survive the loss of one."""
        goal = self._goals.get(service)
        is_zone = goal is not None and goal.loss == "zone"
        return service, self._zones[node] if is_zone else node

    def rank(self, service: str, node: NodeId) -> float:
        """How bad the node is for one replica more.

        Of a service that must survive the loss of it, what is lost with it, in requests per second; of others 1 where
        one more would be more than half of the service, rounded up, and 0 elsewhere.
        """
        key = self._lost_with(service, node)
        if service in self._goals:
            return round(self._rps_on[key], _DIGITS)
        return float(2 * self._replicas_on[key] >= self._replicas[service])

    def is_too_much(self, service: str, node: NodeId) -> bool:
        """Whether the loss leaves less of the service than its team asked for."""
        goal = self._goals.get(service)
        if goal is None:
            return False
        left_rps = self._rps[service] - self._rps_on[self._lost_with(service, node)]
        return round(goal.needed_rps - left_rps, _DIGITS) > 0.0
