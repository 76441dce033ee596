"""Names of replicas."""

from solvers.types.state import ReplicaId

# A Kubernetes name has at most 253 characters; generation and number take at most 50 of them.
MAX_ID_PREFIX = 200
"""Characters of the service's name in a replica id, so that no id exceeds the wire's 253."""


def new_replica_id(service: str, generation: int, number: int) -> ReplicaId:
    """Unique for ever: the number is unique in its generation, and both stand at the end."""
    return ReplicaId(f"{service[:MAX_ID_PREFIX]}-g{generation}-{number}")
