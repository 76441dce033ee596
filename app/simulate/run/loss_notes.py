"""What the loss of a node cost in requests: the share of them that was late or lost in the minute after it."""

from collections.abc import Iterator, Mapping, Sequence

from agents.sim.cluster import SimulatedCluster
from agents.sim.faults import NodeLoss
from agents.sim.load.load_balancer import ArrivalSource
from agents.sim.spec import Fault
from app.simulate.run.record import count_overdue
from app.simulate.run.results import LossImpact, NodeLossResult
from solvers.types.state import Service

AFTER_S = 60.0
"""A loss is judged by so much of the time after it: detection, a new plan and starts take most of a minute."""
_SAME_S = 1e-3
"""Clocks that count from 1970 tell no finer moments apart; far less than any period here."""


class LossNotes:
    """Judges every loss of a node when the time by which it is judged is over. Moments are simulated seconds."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        services: Sequence[Service],
        loads: Mapping[str, ArrivalSource],
        *,
        faults: Sequence[Fault],
        warm_up_s: float,
    ) -> None:
        self._cluster, self._services, self._loads = cluster, services, loads
        self.results: list[NodeLossResult] = []
        """Losses after the warm-up of which all of that time was simulated."""
        self._ends_s = sorted(
            {
                fault.start_s + AFTER_S
                for fault in faults
                if fault.kind == "node_lost" and fault.start_s >= warm_up_s
            }
        )

    @property
    def due_s(self) -> float | None:
        """When `note` is to be called next; None: never again."""
        return self._ends_s[0] if self._ends_s else None

    def note(self, now_s: float) -> None:
        """Judge the losses whose time is over now."""
        while self._ends_s and self._ends_s[0] <= now_s + _SAME_S:
            begun_s = self._ends_s.pop(0) - AFTER_S
            self.results += [
                self._judge(loss)
                for loss in self._cluster.node_losses
                if abs(loss.fault.start_s - begun_s) <= _SAME_S
            ]

    def _judge(self, loss: NodeLoss) -> NodeLossResult:
        impacts = tuple(self._impacts(loss))
        judged = sum(each.judged for each in impacts)
        shares = [each.late for each in impacts if each.late is not None]
        return NodeLossResult(
            node=loss.fault.node,
            at_s=loss.fault.start_s,
            late=sum(each.missed for each in impacts) / judged if judged else None,
            worst=max(shares, default=None),
            services=impacts,
        )

    def _impacts(self, loss: NodeLoss) -> Iterator[LossImpact]:
        for service in self._services:
            name = service.name
            counted = self._cluster.tally(name).since(loss.tallies[name])
            overdue = count_overdue(self._cluster, service, self._loads.get(name))
            judged = counted.served + counted.rejected + overdue
            missed = judged - counted.in_slo
            yield LossImpact(
                service=name,
                replicas=loss.replicas.get(name, 0),
                replicas_lost=loss.replicas_lost.get(name, 0),
                judged=judged,
                missed=missed,
                late=missed / judged if judged else None,
            )
