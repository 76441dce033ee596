"""What every solve knows as it goes on: demand at present prices, the relaxation, what is proven, what is found.

`JointSearch` adds the course: which method has its turn when, and for how long.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from solvers.joint.heuristics.integer_plans import (
    NOTHING,
    IntegerPlan,
    shortage_cost,
    state_plan,
)
from solvers.joint.patterns.columns import Columns
from solvers.joint.patterns.deadline import Deadline
from solvers.joint.patterns.decode import decode
from solvers.joint.patterns.formulation import RAISE, RAISES, CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.proofs import Proofs, free_for
from solvers.joint.relaxation.bounds import min_to_reach
from solvers.joint.relaxation.column_generation import (
    PHASES,
    Phase,
    Relaxation,
    generate,
    ignore,
)
from solvers.joint.relaxation.pricing import Pricer
from solvers.joint.solution import OPTIMAL_GAP, TECHNIQUE, JointSolution, state_solution
from solvers.types.outcome import SolveReport
from solvers.types.problem import Problem

RELAXATION_SHARE = 0.5
"""The relaxation is solved in this share of the budget; what is left is for whole plans."""
MIN_SAVING_USD_PER_HOUR = 1e-9
"""A plan that costs less by no more than this is not better: the difference is rounding."""


class RelaxedSearch:
    """The relaxation of a problem, proofs from it, and the best plan so far measured by them."""

    def __init__(
        self,
        problem: Problem,
        tables: Tables,
        demand: CoverDemand,
        pricer: Pricer,
        columns: Columns,
        deadline: Deadline,
    ) -> None:
        self._problem = problem
        self._tables = tables
        self._demand = demand
        self._pricer = pricer
        self._columns = columns
        self._deadline = deadline
        self._proofs = Proofs(tables, demand)
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
        over = self._deadline.part(RELAXATION_SHARE)
        for raises_left in range(RAISES, -1, -1):
            found = generate(
                self._tables,
                self._demand,
                self._pricer,
                self._columns,
                start=start,
                phases=phases,
                cutoff=cutoff,
                is_over=over,
                on_round=on_round,
            )
            self._proofs.add(self._demand, found.bound)
            is_short = self._is_short(found)
            if not is_short or over():
                # A higher price changes neither duals nor bound of a relaxation that is short of nothing.
                self._raise_prices(RAISE**raises_left)
            # Under `max_goodput` shortages have the price of what they are worth, and no other.
            is_goodput = self._problem.objective == "max_goodput"
            if not is_short or over() or not raises_left or is_goodput:
                break
            start = found.columns
            self._raise_prices(RAISE)
        return found

    def _is_short(self, relaxation: Relaxation) -> bool:
        """Whether the relaxation leaves more unserved than rounding explains."""
        shortage_rps = relaxation.solution.shortage_rps
        return bool((shortage_rps > NOTHING * self._demand.rate).any())

    def _raise_prices(self, factor: float) -> None:
        if self._problem.objective == "min_cost":
            self._demand = replace(
                self._demand, shortage_price=factor * self._demand.shortage_price
            )

    def _dearest(self) -> CoverDemand:
        """The demand with shortages at the price that they have in the end."""
        if self._problem.objective == "max_goodput":
            return self._demand
        return replace(
            self._demand, shortage_price=RAISE**RAISES * self._demand.shortage_price
        )

    def _bound_cost(self, relaxation: Relaxation, plan: IntegerPlan) -> None:
        """Prove what plans cost that leave no more short."""
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
        plan = state_plan(self._tables, self._columns, self._demand, packed)
        is_short = plan.shortage_rps.any() or plan.replicas_missing.any()
        if is_short:
            return np.inf
        return min_to_reach(self._tables, plan.cost_usd_per_hour)

    def _state(
        self, plan: IntegerPlan, method: str, *, is_exact: bool
    ) -> tuple[JointSolution, SolveReport]:
        is_cut = not is_exact and not self._is_proven
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
        return replace(solution, found_s=self._found_s), report

    def _cost(self, plan: IntegerPlan) -> float:
        return plan.cost_usd_per_hour + shortage_cost(self._demand, plan)

    def _look(self, plan: IntegerPlan) -> None:
        """Note when a better plan was found."""
        cost = self._cost(plan)
        if cost < self._found_cost - MIN_SAVING_USD_PER_HOUR:
            self._found_cost = cost
            self._found_s = self._deadline.elapsed_s()
        self._check(plan)

    def _check(self, plan: IntegerPlan) -> None:
        """Stop when a plan is as good as any can be."""
        cost_bound, served_bound = self._bounds(plan)
        weight = float(self._tables.priority @ (self._demand.rate - plan.shortage_rps))
        # To serve comes first: whatever it costs, a plan that may serve too little is not proven.
        if served_bound - weight <= OPTIMAL_GAP * weight:
            cost_gap = plan.cost_usd_per_hour - cost_bound
            is_goodput = self._problem.objective == "max_goodput"
            self._is_proven = is_goodput or cost_gap <= OPTIMAL_GAP * cost_bound

    def _bounds(self, plan: IntegerPlan) -> tuple[float, float]:
        """What no plan that serves as much costs less than, and what none serves more than."""
        is_goodput = self._problem.objective == "max_goodput"
        # Proofs of cost are made at the prices of shortages under `min_cost`.
        cost_bound = 0.0 if is_goodput else self._proofs.cost_bound(plan)
        return cost_bound, self._proofs.served_bound()
