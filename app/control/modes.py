"""Modes: whether a decision may be pushed, by the policy's mode and those of the services that it would change."""

from solvers.plan import BoundPlan, BoundReplica
from solvers.state import ClusterState, Mode

CAUTION = (Mode.OFF, Mode.ADVISE, Mode.APPROVE, Mode.AUTO)
"""Most cautious first."""


def effective_mode(policy: Mode, state: ClusterState, target: BoundPlan | None, bound: BoundPlan) -> Mode:
    """The most cautious of the policy's mode and those of the services whose replicas change.

    A service in mode off is not planned at all, so its own mode does not keep its last replicas from ending.
    """
    changed = changed_services(target, bound)
    modes = [service.mode for service in state.services if service.name in changed and service.mode is not Mode.OFF]
    return min([policy, *modes], key=CAUTION.index)


def changed_services(target: BoundPlan | None, bound: BoundPlan) -> set[str]:
    """Services whose replicas differ in place, SM percent, batch or clock; routing weights alone are no change."""
    before, after = _settings(target), _settings(bound)
    return {entry[0] for entry in before ^ after}


def _settings(plan: BoundPlan | None) -> set[tuple[str, str, str, float, int, float]]:
    def key(gpu: str, clock_mhz: float, replica: BoundReplica) -> tuple[str, str, str, float, int, float]:
        return replica.service, replica.id, gpu, replica.sm_percent, replica.batch, clock_mhz

    return {key(gpu.id, gpu.clock_mhz, replica) for gpu in (plan.gpus if plan else ()) for replica in gpu.replicas}
