"""Solve a Problem jointly: column generation, then whole GPUs, with a proven bound beside the plan."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from solvers.cost import cost_usd_per_hour, served_weight
from solvers.joint.bounds import whole_gpus
from solvers.joint.branch import Incumbent, branch
from solvers.joint.change import change
from solvers.joint.columns import Columns, single_patterns
from solvers.joint.deadline import Deadline
from solvers.joint.decode import decode, patterns_of
from solvers.joint.generate import Relaxation, generate
from solvers.joint.integer import NOTHING, IntegerPlan, shortage_cost, solve_integer, state_plan
from solvers.joint.master import Demand
from solvers.joint.pool import Pool
from solvers.joint.prices import prices_of
from solvers.joint.pricing import Pattern, Pricer
from solvers.joint.prune import prune
from solvers.joint.residual import Kit
from solvers.joint.tables import Tables, make_tables
from solvers.joint.wanted import cheapest_rps, make_demand, priced_problem
from solvers.outcome import Budget, Prices, SolveReport, SolveStatus
from solvers.plan import Plan
from solvers.problem import Problem

TECHNIQUE = "joint"
OPTIMAL_GAP = 1e-4
"""Relative gap from which a plan counts as optimal."""
_METHOD = "column generation"

_RELAXATION_SHARE = 0.5
"""Of the budget; what is left is for whole plans."""
_SMALL_SHARE = 0.4
"""Of what is left then, for the search for whole plans where branching follows."""
_FEW_GPUS = 20.0
_FEW_SERVICES = 20
"""More than so many GPUs in the relaxation, or services, and branching would hardly move the bound."""
_RAISE = 20.0
_RAISES = 3
"""Shortage prices rise by that factor, so many times: to serve comes before to save."""
_LEAST_SAVING_USD_PER_HOUR = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSolution:
    """The plan and what is proven about all others."""

    plan: Plan
    cost_bound: float | None
    """USD per hour without migration: no plan that serves as much, and misses no more replicas, costs less."""
    served_weight_bound: float
    """No plan's Σ priority · served rps is more, among those that miss no more replicas."""
    changed: Plan | None = None
    """The running plan, changed by as little as it takes; None where nothing runs."""
    found_s: float = 0.0
    """Seconds into the budget at which the plan was found; 0 where no time passes."""
    prices: Prices | None = None
    """Of the relaxation; None where there is nothing to serve."""


def solve(problem: Problem, budget: Budget) -> tuple[JointSolution, SolveReport]:
    """The best plan found within the budget, and what the running one can be changed to with few starts.

    Migration costs choose between the two elsewhere; here they play no part. Optimal means proven to `OPTIMAL_GAP`,
    both in what is served and, under `min_cost`, in cost; otherwise the status is feasible: a plan always exists.
    """
    tables = make_tables(priced_problem(problem))
    deadline = Deadline(budget, tables)
    columns = Columns(tables)
    columns.add(single_patterns(tables, tables.rate))
    demand = make_demand(problem, tables, cheapest_rps(tables, columns))
    if not demand.rate.any() and not demand.fewest.any():
        return _stated(problem, decode(problem, tables, columns, {}, policy=TECHNIQUE), 0.0, served_bound=0.0)
    patterns = Counter[Pattern]() if problem.current is None else patterns_of(problem, tables, problem.current)
    columns.add(patterns)
    running = {columns.number(pattern): count for pattern, count in patterns.items()}
    with _threads(budget.threads) as pool:
        search = _Search(problem, tables, demand, Pricer(tables, pool=pool), columns, deadline)
        return search.run(running, budget.seed)


@contextmanager
def _threads(count: int) -> Iterator[Executor | None]:
    if count <= 1:
        yield None
        return
    with ThreadPoolExecutor(count) as pool:
        yield pool


class _Search:
    """One solve: the relaxation, whole plans until one is proven or time is up, and branching where plans are small."""

    def __init__(
        self, problem: Problem, tables: Tables, demand: Demand, pricer: Pricer, columns: Columns, deadline: Deadline
    ) -> None:
        self._problem, self._tables, self._demand = problem, tables, demand
        self._pricer, self._columns, self._deadline = pricer, columns, deadline
        self._bound = -np.inf
        self._is_proven = False
        self._found_s = 0.0

    def run(self, running: Mapping[int, int], seed: int) -> tuple[JointSolution, SolveReport]:
        """The best plan found, with what is proven of it, and the running GPUs by column changed as needed."""
        relaxation = self._relax(list(running))
        self._bound = relaxation.bound
        prices = prices_of(self._problem, self._demand, self._columns, relaxation)
        changed = self._change(relaxation, running) if running else None
        is_small = relaxation.solution.counts.sum() <= _FEW_GPUS and len(self._tables.rate) <= _FEW_SERVICES
        over = self._deadline.part(_SMALL_SHARE if is_small else 1.0)
        plan = solve_integer(
            self._tables,
            self._demand,
            self._pricer,
            self._columns,
            relaxation,
            seed=seed,
            is_over=lambda: self._is_proven or over(),
            on_better=self._look,
        )
        method = _METHOD
        if is_small and not self._is_proven:
            plan, method = self._branch(relaxation, plan), f"{_METHOD}, branch and price"
        solution, report = self._stated(plan, method, is_exact=relaxation.is_exact)
        return replace(solution, changed=changed, prices=prices), report

    def _change(self, relaxation: Relaxation, running: Mapping[int, int]) -> Plan:
        kit = Kit(self._tables, self._pricer, self._columns, Pool(self._tables, self._columns))
        counts = change(kit, self._demand, relaxation.solution.duals, running)
        return decode(self._problem, self._tables, self._columns, counts, policy=TECHNIQUE)

    def _branch(self, relaxation: Relaxation, plan: IntegerPlan) -> IntegerPlan:
        """The plan that branching leaves, and a better bound (under `min_cost` only where the plan serves all)."""
        found = branch(
            self._tables,
            self._demand,
            self._pricer,
            self._columns,
            relaxation,
            incumbent=Incumbent(counts=plan.counts, cost_usd_per_hour=self._cost(plan)),
            is_over=self._deadline.part(1.0),
            gap=0.5 * OPTIMAL_GAP,
        )
        assert found.incumbent is not None, "it was given one"
        kept = prune(self._tables, self._columns, self._demand, found.incumbent.counts)
        better = state_plan(self._tables, self._columns, self._demand, kept)
        if self._problem.objective == "max_goodput":
            # Rounded up to whole GPUs, which a plan with shortages need not cost.
            self._bound = max(self._bound, found.bound - float(self._tables.price.max()))
        elif not better.shortage_rps.any() and not better.replicas_missing.any():
            self._bound = max(self._bound, found.bound)
        is_cheaper = self._cost(better) < self._cost(plan) - _LEAST_SAVING_USD_PER_HOUR
        found_s = self._found_s
        self._look(better)
        self._found_s = self._found_s if is_cheaper else found_s
        return better if is_cheaper else plan

    def _cost(self, plan: IntegerPlan) -> float:
        return plan.cost_usd_per_hour + shortage_cost(self._demand, plan)

    def _stated(self, plan: IntegerPlan, method: str, *, is_exact: bool) -> tuple[JointSolution, SolveReport]:
        decoded = decode(self._problem, self._tables, self._columns, plan.counts, policy=TECHNIQUE, is_cut=not is_exact)
        cost_bound, served_bound = self._bounds(plan)
        messages = () if self._is_proven else ("the budget ended the search",)
        solution, report = _stated(
            self._problem, decoded, cost_bound, served_bound=served_bound, method=method, messages=messages
        )
        return replace(solution, found_s=self._found_s), report

    def _relax(self, start: Sequence[int]) -> Relaxation:
        """The relaxation, with shortages so dear that only those remain that cannot be avoided, or nearly.

        They begin cheap, since what is short before the good patterns are found makes for wild duals.
        """
        over = self._deadline.part(_RELAXATION_SHARE)
        for raises_left in range(_RAISES, -1, -1):
            found = generate(self._tables, self._demand, self._pricer, self._columns, start=start, is_over=over)
            is_short = (found.solution.shortage_rps > NOTHING * self._demand.rate).any()
            if not is_short or over():
                # A higher price changes neither duals nor bound of a relaxation that is short of nothing.
                self._raise_prices(_RAISE**raises_left)
            if not is_short or over() or self._problem.objective == "max_goodput":
                break
            start = found.columns
            self._raise_prices(_RAISE)
        return found

    def _raise_prices(self, factor: float) -> None:
        if self._problem.objective == "min_cost":
            self._demand = replace(self._demand, shortage_price=factor * self._demand.shortage_price)

    def _look(self, plan: IntegerPlan) -> None:
        """Note when a better plan was found; stop when it is as good as any can be."""
        self._found_s = self._deadline.elapsed_s()
        cost_bound, served_bound = self._bounds(plan)
        weight = float(self._tables.priority @ (self._demand.rate - plan.shortage_rps))
        if served_bound - weight <= OPTIMAL_GAP * weight:
            self._is_proven = (
                self._problem.objective == "max_goodput"
                or plan.cost_usd_per_hour - cost_bound <= OPTIMAL_GAP * cost_bound
            )

    def _bounds(self, plan: IntegerPlan) -> tuple[float, float]:
        """What no plan that serves as much costs less than, and what none serves more than."""
        demand = self._demand
        missing = float(demand.missing_price @ plan.replicas_missing)
        everything = float(self._tables.priority @ demand.rate)
        if self._problem.objective == "min_cost":
            shortage = float(demand.shortage_price @ plan.shortage_rps)
            return whole_gpus(self._tables, self._bound - shortage - missing), everything
        fleet = sum(
            self._tables.stock[gpu_type]
            * max(
                mode.price + mode.watt_price * mode.power_w for mode in self._tables.modes if mode.gpu_type == gpu_type
            )
            for gpu_type in {mode.gpu_type for mode in self._tables.modes}
        )
        wanted = demand.shortage_price > 0.0
        price = float((demand.shortage_price / self._tables.priority)[wanted].max(initial=0.0))
        short = (self._bound - fleet - missing) / price if price > 0.0 else 0.0
        return 0.0, everything - max(0.0, short)


def _stated(
    problem: Problem,
    plan: Plan,
    cost_bound: float,
    *,
    served_bound: float,
    method: str = "nothing to serve",
    messages: tuple[str, ...] = (),
) -> tuple[JointSolution, SolveReport]:
    """The solution with bounds no tighter than the plan itself shows to be possible, and its report."""
    cost, weight = cost_usd_per_hour(problem, plan), served_weight(problem, plan)
    served_bound = max(float(served_bound), weight)
    is_goodput = problem.objective == "max_goodput"
    cost_bound = min(max(0.0, float(cost_bound)), cost)
    is_optimal = served_bound - weight <= OPTIMAL_GAP * weight and (
        is_goodput or cost - cost_bound <= OPTIMAL_GAP * cost_bound
    )
    report = SolveReport(
        technique=TECHNIQUE,
        method=method,
        status=SolveStatus.OPTIMAL if is_optimal else SolveStatus.FEASIBLE,
        objective=weight if is_goodput else cost,
        bound=served_bound if is_goodput else cost_bound,
        messages=messages,
    )
    solution = JointSolution(
        plan=plan,
        cost_bound=None if is_goodput else cost_bound,
        served_weight_bound=served_bound,
    )
    return solution, report
