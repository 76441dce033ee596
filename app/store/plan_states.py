"""What becomes of a plan: one closed list of states, for the store, the API and the commands.

proposed → approved → target → superseded is the way of a plan that runs; every other state ends it. How good the
solver says that a plan is stands next to it, as its solution (`solvers.types.outcome.Solution`).
"""

from typing import Literal, get_args

PlanState = Literal[
    "proposed",
    "approved",
    "target",
    "superseded",
    "refused",
    "rejected",
    "kept",
    "lost",
    "withdrawn",
]
"""proposed: made, not pushed (advise, or approve before a person spoke); approved: a person said yes, next tick pushes;
target: in force; superseded: was in force; refused: the checker found a violation; rejected: a person said no; kept:
the current plan stays; lost: was to be pushed and could not be; withdrawn: waited for a person until a newer proposal
took its place or the controller restarted. The reasons of the last two are written next to them."""

PLAN_STATES: tuple[PlanState, ...] = get_args(PlanState)
UNDECIDED: tuple[PlanState, ...] = ("proposed", "approved")
"""States from which a plan may still become the target."""
ENDED: tuple[PlanState, ...] = tuple(
    state for state in PLAN_STATES if state not in ("target", *UNDECIDED)
)
"""States that no other one follows."""
DECISIVE: tuple[PlanState, ...] = tuple(
    state for state in PLAN_STATES if state != "kept"
)
"""States of plans that are listed: plans in state kept changed nothing, and come at every tick."""
