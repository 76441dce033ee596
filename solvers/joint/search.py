"""The course of one solve: which method has its turn when, for how long, and what of that is proven in the end."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from solvers.joint.heuristics.integer_plans import (
    NOTHING,
    IntegerPlan,
    IntegerPlans,
    shortage_cost,
    state_plan,
)
from solvers.joint.heuristics.packing import is_promising, pack
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.heuristics.small_fleets import plan_on_fleets
from solvers.joint.patterns.columns import Columns, Pattern
from solvers.joint.patterns.deadline import Deadline
from solvers.joint.patterns.decode import decode
from solvers.joint.patterns.formulation import RAISE, RAISES, CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.proofs import Proofs, free_for, short_cost
from solvers.joint.relaxation.bounds import min_to_reach
from solvers.joint.relaxation.branch_and_price import Incumbent, branch
from solvers.joint.relaxation.column_generation import (
    PHASES,
    Phase,
    Relaxation,
    generate,
    ignore,
)
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.dual_prices import prices_of
from solvers.joint.relaxation.pricing import Pricer
from solvers.joint.solution import OPTIMAL_GAP, TECHNIQUE, JointSolution, state_solution
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import SolveReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem

METHOD = "column generation"
"""Of a search from nothing."""
CHANGED = "re-planning"
"""Method of a plan that was made from what runs."""

RELAXATION_SHARE = 0.5
"""Of the budget; what is left is for whole plans."""
_PACKING_SHARE = 0.5
"""Of the budget, where packing is tried."""
_DIVE_SHARE = 0.9
"""Of what is left then, for a plan while the relaxation is being solved."""
_DUE_SHARE = 0.25
"""Of what is left when the relaxation begins: by then a good plan is begun, however good the relaxation is."""
_CAREFUL_SHARE = 0.35
"""Of what is left when a dive begins; then it makes haste."""
_SAVING_SHARE = 0.2
"""Of what is left then, for a bound on cost, where some demand cannot be served and branching does not follow."""
_STAGES = ((0.0, 0.0, 0.05), (0.03, 0.8, 1.0), (1.0, 0.0, 0.0))
"""Where branching pays: of what is left then, for whole plans, for plans fleet by fleet, and for branching, in turns.
The smallest fleets are proven at once; the others need a good plan before branching helps."""
_CLOSES_SOON = 0.5
"""Of the gap that the relaxation leaves: where branching closes so much of it at once, no fleets need be listed."""
_SERVING_SHARE = 0.5
"""Of what is left then, for the least shortage, where cost follows."""
_FEW_GPUS = 20.0
_FEW_SERVICES = 20
"""More than so many GPUs in the relaxation, or services, and branching would hardly move the bound."""
MIN_SAVING_USD_PER_HOUR = 1e-9


class JointSearch:
    """First packing where no service need be split, then the relaxation, with whole plans on the way; then whole plans
    until time is up or, where plans are small, by turns with plans fleet by fleet and branching.
    """

    def __init__(
        self,
        problem: Problem,
        tables: Tables,
        demand: CoverDemand,
        pricer: Pricer,
        columns: Columns,
        deadline: Deadline,
    ) -> None:
        self._problem, self._tables, self._demand = problem, tables, demand
        self._pricer, self._columns, self._deadline = pricer, columns, deadline
        self._proofs = Proofs(tables, demand)
        self._is_proven = False
        self._found_s, self._found_cost = 0.0, np.inf

    def run(
        self, start: Sequence[int], seed: int, executor: Executor | None
    ) -> tuple[JointSolution, SolveReport, Relaxation]:
        """The best plan found, with what is proven of it; `start`: columns to begin with."""
        packed, near = self._pack(seed, executor)
        tools = SearchContext(
            self._tables,
            self._pricer,
            self._columns,
            ColumnPool(self._tables, self._columns),
        )
        whole = IntegerPlans(
            tools, self._dearest(), seed=seed, on_better=self._look, first=packed
        )
        is_due = self._deadline.past(_DUE_SHARE)
        relaxation = self._relax(
            [*start, *near],
            cutoff=self._cutoff(packed),
            on_round=lambda found: self._round(whole, found, is_due),
        )
        prices = prices_of(self._problem, self._demand, self._columns, relaxation)
        if self.is_small(relaxation):
            plan, method = self._alternate(tools, whole, relaxation, seed)
        else:
            is_short = bool(
                (relaxation.solution.shortage_rps > NOTHING * self._demand.rate).any()
            )
            over = self._deadline.part(1.0 - _SAVING_SHARE if is_short else 1.0)
            plan, method = self._improve(whole, relaxation, over), METHOD
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
        if (
            self._problem.objective != "min_cost"
            or plan.shortage_rps.any()
            or plan.replicas_missing.any()
        ):
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
            *(tools, self._demand, relaxation),
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
        is_short = (
            relaxation.solution.shortage_rps > NOTHING * self._demand.rate
        ).any()
        if not whole.best.counts:
            whole.sketch(relaxation)
        elif (
            (relaxation.phase > 1 or is_due()) and not whole.has_dived and not is_short
        ):
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
        if self._problem.objective != "min_cost" or not is_promising(
            self._tables, self._demand
        ):
            return Counter(), []
        found = pack(
            *(self._tables, self._demand),
            seed=seed,
            is_over=self._deadline.part(_PACKING_SHARE),
            is_late=self._deadline.is_late,
            pool=executor,
            on_better=lambda plan: self._look(
                state_plan(
                    self._tables, self._columns, self._demand, self._numbered(plan)
                )
            ),
        )
        return self._numbered(found.plan), list(self._numbered(Counter(found.start)))

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
        stated = IntegerPlan(
            counts={},
            cost_usd_per_hour=cost_usd_per_hour(self._problem, plan),
            shortage_rps=np.array(
                [entry.rate_rps if entry else 0.0 for entry in entries]
            ),
            replicas_missing=np.array(
                [float(entry.replicas_missing) if entry else 0.0 for entry in entries]
            ),
        )
        cost_bound, served_bound = self._bounds(stated)
        solution, report = state_solution(
            self._problem, plan, cost_bound, served_bound=served_bound, method=CHANGED
        )
        prices = prices_of(self._problem, self._demand, self._columns, relaxation)
        return replace(solution, prices=prices), report, relaxation

    def _bound_cost(self, relaxation: Relaxation, plan: IntegerPlan) -> None:
        """Prove what plans cost that leave no more short."""
        demand = free_for(self._demand, plan)
        if plan.replicas_missing.any():
            # Parts of replicas that a relaxation misses less of would count for more than all cost.
            demand = replace(demand, missing_price=np.zeros_like(demand.missing_price))
        found = generate(
            *(self._tables, demand, self._pricer, self._columns),
            start=relaxation.columns,
            is_over=self._deadline.part(1.0),
        )
        self._proofs.add(demand, found.bound)

    def _branch(
        self, relaxation: Relaxation, plan: IntegerPlan, share: float
    ) -> IntegerPlan:
        """The plan that branching leaves. Where something is short under `min_cost`, the least is sought first, at
        prices beside which cost is nothing; then the least cost of what leaves no more short.
        """
        demand = self._demand
        if self._problem.objective == "min_cost" and plan.shortage_rps.any():
            dear = replace(demand, shortage_price=RAISE * demand.shortage_price)
            plan = self._branch_at(
                dear, relaxation, plan, self._deadline.part(_SERVING_SHARE * share)
            )
            demand = free_for(demand, plan)
            relaxation = replace(
                relaxation, bound=relaxation.bound - demand.free_shortage
            )
        return self._branch_at(demand, relaxation, plan, self._deadline.part(share))

    def _branch_at(
        self,
        demand: CoverDemand,
        relaxation: Relaxation,
        plan: IntegerPlan,
        is_over: Callable[[], bool],
    ) -> IntegerPlan:
        """The plan that branching at a demand's prices leaves; what that proves is noted."""
        cost, whole = (
            plan.cost_usd_per_hour,
            plan.cost_usd_per_hour + short_cost(demand, plan),
        )
        is_served_first = (
            self._problem.objective == "max_goodput"
            or demand.shortage_price is not self._demand.shortage_price
        )
        found = branch(
            *(self._tables, demand, self._pricer, self._columns, relaxation),
            incumbent=Incumbent(counts=plan.counts, cost_usd_per_hour=whole),
            is_over=is_over,
            # Of what counts: missing replicas cost many times the GPUs.
            gap=0.5
            * OPTIMAL_GAP
            * (1.0 if is_served_first or whole <= 0.0 else cost / whole),
        )
        assert found.incumbent is not None, "it was given one"
        is_full = not plan.shortage_rps.any() and not plan.replicas_missing.any()
        self._proofs.add(demand, found.bound, is_of_full=is_full)
        kept = prune(self._tables, self._columns, self._demand, found.incumbent.counts)
        better = state_plan(self._tables, self._columns, self._demand, kept)
        self._look(better)
        return (
            better
            if self._cost(better) < self._cost(plan) - MIN_SAVING_USD_PER_HOUR
            else plan
        )

    def _cost(self, plan: IntegerPlan) -> float:
        return plan.cost_usd_per_hour + shortage_cost(self._demand, plan)

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

    def _cutoff(self, packed: Counter[int]) -> float:
        """The bound that proves a plan to be optimal; infinite where there is none, or it leaves something over."""
        plan = state_plan(self._tables, self._columns, self._demand, packed)
        is_short = plan.shortage_rps.any() or plan.replicas_missing.any()
        return (
            np.inf if is_short else min_to_reach(self._tables, plan.cost_usd_per_hour)
        )

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
                *(self._tables, self._demand, self._pricer, self._columns),
                start=start,
                phases=phases,
                cutoff=cutoff,
                is_over=over,
                on_round=on_round,
            )
            self._proofs.add(self._demand, found.bound)
            is_short = (found.solution.shortage_rps > NOTHING * self._demand.rate).any()
            if not is_short or over():
                # A higher price changes neither duals nor bound of a relaxation that is short of nothing.
                self._raise_prices(RAISE**raises_left)
            if (
                not is_short
                or over()
                or not raises_left
                or self._problem.objective == "max_goodput"
            ):
                break
            start = found.columns
            self._raise_prices(RAISE)
        return found

    def _dearest(self) -> CoverDemand:
        """The demand with shortages at the price that they have in the end."""
        if self._problem.objective == "max_goodput":
            return self._demand
        return replace(
            self._demand, shortage_price=RAISE**RAISES * self._demand.shortage_price
        )

    def _raise_prices(self, factor: float) -> None:
        if self._problem.objective == "min_cost":
            self._demand = replace(
                self._demand, shortage_price=factor * self._demand.shortage_price
            )

    def _look(self, plan: IntegerPlan) -> None:
        """Note when a better plan was found."""
        if self._cost(plan) < self._found_cost - MIN_SAVING_USD_PER_HOUR:
            self._found_cost, self._found_s = (
                self._cost(plan),
                self._deadline.elapsed_s(),
            )
        self._check(plan)

    def _check(self, plan: IntegerPlan) -> None:
        """Stop when a plan is as good as any can be."""
        cost_bound, served_bound = self._bounds(plan)
        weight = float(self._tables.priority @ (self._demand.rate - plan.shortage_rps))
        if served_bound - weight <= OPTIMAL_GAP * weight:
            self._is_proven = (
                self._problem.objective == "max_goodput"
                or plan.cost_usd_per_hour - cost_bound <= OPTIMAL_GAP * cost_bound
            )

    def _bounds(self, plan: IntegerPlan) -> tuple[float, float]:
        """What no plan that serves as much costs less than, and what none serves more than."""
        is_goodput = self._problem.objective == "max_goodput"
        return 0.0 if is_goodput else self._proofs.cost_bound(
            plan
        ), self._proofs.served_bound()
