"""Which trained actor is asked, or why none is."""

from functools import lru_cache

from solvers.papers.inss.parameters import InssParameters
from solvers.papers.inss.training.actor import (
    Actor,
    BadActor,
    actor_from_bytes,
    refusal,
)
from solvers.types.problem import Problem
from solvers.types.state import Observed


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
