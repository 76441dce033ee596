"""Integer plans under a power budget: what all used GPUs draw together, idle watts included, stays within it.

The formulation is that of `patterns.formulation` with one more row, Σ_p watts_p x_p ≤ W, in the master of every step:
the relaxation and its bound, the rest that a part of a plan leaves over, and branch and price. Its dual ω is a price of
a watt besides that of its energy, so pricing looks for patterns at the energy price plus ω. By Lagrangian duality

    cost of any plan within W  ≥  max over ω ≥ 0 of  (bound at energy price + ω) − ω · W

and the row finds that ω along with the other duals, in one column generation instead of a search over prices. Proofs
(`proofs`) speak of plans within the budget.

Integer plans: whole parts of the relaxation, with a small integer program with the row for the rest; what the search
without a budget finds where a watt costs ω more, since the methods of `heuristics` know no watts; then ruin and
recreate by such programs. Fleets of a few GPUs are branched on. What the budget leaves no room for is unserved, by
priority, as what a stock leaves no GPU for.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from solvers.joint.heuristics.diving import DiveContext, floors
from solvers.joint.heuristics.integer_plans import IntegerPlan, rank
from solvers.joint.heuristics.ruin_and_recreate import choose, recreate
from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.carried import carried, is_met, rest_of
from solvers.joint.patterns.columns import Column, Columns, power_w
from solvers.joint.patterns.decode import patterns_of
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.proofs import Proofs, leaves_short
from solvers.joint.relaxation.column_generation import (
    PHASES,
    Phase,
    Relaxation,
    generate,
)
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.master import Master
from solvers.joint.relaxation.master_solution import Duals
from solvers.joint.search import METHOD, JointSearch
from solvers.joint.solution import JointSolution
from solvers.joint.trim_to_power import fits, trimmed
from solvers.types.outcome import SolveReport
from solvers.types.plan import Plan

_PROGRAM_COLUMNS = 300
"""One integer program gets this number of columns, those of least reduced cost."""
_SIZES = (2, 7)
"""Smallest and largest number of GPUs that are taken out at a time."""
_PROGRAMS = 0.1
"""In this share of the neighbourhoods an integer program has the row of watts; in the others, which take far less
time, a watt has its price and the rest is hoped to fit."""
_TIGHT = (0.96, 0.9)
"""Shares of the power budget that relaxations are given: integer plans draw more than fractions of GPUs."""
_ROUGH_SHARE = 0.1
"""Each of these relaxations may take this share of the time that is left."""
_FEW_GPUS = 40
"""For plans of more GPUs, such a program is too slow for what it gains."""
_DEAR = 100.0
"""A watt costs at most this many times a GPU's price by the watt: the price of GPUs hardly counts then."""
_SLACK = 1e-9
"""Sums may exceed the budget by this share of it: it is rounding, a thousandth of the 1e-6 that the checker allows."""
_BRANCHING_SHARE = 0.8
"""Where fleets are small, branching has this share of what is left then; the rest is for whole plans."""


def max_gpus(tables: Tables, watts: float) -> Reals:
    """(G,) GPUs of each type that `watts` feed at most; 0 for types that can run nothing."""
    min_w = np.full(len(tables.stock), np.inf)
    for mode in tables.modes:
        own_w = tables.idle_w[mode.gpu_type] + mode.power.min()
        min_w[mode.gpu_type] = min(min_w[mode.gpu_type], own_w)
    # For a GPU that draws nothing this would divide by 0; any number of them is within the budget.
    gpus: Reals = np.floor(watts * (1.0 + _SLACK) / np.maximum(min_w, _SLACK))
    return gpus


class WattPool(ColumnPool):
    """Columns at what they cost where a watt costs a number of USD per hour besides its energy."""

    def __init__(self, tables: Tables, columns: Columns, watt_price: float) -> None:
        self._watt_price = watt_price
        super().__init__(tables, columns)

    def pricing_duals(self, duals: Duals) -> Duals:
        """The same at that price of a watt."""
        return replace(duals, watt_price=self._watt_price)

    def _price_of(self, column: Column) -> float:
        return column.price + self._watt_price * power_w(self._tables, column.pattern)


class WattSearch(JointSearch):
    """The course of a solve under a power budget: a rough relaxation for the price of a watt, plans at that price, the
    relaxation in full, and for small fleets branching.
    """

    def run_within(
        self,
        start: Sequence[int],
        seed: int,
        plan_at: Callable[[float], Plan],
    ) -> tuple[JointSolution, SolveReport, Relaxation]:
        """The best plan found within the budget, with what is proven of such plans; `start`: columns to begin with.

        plan_at: a plan by the search that knows no budget, where a watt costs some USD per hour besides its energy.
        """
        self._rng = np.random.default_rng(seed)
        self._limit_stock()
        plan, columns = self._priced(plan_at, start)
        relaxation = self._relax(columns)
        plan, method = self._improved(relaxation, plan)
        # Branching, which small fleets have, bounds the cost itself.
        is_large = not self._is_small(relaxation)
        if self._is_short(relaxation) and not self._is_goodput and is_large:
            self._bound_cost(relaxation, plan)
        return self._answer(plan, f"{method}, within watts", relaxation)

    def _limit_stock(self) -> None:
        """No more GPUs of a type than the budget feeds: of an endless stock nothing could be proven otherwise."""
        fed = max_gpus(self._tables, self._demand.watts)
        stock = np.minimum(self._demand.stock, fed)
        self._demand = replace(self._demand, stock=stock)
        # No plan costs more than the GPUs that can be fed, however many there are.
        self._proofs = Proofs(self._tables._replace(stock=stock), self._demand)

    def _improved(
        self,
        relaxation: Relaxation,
        plan: IntegerPlan,
    ) -> tuple[IntegerPlan, str]:
        """The best plan found with what is left of the time, and the method."""
        self._check_gap(plan)
        method = METHOD
        if self._is_proven:
            return plan, method
        is_small = self._is_small(relaxation)
        # Rounding takes an integer program, which pays where single GPUs count or demand is left over.
        if is_small or leaves_short(plan):
            plan = min(plan, self._rounded(relaxation), key=partial(rank, self._demand))
            self._record(plan)
        if is_small and not self._is_proven:
            plan = self._branch(relaxation, plan, _BRANCHING_SHARE)
            method = f"{METHOD}, branch and price"
        return self._recreated(relaxation, plan, self._deadline.part(1.0)), method

    def _priced(
        self,
        plan_at: Callable[[float], Plan],
        start: Sequence[int],
    ) -> tuple[IntegerPlan, Sequence[int]]:
        """The best plan at prices of watts of rough relaxations, and their columns; what is too much is left out.

        Each relaxation has fewer watts than the one before, until a plan at its price is within the budget.
        """
        plans: list[IntegerPlan] = []
        columns = start
        for share in _TIGHT:
            tight = replace(self._demand, watts=share * self._demand.watts)
            is_over = self._deadline.part(_ROUGH_SHARE)
            rough = self._roughly(tight, columns, PHASES[:2], is_over)
            columns = rough.columns
            # Where much is unserved, the dual is one of shortage prices, next to which GPUs would cost nothing.
            max_watt_price = _DEAR * self._gpu_watt()
            found = plan_at(min(rough.solution.duals.watt_price, max_watt_price))
            plans.append(self._of(trimmed(self._problem, found)))
            if fits(self._problem, found) or self._deadline.is_late():
                break
        best = min(plans, key=partial(rank, self._demand))
        self._record(best)
        return best, columns

    def _roughly(
        self,
        demand: CoverDemand,
        start: Sequence[int],
        phases: Sequence[Phase],
        is_over: Callable[[], bool],
    ) -> Relaxation:
        """A demand's relaxation after the first phases only."""
        return generate(
            self._tables,
            demand,
            self._pricer,
            self._columns,
            start=start,
            phases=phases,
            is_over=is_over,
        )

    def _gpu_watt(self) -> float:
        """USD per hour of a GPU, by each of the watts that it may draw; of the type where that is least."""
        idle_w = self._tables.idle_w
        modes = self._tables.modes
        return min(
            (mode.price / (idle_w[mode.gpu_type] + mode.power_w) for mode in modes),
            default=0.0,
        )

    def _rounded(self, relaxation: Relaxation) -> IntegerPlan:
        """Whole parts of the relaxation, which are within the budget as it is, and the best for the rest."""
        whole = floors(relaxation.solution.counts, relaxation.columns)
        if self._exceeds(whole):
            whole = Counter()  # Rounding, of counts a little below whole numbers.
        is_over = self._deadline.part(1.0)
        return self._pruned(self._completed(whole, relaxation, is_over))

    def _of(self, plan: Plan) -> IntegerPlan:
        """A plan in columns, less what is superfluous."""
        patterns = patterns_of(self._problem, self._tables, plan)
        return self._pruned(self._columns.numbered(patterns))

    def _recreated(
        self,
        relaxation: Relaxation,
        plan: IntegerPlan,
        is_over: Callable[[], bool],
    ) -> IntegerPlan:
        """The plan, a few GPUs of which are planned again until it is over or proven."""
        duals = relaxation.solution.duals
        # The heuristics do not know the row of watts: they work without it, on columns whose prices include its dual.
        free = replace(self._demand, watts=np.inf)
        pool = WattPool(self._tables, self._columns, duals.watt_price)
        tools = self._tools._replace(pool=pool)
        search = DiveContext(tools, free, duals, self._rng, is_over)
        while plan.counts and not self._is_proven and not is_over():
            pool.sync()
            found = self._neighbour(search, relaxation, Counter(plan.counts))
            if found is None or self._exceeds(found):
                continue
            other = self._pruned(found)
            if rank(self._demand, other) < rank(self._demand, plan):
                plan = other
                self._record(plan)
        return plan

    def _neighbour(
        self,
        search: DiveContext,
        relaxation: Relaxation,
        counts: Counter[int],
    ) -> Mapping[int, int] | None:
        """GPUs by column, some of which are planned again: by an integer program, or as if a watt had a price."""
        size = int(self._rng.integers(*_SIZES, endpoint=True))
        removed = choose(search, counts, size)
        if self._rng.random() < _PROGRAMS and counts.total() <= _FEW_GPUS:
            return self._completed(counts - removed, relaxation, search.is_over)
        # New columns are priced with their watts, so the GPUs that go count with theirs.
        saved = search.duals.watt_price * self._watts(removed)
        return recreate(search, counts, removed, saved)

    def _completed(
        self,
        fixed: Counter[int],
        relaxation: Relaxation,
        is_over: Callable[[], bool],
    ) -> Mapping[int, int]:
        """GPUs that are fixed, and for what they leave over the best of the columns that are cheapest for that."""
        rest = self._rest(fixed)
        if is_met(rest):
            return fixed
        weighted = zip(relaxation.columns, relaxation.solution.counts, strict=True)
        used = [number for number, count in weighted if count > 0.0 or number in fixed]
        found = self._roughly(rest, used, PHASES[:1], is_over)
        numbers = self._cheapest(rest, found)
        master = Master(self._tables, rest)
        master.add(self._columns[number] for number in numbers)
        solution = master.solve_whole(self._deadline.is_late)
        if solution is None:
            return fixed
        plan = fixed + floors(solution.counts, numbers)
        # HiGHS keeps a row only to its own tolerance, which is coarser than `_SLACK`.
        return fixed if self._exceeds(plan) else plan

    def _cheapest(self, rest: CoverDemand, found: Relaxation) -> list[int]:
        """Columns of a relaxation of a rest, those in use and others by reduced cost."""
        pool = self._tools.pool
        duals = found.solution.duals
        numbers = list(found.columns)
        pool.sync()
        watts = np.array([self._watts({number: 1}) for number in numbers])
        # The pool knows nothing of the row of watts, so its dual comes on top.
        costs = pool.reduced_costs(rest, duals)[numbers] + duals.watt_price * watts
        costs[found.solution.counts > 0.0] = -np.inf
        chosen = np.argsort(costs, kind="stable")[:_PROGRAM_COLUMNS]
        return [numbers[at] for at in chosen.tolist() if costs[at] < np.inf]

    def _bounds(self, plan: IntegerPlan) -> tuple[float, float]:
        """As for every plan; where no GPU can be fed nothing can be served."""
        cost_bound, served_bound = super()._bounds(plan)
        return cost_bound, served_bound if self._demand.stock.any() else 0.0

    def _rest(self, fixed: Counter[int]) -> CoverDemand:
        taken = carried(self._tables, self._columns, fixed)
        rest = rest_of(self._demand, self._tables, taken)
        return replace(rest, watts=max(0.0, self._demand.watts - self._watts(fixed)))

    def _watts(self, counts: Mapping[int, int]) -> float:
        watts = (
            count * power_w(self._tables, self._columns[number].pattern)
            for number, count in counts.items()
        )
        return float(sum(watts))

    def _exceeds(self, counts: Mapping[int, int]) -> bool:
        return self._watts(counts) > self._demand.watts * (1.0 + _SLACK)
