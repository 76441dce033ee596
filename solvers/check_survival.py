"""What each loss leaves of a bound plan, against what must be left: judged from the plan's own rates.

Shares no code with what spreads replicas. A plan that falls short is not refused: serving comes first, and operators
are told what the loss would do and what would help.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from solvers.check import exceeds
from solvers.types.plan import BoundGpu, BoundPlan
from solvers.types.state import Node, NodeId
from solvers.types.survival import LossKind, SurvivalGap, SurvivalGoal


def survival_gaps(
    bound: BoundPlan, nodes: Sequence[Node], goals: Iterable[SurvivalGoal]
) -> tuple[SurvivalGap, ...]:
    """The services that a single loss would leave too little of, by name."""
    zones = {node.id: node.zone for node in nodes}
    found = (
        _worst(bound, goal, zones)
        for goal in sorted(goals, key=lambda goal: goal.service)
    )
    return tuple(gap for gap in found if gap is not None)


def _worst(
    bound: BoundPlan, goal: SurvivalGoal, zones: Mapping[NodeId, str]
) -> SurvivalGap | None:
    planned_rps = _planned_rps(bound, goal, zones)
    if not planned_rps:
        return None
    lost = max(sorted(planned_rps), key=planned_rps.__getitem__)
    left_rps = sum(planned_rps.values()) - planned_rps[lost]
    if not exceeds(goal.needed_rps, left_rps):
        return None
    return SurvivalGap(
        service=goal.service,
        loss=goal.loss,
        lost=lost,
        left_rps=left_rps,
        needed_rps=goal.needed_rps,
        share=goal.share,
    )


def _planned_rps(
    bound: BoundPlan, goal: SurvivalGoal, zones: Mapping[NodeId, str]
) -> dict[str, float]:
    """By what is lost at once, what is planned there of the service."""
    found: defaultdict[str, float] = defaultdict(float)
    for gpu in bound.gpus:
        for replica in gpu.replicas:
            if replica.service == goal.service:
                found[_domain(gpu, goal.loss, zones)] += replica.arrival_rate_rps
    return found


def _domain(gpu: BoundGpu, loss: LossKind, zones: Mapping[NodeId, str]) -> str:
    """What is lost together with the GPU."""
    if loss == "gpu":
        return gpu.id
    return gpu.node if loss == "node" else zones.get(gpu.node, "")
