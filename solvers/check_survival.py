"""What each loss leaves of a bound plan, against what must be left: judged from the plan's own rates.

Shares no code with what spreads replicas. A plan that falls short is not refused: serving comes first, and operators
are told what the loss would do and what would help.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from solvers.check_base import exceeds
from solvers.types.plan import BoundGpu, BoundPlan
from solvers.types.state import Node, NodeId
from solvers.types.survival import LossKind, SurvivalGap, SurvivalGoal


def survival_gaps(
    bound: BoundPlan, nodes: Sequence[Node], goals: Iterable[SurvivalGoal]
) -> tuple[SurvivalGap, ...]:
    """The services that a single loss would leave too little of, by name."""
    zones = {node.id: node.zone for node in nodes}
    # Once for all goals, each of which would else go through the whole fleet.
    replicas: defaultdict[str, list[tuple[BoundGpu, float]]] = defaultdict(list)
    for gpu in bound.gpus:
        for replica in gpu.replicas:
            replicas[replica.service].append((gpu, replica.arrival_rate_rps))
    found = (
        _worst(replicas[goal.service], goal, zones)
        for goal in sorted(goals, key=lambda goal: goal.service)
    )
    return tuple(gap for gap in found if gap is not None)


def _worst(
    replicas: Iterable[tuple[BoundGpu, float]],
    goal: SurvivalGoal,
    zones: Mapping[NodeId, str],
) -> SurvivalGap | None:
    """replicas: those of the goal's service, with the rate that each is planned for."""
    planned_rps: defaultdict[str, float] = defaultdict(float)
    for gpu, rate_rps in replicas:
        planned_rps[_domain(gpu, goal.loss, zones)] += rate_rps
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


def _domain(gpu: BoundGpu, loss: LossKind, zones: Mapping[NodeId, str]) -> str:
    """What is lost together with the GPU."""
    if loss == "gpu":
        return gpu.id
    return gpu.node if loss == "node" else zones.get(gpu.node, "")
