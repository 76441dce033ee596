"""Inquire: what takes a solver to know of a plan. Runs where policies run; nothing else should wait for it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from app.solver.findings import MAX_KINDS, MAX_RELIEFS, Findings, Inquiry
from solvers.explain.alternatives import Neighbourhood
from solvers.explain.explain import explain_gpus
from solvers.explain.neighbours import NeighbourReader
from solvers.explain.solve_relaxed import solved_reliefs
from solvers.explain.types import Alternative
from solvers.joint.relaxation.dual_prices import Relaxed, relax
from solvers.joint.reserved import split, split_plan
from solvers.policies.beside import others_beside
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem

MAX_ALTERNATIVES = 4
_FIRST_SHARE, _SECOND_SHARE = 0.5, 0.7
"""After these shares of the budget the relaxation, and then the alternatives, are to be found."""


@dataclass(frozen=True, slots=True)
class _Time:
    """How much of the budget's seconds is gone."""

    now_s: Callable[[], float]
    began_s: float
    seconds: float

    def over(self, share: float) -> Callable[[], bool]:
        """Whether more than that share of them is."""
        end_s = self.began_s + share * self.seconds
        return lambda: self.now_s() >= end_s


def find_out(
    inquiry: Inquiry,
    now_s: Callable[[], float] = time.monotonic,
) -> Findings:
    """Prices, alternatives, and the most promising reliefs put to the test, as far as the budget's seconds go."""
    plan = inquiry.plan
    spent = _Time(now_s, now_s(), inquiry.budget.seconds)
    # Prices of GPUs are what those pay who share them; language models have theirs to themselves.
    problem = others_beside(inquiry.problem, plan)
    # The plan's own columns start it: the relaxation is at once as good as the plan. Both pay for a reserved type
    # beyond what is reserved only, as the policy does.
    base = relax(
        split(problem),
        start=split_plan(problem, plan),
        is_over=spent.over(_FIRST_SHARE),
    )
    if base is None:
        return Findings(prices=None)
    return _found(problem, plan, base, spent)


def _found(
    problem: Problem,
    plan: Plan,
    base: Relaxed,
    spent: _Time,
) -> Findings:
    prices = base.prices()
    search = Neighbourhood(problem, plan, prices)
    is_late = spent.over(_SECOND_SHARE)

    def alternatives(gpu: GpuPlan) -> tuple[Alternative, ...]:
        # A kind whose turn comes late gets no alternatives, so that the reliefs have time left.
        if is_late():
            return ()
        return search.alternatives(gpu, MAX_ALTERNATIVES)

    reader = NeighbourReader(problem)
    gpus = explain_gpus(
        reader,
        plan,
        prices,
        most=MAX_KINDS,
        alternatives=alternatives,
    )
    reliefs = solved_reliefs(
        reader,
        plan,
        prices,
        base,
        is_over=spent.over(1.0),
    )
    return Findings(
        prices=prices,
        gpus=gpus,
        reliefs=reliefs[:MAX_RELIEFS],
    )
