"""InSS' parameters: who proposes provisions, and what a new one must gain."""

from dataclasses import dataclass
from typing import Literal

from solvers.types.parameters import PolicyParameters, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class InssParameters(PolicyParameters):
    """Parameters of `inss` and its variants."""

    proposals: Literal["actor, then search", "actor", "search"] = parameter(
        "actor, then search",
        "who proposes where batches do not suffice: `actor`: the trained one alone, as the paper; `search`: the greedy"
        " provisioner and the local search, which are ours, as without an actor",
        choices=("actor, then search", "actor", "search"),
    )
    search_after_s: float = parameter(
        120.0,
        "seconds for which the actor must have fallen short before the search proposes as well: what it moves makes"
        " requests late, which a load that swings would not earn back; ours",
        at_least=0.0,
        at_most=86_400.0,
    )
    drawn: int = parameter(
        64,
        "proposals drawn of the actor, of which the best counts; the paper takes the first, 1",
        at_least=1,
        at_most=1024,
    )
    price_of_moves: float = parameter(
        0.1,
        "what a provision that moves all replicas must gain, of the weighted demand; of fewer, less; ours",
        at_least=0.0,
        at_most=1.0,
    )
