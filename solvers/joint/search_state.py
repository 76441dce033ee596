"""What every solve knows as it goes on: demand at present prices, the relaxation, what is proven, what is found.

`JointSearch` adds the course: which method has its turn when, and for how long.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from solvers.joint.heuristics.integer_plans import (
    NOTHING,
    IntegerPlan,
    shortage_cost,
    state_plan,
)
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.patterns.deadline import Deadline
from solvers.joint.patterns.decode import decode
from solvers.joint.patterns.formulation import RAISE, RAISES, CoverDemand
from solvers.joint.proofs import Proofs, free_for, leaves_short
from solvers.joint.relaxation.bounds import min_to_reach
from solvers.joint.relaxation.column_generation import (
    PHASES,
    Phase,
    Relaxation,
    generate,
    ignore,
)
from solvers.joint.relaxation.dual_prices import prices_of
from solvers.joint.solution import OPTIMAL_GAP, TECHNIQUE, JointSolution, state_solution
from solvers.types.outcome import SolveReport
from solvers.types.problem import Problem

RELAXATION_SHARE = 0.5
"""The relaxation is solved in this share of the budget; what is left is for integer plans."""
MIN_SAVING_USD_PER_HOUR = 1e-9
"""A plan that costs less by no more than this is not better: the difference is rounding."""


class SearchState:
    """The relaxation of a problem, proofs from it, and the best plan so far measured by them."""

    def __init__(
        self,
        problem: Problem,
        tools: SearchContext,
        demand: CoverDemand,
        deadline: Deadline,
    ) -> None:
        self._problem = problem
        self._is_goodput = problem.objective == "max_goodput"
        self._tools = tools
        self._tables = tools.tables
        self._pricer = tools.pricer
        self._columns = tools.columns
        self._demand = demand
        self._deadline = deadline
        self._proofs = Proofs(tools.tables, demand)
        self._is_proven = False
        self._found_s = 0.0
        self._found_cost = np.inf

    def _relax(
        self,
        start: Sequence[int],
        phases: Sequence[Phase] = PHASES,
        *,
        cutoff: float = np.inf,
        on_round: Callable[[Relaxation], None] = ignore,
    ) -> Relaxation:
        """The relaxation, with shortages so dear that only those remain that cannot be avoided, or nearly.

        They begin cheap, since what is short before the good patterns are found makes for wild duals.
        """
        is_over = self._deadline.part(RELAXATION_SHARE)
        for raises_left in range(RAISES, -1, -1):
            found = generate(
                self._tables,
                self._demand,
                self._pricer,
                self._columns,
                start=start,
                phases=phases,
                cutoff=cutoff,
                is_over=is_over,
                on_round=on_round,
            )
            # The bound holds at the shortage prices of this round, so the proof must go in before they rise.
            self._proofs.add(self._demand, found.bound)
            is_short = self._is_short(found)
            if not is_short or is_over():
                # A higher price changes neither duals nor bound of a relaxation that is short of nothing.
                self._raise_prices(RAISE**raises_left)
            # Under `max_goodput` shortages have the price of what they are worth, and no other.
            if not is_short or is_over() or not raises_left or self._is_goodput:
                break
            start = found.columns
            self._raise_prices(RAISE)
        return found

    def _is_short(self, relaxation: Relaxation) -> bool:
        """Whether the relaxation leaves more unserved than rounding explains."""
        shortage_rps = relaxation.solution.shortage_rps
        return bool((shortage_rps > NOTHING * self._demand.rate).any())

    def _raise_prices(self, factor: float) -> None:
        self._demand = self._at_shortage_prices(factor)

    def _at_shortage_prices(self, factor: float) -> CoverDemand:
        """The demand at shortage prices `factor` times as high under `min_cost`, as it is under `max_goodput`."""
        if self._is_goodput:
            return self._demand
        price = factor * self._demand.shortage_price
        return replace(self._demand, shortage_price=price)

    def _bound_cost(self, relaxation: Relaxation, plan: IntegerPlan) -> None:
        """Prove a lower bound on the cost of plans that leave no more short than this one."""
        demand = free_for(self._demand, plan)
        if plan.replicas_missing.any():
            # Parts of replicas that a relaxation misses less of would count for more than all cost.
            demand = replace(demand, missing_price=np.zeros_like(demand.missing_price))
        found = generate(
            self._tables,
            demand,
            self._pricer,
            self._columns,
            start=relaxation.columns,
            is_over=self._deadline.part(1.0),
        )
        self._proofs.add(demand, found.bound)

    def _cutoff(self, packed: Counter[int]) -> float:
        """The bound that proves a plan to be optimal; infinite where there is none, or it leaves something over."""
        plan = state_plan(self._tools, self._demand, packed)
        if leaves_short(plan):
            return np.inf
        return min_to_reach(self._tables, plan.cost_usd_per_hour)

    def _pruned(self, counts: Mapping[int, int]) -> IntegerPlan:
        """The plan of these GPUs by column, less what is superfluous."""
        kept = prune(self._tools, self._demand, counts)
        return state_plan(self._tools, self._demand, kept)

    def _answer(
        self,
        plan: IntegerPlan,
        method: str,
        relaxation: Relaxation,
    ) -> tuple[JointSolution, SolveReport, Relaxation]:
        """The plan in the contract's terms, with what is proven of it and the prices of the relaxation."""
        # A plan that time cut short may leave unserved what more time would have served.
        is_cut = not relaxation.is_exact and not self._is_proven
        decoded = decode(
            self._problem,
            self._tables,
            self._columns,
            plan.counts,
            policy=TECHNIQUE,
            is_cut=is_cut,
        )
        cost_bound, served_bound = self._bounds(plan)
        messages = () if self._is_proven else ("the budget ended the search",)
        solution, report = state_solution(
            self._problem,
            decoded,
            cost_bound,
            served_bound=served_bound,
            method=method,
            messages=messages,
        )
        # Prices are those of the relaxation in full: branching solves others, at other prices of shortages.
        prices = prices_of(self._problem, self._demand, self._columns, relaxation)
        solution = replace(solution, found_s=self._found_s, prices=prices)
        return solution, report, relaxation

    def _cost(self, plan: IntegerPlan) -> float:
        return plan.cost_usd_per_hour + shortage_cost(self._demand, plan)

    def _record(self, plan: IntegerPlan) -> None:
        """Note when a better plan was found, and whether it is proven."""
        cost = self._cost(plan)
        if cost < self._found_cost - MIN_SAVING_USD_PER_HOUR:
            self._found_cost = cost
            self._found_s = self._deadline.elapsed_s()
        self._check_gap(plan)

    def _check_gap(self, plan: IntegerPlan) -> None:
        """Let the search stop when a plan is as good as any can be."""
        cost_bound, served_bound = self._bounds(plan)
        weight = float(self._tables.priority @ (self._demand.rate - plan.shortage_rps))
        # To serve comes first: whatever it costs, a plan that may serve too little is not proven.
        if served_bound - weight <= OPTIMAL_GAP * weight:
            cost_gap = plan.cost_usd_per_hour - cost_bound
            self._is_proven = self._is_goodput or cost_gap <= OPTIMAL_GAP * cost_bound

    def _bounds(self, plan: IntegerPlan) -> tuple[float, float]:
        """A lower bound on the cost of plans that serve as much, an upper one on the weight that any plan serves."""
        # Proofs of cost are made at the prices of shortages under `min_cost`.
        cost_bound = 0.0 if self._is_goodput else self._proofs.cost_bound(plan)
        return cost_bound, self._proofs.served_bound()
