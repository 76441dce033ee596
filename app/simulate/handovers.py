"""GPUs that serve on though no plan in force uses them: their replicas move, or nobody reaches their node.

They run and cost as much as the others, so they are billed until their last replica has gone.
"""

from dataclasses import dataclass, field
from datetime import datetime

from agents.sim.cluster import SimulatedCluster
from agents.sim.node import SimGpu
from solvers.plan import BoundGpu, BoundPlan
from solvers.state import GpuId, gpu_id


@dataclass(slots=True, kw_only=True)
class Handovers:
    """Who serves on, and since when. Call `look` whenever a target is pushed or agents may have stopped replicas."""

    cluster: SimulatedCluster
    changes: list[tuple[datetime, BoundPlan]] = field(default_factory=list)
    """Like targets: the GPUs that serve on, each set with the time from which it was so."""
    _planned: BoundPlan | None = None
    _left: dict[GpuId, BoundGpu] = field(default_factory=dict)
    """As the last plan had them that used them."""

    def look(self, target: BoundPlan | None, at: datetime) -> None:
        """Note who serves on now beside the target in force."""
        if target is not None and target is not self._planned:
            used = {gpu.id for gpu in target.gpus}
            before = self._planned.gpus if self._planned else ()
            self._left = {key: gpu for key, gpu in self._left.items() if key not in used}
            self._left |= {gpu.id: gpu for gpu in before if gpu.id not in used}
            self._planned = target
        self._left = {key: gpu for key, gpu in self._left.items() if _carries(self._simulated(key, gpu))}
        gpus = tuple(self._left[key] for key in sorted(self._left))
        if gpus != (self.changes[-1][1].gpus if self.changes else ()):
            self.changes.append((at, BoundPlan(generation=0, parent=0, policy="", gpus=gpus)))

    def _simulated(self, key: GpuId, gpu: BoundGpu) -> SimGpu:
        return next(each for each in self.cluster.node(gpu.node).gpus if gpu_id(gpu.node, each.index) == key)


def _carries(gpu: SimGpu) -> bool:
    return any(each.state != "failed" for each in gpu.replicas.values())
