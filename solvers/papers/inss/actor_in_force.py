"""Who proposes provisions: which trained actor, or why none, and whether the local search as well."""

from functools import lru_cache
from typing import NamedTuple

from solvers.papers.inss.parameters import InssParameters
from solvers.papers.inss.training.actor import (
    Actor,
    BadActor,
    actor_from_bytes,
    refusal,
)
from solvers.types.problem import Problem
from solvers.types.state import Observed


class Proposers(NamedTuple):
    """Who proposes provisions."""

    actor: Actor | None
    why_not: str
    """Why there is no actor."""
    may_search: bool
    """Whether the local search is asked besides the actor."""


@lru_cache(maxsize=4)
def _read(data: bytes) -> Actor | str:
    try:
        return actor_from_bytes(data)
    except BadActor as error:
        return str(error)


def valid_actor(
    observed: Observed, problem: Problem, parameters: InssParameters
) -> tuple[Actor | None, str]:
    """The actor, or why there is none."""
    if parameters.proposals == "search":
        return None, "the parameter `proposals` asks for none"
    if observed.actor is None:
        return (
            None,
            "none was trained for this fleet; `plimsoll policy train inss` does",
        )
    found = _read(observed.actor)
    if isinstance(found, str):
        return None, found
    why_not = refusal(found, problem)
    return (None, why_not) if why_not else (found, "")
