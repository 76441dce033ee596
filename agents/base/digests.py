"""What tells commands of one generation apart, for agents and for the control plane."""

import hashlib

import msgspec

from agents.base.protocol import NodeCommand


def _hash(content: object, size: int) -> str:
    # No signature: it only tells two histories of the database apart.
    encoded = msgspec.json.encode(content)
    return hashlib.blake2b(encoded, digest_size=size).hexdigest()


SCHEMA = _hash(msgspec.json.schema(NodeCommand), 4)
"""Another release may know other fields, and write the same command otherwise."""


def digest_of(command: NodeCommand | None) -> str:
    """What tells commands of one generation apart: a database that was restored counts again. Empty: no command.

    Digests can be compared where both begin with the same `SCHEMA`.
    """
    if command is None:
        return ""
    return SCHEMA + _hash(command, 16)
