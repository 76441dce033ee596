"""The course of one solve: which method has its turn when, for how long, and what of that is proven in the end.

    1. pack    greedily, where every service fits on one replica: a plan at once, and columns near it
    2. relax   column generation (`relaxation.column_generation`): lower bound, duals, columns
    3. round   integer plans out of these columns (`heuristics`), already while the relaxation is being solved
    4. close   for small fleets, enumeration of fleets and branch and price by turns with the third step

Every share of the budget below is one of what is left when its step begins, so that a step which ends early leaves its
time to those after it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solvers.joint.heuristics.integer_plans import (
    IntegerPlan,
    IntegerPlans,
    state_plan,
)
from solvers.joint.heuristics.packing import is_promising, pack
from solvers.joint.heuristics.small_fleets import plan_on_fleets
from solvers.joint.patterns.columns import Pattern
from solvers.joint.patterns.formulation import RAISE, RAISES, CoverDemand
from solvers.joint.proofs import free_for, leaves_short, short_cost
from solvers.joint.relaxation.branch_and_price import Incumbent, branch
from solvers.joint.relaxation.column_generation import (
    PHASES,
    Relaxation,
)
from solvers.joint.relaxation.dual_prices import prices_of
from solvers.joint.search_state import MIN_SAVING_USD_PER_HOUR, SearchState
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
_SERVING_SHARE = 0.5
"""The minimum shortage is sought in this share of the time for branching, where the minimum cost is sought after it."""
_FEW_GPUS = 20.0
_FEW_SERVICES = 20
"""More than this number of GPUs in the relaxation, or services, and branching would hardly move the bound."""


class _Stage(NamedTuple):
    """Shares of what is left, for three methods that take turns where branching pays."""

    plans: float
    fleets: float
    branching: float


# The smallest fleets are proven at once; the others need a good plan before branching helps.
_STAGES = (_Stage(0.0, 0.0, 0.05), _Stage(0.03, 0.9, 1.0), _Stage(1.0, 0.0, 0.0))


class JointSearch(SearchState):
    """First packing where no service need be split, then the relaxation, with integer plans on the way; then integer
    plans until time is up or, where plans are small, by turns with plans fleet by fleet and branching.
    """

    def run(
        self,
        start: Sequence[int],
        seed: int,
        executor: Executor | None,
    ) -> tuple[JointSolution, SolveReport, Relaxation]:
        """The best plan found, with what is proven of it; `start`: columns to begin with."""
        packed, near = self._pack(seed, executor)
        self._tools.pool.sync()
        plans = self._integer_plans(seed, packed)
        is_due = self._deadline.past(_DUE_SHARE)
        relaxation = self._relax(
            [*start, *near],
            cutoff=self._cutoff(packed),
            on_round=lambda found: self._plan_meanwhile(plans, found, is_due),
        )
        if self._is_small(relaxation):
            plan, method = self._alternate(plans, relaxation, seed)
        else:
            plan, method = self._improve_large(plans, relaxation), METHOD
        return self._answer(plan, method, relaxation)

    def _integer_plans(self, seed: int, first: Mapping[int, int]) -> IntegerPlans:
        # Integer plans must not trade requests for GPUs: they see the prices that shortages have in the end.
        return IntegerPlans(
            self._tools,
            self._at_shortage_prices(RAISE**RAISES),
            seed=seed,
            on_better=self._record,
            first=first,
        )

    def _is_small(self, relaxation: Relaxation) -> bool:
        """Whether branching can be hoped to end."""
        return bool(
            relaxation.solution.counts.sum() <= _FEW_GPUS
            and len(self._tables.rate) <= _FEW_SERVICES
        )

    def _improve_large(
        self,
        plans: IntegerPlans,
        relaxation: Relaxation,
    ) -> IntegerPlan:
        """The best plan found in what is left, some of which goes to a bound on cost where demand is left over."""
        needs_bound = self._is_short(relaxation) and not self._is_goodput
        share = 1.0 - _SAVING_SHARE if self._is_short(relaxation) else 1.0
        plan = self._improve(plans, relaxation, self._deadline.part(share))
        if needs_bound:
            self._bound_cost(relaxation, plan)
        return plan

    def _alternate(
        self,
        plans: IntegerPlans,
        relaxation: Relaxation,
        seed: int,
    ) -> tuple[IntegerPlan, str]:
        """Integer plans and branching in turns, until a plan is proven or time is up; the plan and the method."""
        method = METHOD
        for stage in _STAGES:
            plan = self._improve(plans, relaxation, self._deadline.part(stage.plans))
            if self._is_proven:
                break
            if stage.fleets > 0.0 and self._may_save(plan):
                is_over = self._deadline.part(stage.fleets)
                plan = self._improve_on_fleets(relaxation, plan, seed, is_over)
            plan = self._branch(relaxation, plan, stage.branching)
            method = f"{METHOD}, branch and price"
            if self._is_proven or self._deadline.part(1.0)():
                break
            # Branching has made columns and perhaps a better plan: the heuristics begin again from both.
            plans = self._integer_plans(seed, Counter(plan.counts))
        return plan, method

    def _may_save(self, plan: IntegerPlan) -> bool:
        """Whether a better plan would be a cheaper one: it serves everything, and cost is what counts."""
        return not self._is_goodput and not leaves_short(plan)

    def _improve_on_fleets(
        self,
        relaxation: Relaxation,
        plan: IntegerPlan,
        seed: int,
        is_over: Callable[[], bool],
    ) -> IntegerPlan:
        """The plan, or a cheaper one that serves everything."""
        found = plan_on_fleets(
            self._tools,
            self._demand,
            relaxation,
            below=plan.cost_usd_per_hour,
            seed=seed,
            is_over=is_over,
        )
        if found is None:
            return plan
        better = self._pruned(found)
        self._record(better)
        return better

    def _plan_meanwhile(
        self,
        plans: IntegerPlans,
        relaxation: Relaxation,
        is_due: Callable[[], bool],
    ) -> None:
        """Integer plans while the relaxation is being solved: one at once, a good one when pricing tries harder."""
        if not plans.best.counts:
            plans.sketch(relaxation)
            return
        # A dive from a relaxation that lacks columns would leave over what other columns serve.
        is_time = relaxation.phase > 1 or is_due()
        if is_time and not plans.has_dived and not self._is_short(relaxation):
            self._dive(plans, relaxation, self._deadline.part(_DIVE_SHARE))

    def _dive(
        self,
        plans: IntegerPlans,
        relaxation: Relaxation,
        is_over: Callable[[], bool],
    ) -> None:
        plans.dive(relaxation, is_over, is_late=self._deadline.past(_CAREFUL_SHARE))

    def _improve(
        self,
        plans: IntegerPlans,
        relaxation: Relaxation,
        is_over: Callable[[], bool],
    ) -> IntegerPlan:
        """The best plan that is found until it is over, or proven."""
        if not plans.best.counts:
            plans.sketch(relaxation)
        if not plans.has_dived and not is_over():
            self._dive(plans, relaxation, is_over)
        # A plan that was made before the bound was known may be proven by now.
        self._check_gap(plans.best)
        plans.improve(relaxation, lambda: self._is_proven or is_over())
        return plans.best

    def _pack(
        self,
        seed: int,
        executor: Executor | None,
    ) -> tuple[Counter[int], list[int]]:
        """A plan that splits no service, and columns for the relaxation; neither where that is not promising."""
        # Packing looks for the cheapest plan that serves everything, which only `min_cost` asks for.
        if self._is_goodput or not is_promising(self._tables, self._demand):
            return Counter(), []
        found = pack(
            self._tables,
            self._demand,
            seed=seed,
            is_over=self._deadline.part(_PACKING_SHARE),
            is_late=self._deadline.is_late,
            pool=executor,
            on_better=self._record_patterns,
        )
        packed = self._columns.numbered(found.plan)
        near = list(self._columns.numbered(Counter(found.start)))
        return packed, near

    def _record_patterns(self, plan: Counter[Pattern]) -> None:
        counts = self._columns.numbered(plan)
        self._record(state_plan(self._tools, self._demand, counts))

    def judge(
        self,
        plan: Plan,
        start: Sequence[int],
    ) -> tuple[JointSolution, SolveReport, Relaxation]:
        """What is soon proven of a plan; `start`: columns to begin with."""
        # Two cheap phases give a bound and prices soon; that they find no more columns does not make them exact.
        relaxation = replace(self._relax(start, PHASES[:2]), is_exact=False)
        cost_bound, served_bound = self._bounds(self._measured(plan))
        solution, report = state_solution(
            self._problem,
            plan,
            cost_bound,
            served_bound=served_bound,
            method=CHANGED,
        )
        prices = prices_of(self._problem, self._demand, self._columns, relaxation)
        return replace(solution, prices=prices), report, relaxation

    def _measured(self, plan: Plan) -> IntegerPlan:
        """What a plan costs and leaves short: bounds ask no more, so it need not be taken apart into columns."""
        unserved = {entry.service: entry for entry in plan.unserved}
        entries = [unserved.get(service.name) for service in self._problem.services]
        short = [entry.rate_rps if entry else 0.0 for entry in entries]
        missing = [float(entry.replicas_missing) if entry else 0.0 for entry in entries]
        return IntegerPlan(
            counts={},
            cost_usd_per_hour=cost_usd_per_hour(self._problem, plan),
            shortage_rps=np.array(short),
            replicas_missing=np.array(missing),
        )

    def _branch(
        self,
        relaxation: Relaxation,
        plan: IntegerPlan,
        share: float,
    ) -> IntegerPlan:
        """The plan that branching leaves. Where something is short under `min_cost`, the minimum shortage is sought
        first, at prices next to which cost is nothing; then the minimum cost of what leaves no more short.
        """
        demand = self._demand
        if not self._is_goodput and plan.shortage_rps.any():
            dear = self._at_shortage_prices(RAISE)
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
        total_cost = plan.cost_usd_per_hour + short_cost(demand, plan)
        found = branch(
            self._tables,
            demand,
            self._pricer,
            self._columns,
            relaxation,
            incumbent=Incumbent(counts=plan.counts, cost_usd_per_hour=total_cost),
            is_over=is_over,
            gap=self._branching_gap(demand, plan, total_cost),
        )
        self._proofs.add(demand, found.bound, is_of_full=not leaves_short(plan))
        assert found.incumbent is not None, "it was given one"
        better = self._pruned(found.incumbent.counts)
        self._record(better)
        is_better = self._cost(better) < self._cost(plan) - MIN_SAVING_USD_PER_HOUR
        return better if is_better else plan

    def _branching_gap(
        self,
        demand: CoverDemand,
        plan: IntegerPlan,
        total_cost: float,
    ) -> float:
        """The gap relative to the total cost at which branching may stop."""
        is_served_first = (
            self._is_goodput or demand.shortage_price is not self._demand.shortage_price
        )
        # `branch` takes a gap of the total cost, in which missing replicas may outweigh the GPUs many times.
        is_all_counted = is_served_first or total_cost <= 0.0
        counted_share = 1.0 if is_all_counted else plan.cost_usd_per_hour / total_cost
        # Half of the gap that counts as optimal, so that what branching closes surely passes the check of it.
        return 0.5 * OPTIMAL_GAP * counted_share
