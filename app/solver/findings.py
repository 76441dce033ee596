"""Findings: what prices say of a plan: what its GPUs earn, what else they could run, which limits to loosen.

Quick ones follow from stored prices at once. `app.solver.analyse` finds more by solving relaxations.
"""

from dataclasses import dataclass

from solvers.explain.explain import NO_GPUS, GpuExplanations, explain_gpus
from solvers.explain.neighbours import NeighbourReader
from solvers.explain.relaxed_limits import priced_reliefs
from solvers.explain.types import Relief
from solvers.types.outcome import Budget, Prices
from solvers.types.plan import Plan
from solvers.types.problem import Problem

MAX_KINDS = 10
"""Kinds of GPUs that are explained: those that cost most."""
MAX_RELIEFS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """A plan to find out more about. The budget's `elapsed` is set where it runs."""

    problem: Problem
    plan: Plan
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found; without prices (nothing to serve) there is nothing else either."""

    prices: Prices | None
    gpus: GpuExplanations = NO_GPUS
    reliefs: tuple[Relief, ...] = ()


def quick_findings(neighbours: NeighbourReader, plan: Plan, prices: Prices) -> Findings:
    """What the prices say at once."""
    return Findings(
        prices=prices,
        gpus=explain_gpus(neighbours, plan, prices, most=MAX_KINDS),
        reliefs=priced_reliefs(neighbours, plan, prices)[:MAX_RELIEFS],
    )
