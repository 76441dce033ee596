"""Scopes of tokens: what their holders may do."""

from typing import Literal, TypeAlias, get_args

PersonScope: TypeAlias = Literal["viewer", "operator", "admin"]
"""What a person may do; each also allows what stands before it."""

NodeScope: TypeAlias = Literal["agent", "join"]
"""An agent's token is one node's; a join token makes such ones."""

Scope: TypeAlias = Literal[PersonScope, NodeScope]

PERSON_SCOPES: tuple[PersonScope, ...] = get_args(PersonScope)
NODE_SCOPES: tuple[NodeScope, ...] = get_args(NodeScope)
SCOPES: tuple[Scope, ...] = get_args(Scope)
