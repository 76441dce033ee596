"""Which trained actor a fleet needs: for policy `inss` and its variants."""

from collections import Counter

from app.store.store import PolicySettings
from solvers.types.state import ClusterState, fingerprint_of

POLICIES = frozenset({"inss", "inss_1e", "inss_ni"})
"""That ask for one."""


def wants_actor(settings: PolicySettings) -> bool:
    """Whether the policy, or that of a group of services, asks for a trained actor."""
    return settings.policy in POLICIES or any(
        group.policy in POLICIES for group in settings.groups
    )


def fleet_fingerprint(state: ClusterState) -> str:
    """The name of all registered GPUs, by which actors are kept."""
    return fingerprint_of(sorted(Counter(gpu.gpu_type for gpu in state.gpus).items()))
