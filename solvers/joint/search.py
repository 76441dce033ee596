"""The course of one solve: which method has its turn when, for how long, and what of that is proven in the end."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from solvers.joint.heuristics.integer_plans import (
    IntegerPlan,
    IntegerPlans,
    state_plan,
)
from solvers.joint.heuristics.packing import is_promising, pack
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.heuristics.small_fleets import plan_on_fleets
from solvers.joint.patterns.columns import Pattern
from solvers.joint.patterns.formulation import RAISE, CoverDemand
from solvers.joint.proofs import free_for, short_cost
from solvers.joint.relaxation.branch_and_price import Incumbent, branch
from solvers.joint.relaxation.column_generation import (
    PHASES,
    Relaxation,
)
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.dual_prices import prices_of
from solvers.joint.relaxed_search import MIN_SAVING_USD_PER_HOUR, RelaxedSearch
from solvers.joint.solution import OPTIMAL_GAP, JointSolution, state_solution
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import SolveReport
from solvers.types.plan import Plan

METHOD = "column generation"
"""Method of a search from nothing."""
CHANGED = "re-planning"
"""Method of a plan that was made from what runs."""

_PACKING_SHARE = 0.5
"""Where packing is tried, it may take this share of the budget."""
_DIVE_SHARE = 0.9
"""A dive while the relaxation is being solved may take this share of what is left then."""
_DUE_SHARE = 0.25
"""After this share of what is left when the relaxation begins, a good plan is begun, however good the relaxation is."""
_CAREFUL_SHARE = 0.35
"""After this share of what is left when a dive begins, it makes haste."""
_SAVING_SHARE = 0.2
"""Where some demand cannot be served and branching does not follow, this share of the rest is for a bound on cost."""
_STAGES = ((0.0, 0.0, 0.05), (0.03, 0.8, 1.0), (1.0, 0.0, 0.0))
"""Where branching pays: shares of what is left, for whole plans, for plans fleet by fleet, and for branching, in turns.
The smallest fleets are proven at once; the others need a good plan before branching helps."""
_CLOSES_SOON = 0.5
"""Where branching closes this share of the relaxation's gap at once, no fleets need be listed."""
_SERVING_SHARE = 0.5
"""The least shortage is sought in this share of the time for branching, where the least cost is sought after it."""
_FEW_GPUS = 20.0
_FEW_SERVICES = 20
"""More than so many GPUs in the relaxation, or services, and branching would hardly move the bound."""


class JointSearch(RelaxedSearch):
    """First packing where no service need be split, then the relaxation, with whole plans on the way; then whole plans
    until time is up or, where plans are small, by turns with plans fleet by fleet and branching.
    """

    def run(
        self, start: Sequence[int], seed: int, executor: Executor | None
    ) -> tuple[JointSolution, SolveReport, Relaxation]:
        """The best plan found, with what is proven of it; `start`: columns to begin with."""
        packed, near = self._pack(seed, executor)
        pool = ColumnPool(self._tables, self._columns)
        tools = SearchContext(self._tables, self._pricer, self._columns, pool)
        whole = IntegerPlans(
            tools, self._dearest(), seed=seed, on_better=self._look, first=packed
        )
        is_due = self._deadline.past(_DUE_SHARE)
        relaxation = self._relax(
            [*start, *near],
            cutoff=self._cutoff(packed),
            on_round=lambda found: self._round(whole, found, is_due),
        )
        # Prices are those of the relaxation in full: branching solves others, at other prices of shortages.
        prices = prices_of(self._problem, self._demand, self._columns, relaxation)
        if self.is_small(relaxation):
            plan, method = self._alternate(tools, whole, relaxation, seed)
        else:
            is_short = self._is_short(relaxation)
            over = self._deadline.part(1.0 - _SAVING_SHARE if is_short else 1.0)
            plan = self._improve(whole, relaxation, over)
            method = METHOD
            if is_short and self._problem.objective == "min_cost":
                self._bound_cost(relaxation, plan)
        solution, report = self._state(plan, method, is_exact=relaxation.is_exact)
        return replace(solution, prices=prices), report, relaxation

    def is_small(self, relaxation: Relaxation) -> bool:
        """Whether branching can be hoped to end."""
        return bool(
            relaxation.solution.counts.sum() <= _FEW_GPUS
            and len(self._tables.rate) <= _FEW_SERVICES
        )

    def _alternate(
        self,
        tools: SearchContext,
        whole: IntegerPlans,
        relaxation: Relaxation,
        seed: int,
    ) -> tuple[IntegerPlan, str]:
        """Whole plans and branching in turns, until a plan is proven or time is up; the plan and the method."""
        method = METHOD
        for for_plans, for_fleets, for_branching in _STAGES:
            plan = self._improve(whole, relaxation, self._deadline.part(for_plans))
            if self._is_proven:
                break
            if for_fleets > 0.0 and not self._closes_soon(relaxation, plan):
                plan = self._improve_on_fleets(
                    tools, relaxation, plan, seed, self._deadline.part(for_fleets)
                )
            plan = self._branch(relaxation, plan, for_branching)
            method = f"{METHOD}, branch and price"
            if self._is_proven or self._deadline.part(1.0)():
                break
            whole = IntegerPlans(
                tools,
                self._dearest(),
                seed=seed,
                on_better=self._look,
                first=Counter(plan.counts),
            )
        return plan, method

    def _closes_soon(self, relaxation: Relaxation, plan: IntegerPlan) -> bool:
        """Whether branching has closed much of the gap, or it is not one of cost."""
        is_short = plan.shortage_rps.any() or plan.replicas_missing.any()
        if self._problem.objective != "min_cost" or is_short:
            return True
        closed = self._bounds(plan)[0] - relaxation.bound
        return closed >= _CLOSES_SOON * (plan.cost_usd_per_hour - relaxation.bound)

    def _improve_on_fleets(
        self,
        tools: SearchContext,
        relaxation: Relaxation,
        plan: IntegerPlan,
        seed: int,
        is_over: Callable[[], bool],
    ) -> IntegerPlan:
        """The plan, or a cheaper one that serves everything."""
        found = plan_on_fleets(
            tools,
            self._demand,
            relaxation,
            below=plan.cost_usd_per_hour,
            seed=seed,
            is_over=is_over,
        )
        if found is None:
            return plan
        kept = prune(self._tables, self._columns, self._demand, found)
        better = state_plan(self._tables, self._columns, self._demand, kept)
        self._look(better)
        return better

    def _round(
        self, whole: IntegerPlans, relaxation: Relaxation, is_due: Callable[[], bool]
    ) -> None:
        """Whole plans while the relaxation is still being solved: one at once, a good one when pricing tries harder."""
        if not whole.best.counts:
            whole.sketch(relaxation)
            return
        # A dive from a relaxation that lacks columns would leave over what other columns serve.
        is_time = relaxation.phase > 1 or is_due()
        if is_time and not whole.has_dived and not self._is_short(relaxation):
            self._dive(whole, relaxation, self._deadline.part(_DIVE_SHARE))

    def _dive(
        self, whole: IntegerPlans, relaxation: Relaxation, is_over: Callable[[], bool]
    ) -> None:
        whole.dive(relaxation, is_over, is_late=self._deadline.past(_CAREFUL_SHARE))

    def _improve(
        self, whole: IntegerPlans, relaxation: Relaxation, is_over: Callable[[], bool]
    ) -> IntegerPlan:
        """The best plan that is found until it is over, or proven."""
        if not whole.best.counts:
            whole.sketch(relaxation)
        if not whole.has_dived and not is_over():
            self._dive(whole, relaxation, is_over)
        # A plan that was made before the bound was known may be proven by now.
        self._check(whole.best)
        whole.improve(relaxation, lambda: self._is_proven or is_over())
        return whole.best

    def _pack(
        self, seed: int, executor: Executor | None
    ) -> tuple[Counter[int], list[int]]:
        """A plan that splits no service, and columns for the relaxation; neither where that is not promising."""
        # Packing looks for the cheapest plan that serves everything, which only `min_cost` asks for.
        is_min_cost = self._problem.objective == "min_cost"
        if not is_min_cost or not is_promising(self._tables, self._demand):
            return Counter(), []
        found = pack(
            self._tables,
            self._demand,
            seed=seed,
            is_over=self._deadline.part(_PACKING_SHARE),
            is_late=self._deadline.is_late,
            pool=executor,
            on_better=lambda plan: self._look(self._stated_patterns(plan)),
        )
        packed = self._numbered(found.plan)
        near = list(self._numbered(Counter(found.start)))
        return packed, near

    def _stated_patterns(self, plan: Counter[Pattern]) -> IntegerPlan:
        counts = self._numbered(plan)
        return state_plan(self._tables, self._columns, self._demand, counts)

    def _numbered(self, plan: Counter[Pattern]) -> Counter[int]:
        """Column number → GPUs."""
        self._columns.add(plan)
        return Counter(
            {self._columns.number(pattern): count for pattern, count in plan.items()}
        )

    def judge(
        self, plan: Plan, start: Sequence[int]
    ) -> tuple[JointSolution, SolveReport, Relaxation]:
        """What is soon proven of a plan; `start`: columns to begin with."""
        relaxation = replace(self._relax(start, PHASES[:2]), is_exact=False)
        unserved = {entry.service: entry for entry in plan.unserved}
        entries = [unserved.get(service.name) for service in self._problem.services]
        short = [entry.rate_rps if entry else 0.0 for entry in entries]
        missing = [float(entry.replicas_missing) if entry else 0.0 for entry in entries]
        # Bounds ask only what a plan costs and leaves short, so it need not be taken apart into columns.
        stated = IntegerPlan(
            counts={},
            cost_usd_per_hour=cost_usd_per_hour(self._problem, plan),
            shortage_rps=np.array(short),
            replicas_missing=np.array(missing),
        )
        cost_bound, served_bound = self._bounds(stated)
        solution, report = state_solution(
            self._problem, plan, cost_bound, served_bound=served_bound, method=CHANGED
        )
        prices = prices_of(self._problem, self._demand, self._columns, relaxation)
        return replace(solution, prices=prices), report, relaxation

    def _branch(
        self, relaxation: Relaxation, plan: IntegerPlan, share: float
    ) -> IntegerPlan:
        """The plan that branching leaves. Where something is short under `min_cost`, the least is sought first, at
        prices beside which cost is nothing; then the least cost of what leaves no more short.
        """
        demand = self._demand
        if self._problem.objective == "min_cost" and plan.shortage_rps.any():
            dear = replace(demand, shortage_price=RAISE * demand.shortage_price)
            is_over = self._deadline.part(_SERVING_SHARE * share)
            plan = self._branch_at(dear, relaxation, plan, is_over)
            demand = free_for(demand, plan)
            # The relaxation paid for the shortage that is free from now on.
            bound = relaxation.bound - demand.free_shortage
            relaxation = replace(relaxation, bound=bound)
        return self._branch_at(demand, relaxation, plan, self._deadline.part(share))

    def _branch_at(
        self,
        demand: CoverDemand,
        relaxation: Relaxation,
        plan: IntegerPlan,
        is_over: Callable[[], bool],
    ) -> IntegerPlan:
        """The plan that branching at a demand's prices leaves; what that proves is noted."""
        cost = plan.cost_usd_per_hour
        total_cost = cost + short_cost(demand, plan)
        is_served_first = (
            self._problem.objective == "max_goodput"
            or demand.shortage_price is not self._demand.shortage_price
        )
        # The gap is one of what counts: missing replicas cost many times the GPUs.
        is_all_counted = is_served_first or total_cost <= 0.0
        counted_share = 1.0 if is_all_counted else cost / total_cost
        found = branch(
            self._tables,
            demand,
            self._pricer,
            self._columns,
            relaxation,
            incumbent=Incumbent(counts=plan.counts, cost_usd_per_hour=total_cost),
            is_over=is_over,
            gap=0.5 * OPTIMAL_GAP * counted_share,
        )
        assert found.incumbent is not None, "it was given one"
        is_full = not plan.shortage_rps.any() and not plan.replicas_missing.any()
        self._proofs.add(demand, found.bound, is_of_full=is_full)
        kept = prune(self._tables, self._columns, self._demand, found.incumbent.counts)
        better = state_plan(self._tables, self._columns, self._demand, kept)
        self._look(better)
        is_better = self._cost(better) < self._cost(plan) - MIN_SAVING_USD_PER_HOUR
        return better if is_better else plan
