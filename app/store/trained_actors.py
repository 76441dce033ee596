"""Which trained actor a fleet needs, where its policy asks for one."""

from collections import Counter

from app.store.store import PolicySettings
from solvers.policies.registry import needs_actor
from solvers.types.state import ClusterState, fingerprint_of


def wants_actor(settings: PolicySettings) -> bool:
    """Whether the policy, or that of a group of services, asks for a trained actor."""
    policies = (settings.policy, *(group.policy for group in settings.groups))
    return any(map(needs_actor, policies))


def fleet_fingerprint(state: ClusterState) -> str:
    """The name of all registered GPUs, by which actors are kept."""
    gpus = Counter(gpu.gpu_type for gpu in state.gpus)
    return fingerprint_of(sorted(gpus.items()))
