"""Modes: whether a decision may be pushed, by the policy's mode and those of the services that it would change."""

from app.control.store import PolicySettings
from solvers.plan import BoundPlan, BoundReplica
from solvers.state import ClusterState, Mode

CAUTION = (Mode.OFF, Mode.ADVISE, Mode.APPROVE, Mode.AUTO)
"""Most cautious first."""


def effective_mode(settings: PolicySettings, state: ClusterState, target: BoundPlan | None, bound: BoundPlan) -> Mode:
    """The most cautious of the policy's mode and those of the services whose replicas change, and of their groups.

    A service in mode off is not planned at all, so its own mode does not keep its last replicas from ending. Where
    switches want approval, a plan of another policy than the target's waits for it.
    """
    changed = changed_services(target, bound)
    services = [service for service in state.services if service.name in changed]
    groups = [group for group in map(settings.group_of, services) if group is not None]
    modes = [service.mode for service in services if service.mode is not Mode.OFF]
    if settings.approve_switch and target is not None and target.policy != bound.policy:
        modes.append(Mode.APPROVE)
    return min([settings.mode, *modes, *(group.mode for group in groups)], key=CAUTION.index)


def changed_services(target: BoundPlan | None, bound: BoundPlan) -> set[str]:
    """Services whose replicas differ in place, SM percent, batch or clock; routing weights alone are no change."""
    before, after = _settings(target), _settings(bound)
    return {entry[0] for entry in before ^ after}


def _settings(plan: BoundPlan | None) -> set[tuple[str, str, str, float, int, float]]:
    def key(gpu: str, clock_mhz: float, replica: BoundReplica) -> tuple[str, str, str, float, int, float]:
        return replica.service, replica.id, gpu, replica.sm_percent, replica.batch, clock_mhz

    return {key(gpu.id, gpu.clock_mhz, replica) for gpu in (plan.gpus if plan else ()) for replica in gpu.replicas}
