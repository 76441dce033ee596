"""Names of replicas."""

import hashlib
from collections.abc import Iterable

from solvers.types.state import ReplicaId

# A Kubernetes name has at most 253 characters; what follows the service's name takes at most 50 of them.
MAX_ID_PREFIX = 200
"""Characters of the service's name in a replica id, so that no id exceeds the wire's 253."""


def new_replica_id(service: str, generation: int, number: int) -> ReplicaId:
    """Unique for ever: the number is unique in its generation, and both stand at the end."""
    return ReplicaId(f"{service[:MAX_ID_PREFIX]}-g{generation}-{number}")


def placed_replica_id(service: str, place: Iterable[object]) -> ReplicaId:
    """The same for the same place: what is wanted there again, while it still drains or sleeps, is taken back.

    place: what runs, how, and on which GPUs, none of which two replicas share at once.
    """
    digest = hashlib.sha256(repr(tuple(place)).encode()).hexdigest()
    return ReplicaId(f"{service[:MAX_ID_PREFIX]}-{digest[:12]}")
