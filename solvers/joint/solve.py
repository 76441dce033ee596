"""Solve a Problem jointly: column generation, then whole GPUs, with a proven bound beside the plan."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from solvers.joint.heuristics.fluid import is_fluid, is_too_fine, solve_fluid
from solvers.joint.patterns.columns import Columns
from solvers.joint.patterns.deadline import Deadline
from solvers.joint.patterns.decode import decode
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.power_budget import WattSearch
from solvers.joint.relaxed_search import MIN_SAVING_USD_PER_HOUR, RELAXATION_SHARE
from solvers.joint.replan.warm_start import WarmStart
from solvers.joint.search import CHANGED, JointSearch
from solvers.joint.solution import TECHNIQUE, JointSolution, state_solution
from solvers.laws.cost import served_weight
from solvers.types.outcome import Budget, SolveReport, SolveStatus
from solvers.types.plan import Plan
from solvers.types.problem import Problem

_FREE_SHARE = 0.7
"""A plan without a limit of watts may take this share of the time left, where the limit seems to be no hindrance."""
_PRICED_SHARE = 0.4
"""A plan at a price of watts may take this share of what is left then."""
_W_PER_KW = 1000.0


def solve(
    problem: Problem, budget: Budget, *, warm: WarmStart | None = None
) -> tuple[JointSolution, SolveReport]:
    """The best plan found within the budget; what runs now is a place to begin at, and has no other part in it.

    Optimal means proven to `OPTIMAL_GAP`, both in what is served and, under `min_cost`, in cost; otherwise the status
    is feasible: a plan always exists. `warm` must fit the problem; new columns and duals go into it.
    """
    if problem.power_budget_w is not None:
        return _solve_within(
            problem, budget, warm if warm is not None else WarmStart(problem)
        )
    warm = warm if warm is not None else WarmStart(problem)
    demand, running = warm.demand(problem), warm.running(problem)
    with threads(budget.threads) as executor:
        tools = warm.tools(problem, executor)
        deadline = Deadline(budget, tools.tables)
        tools = tools._replace(
            pricer=tools.pricer.on(executor, is_late=deadline.is_late)
        )
        if not demand.rate.any() and not demand.fewest.any():
            return state_solution(
                problem,
                decode(problem, tools.tables, tools.columns, {}, policy=TECHNIQUE),
                0.0,
                served_bound=0.0,
            )
        fluid = _solve_fluid(problem, tools.tables, demand, tools.columns, deadline)
        if fluid is not None and (
            fluid[1].status is SolveStatus.OPTIMAL or is_too_fine(tools.tables)
        ):
            return fluid
        search = JointSearch(
            problem, tools.tables, demand, tools.pricer, tools.columns, deadline
        )
        start = [*running, *warm.cheapest(demand)]
        solution, report, relaxation = search.run(start, budget.seed, executor)
    warm.duals, warm.prices = relaxation.solution.duals, solution.prices
    return (solution, report) if fluid is None else _cheaper(fluid, (solution, report))


def _solve_within(
    problem: Problem, budget: Budget, warm: WarmStart
) -> tuple[JointSolution, SolveReport]:
    """As `solve`, under a power budget; what is proven without it holds with it all the more."""
    free = replace(problem, power_budget_w=None)
    with threads(budget.threads) as executor:
        demand, running = warm.demand(problem), warm.running(problem)
        tools = warm.tools(problem, executor)
        deadline = Deadline(budget, tools.tables)
        pricer = tools.pricer.on(executor, is_late=deadline.is_late)
        search = WattSearch(
            problem, tools.tables, demand, pricer, tools.columns, deadline
        )

        def plan_at(watt_price: float) -> Plan:
            is_same = watt_price <= 0.0
            part = _part(budget, _FREE_SHARE if is_same else _PRICED_SHARE)
            return solve(
                free if is_same else _dearer(free, watt_price),
                part,
                warm=warm if is_same else None,
            )[0].plan

        found, step, relaxation = search.run_within(
            [*running, *warm.cheapest(demand)], budget.seed, plan_at
        )
    warm.duals, warm.prices = relaxation.solution.duals, found.prices
    return found, step


def _part(budget: Budget, share: float) -> Budget:
    """That share of what is left of a budget."""
    elapsed_s = budget.elapsed()
    seconds = elapsed_s + share * max(0.0, budget.seconds - elapsed_s)
    return replace(budget, seconds=seconds, work=share * budget.work)


def _dearer(problem: Problem, watt_price: float) -> Problem:
    """The problem where a watt costs so many USD per hour more."""
    price = problem.energy_price_usd_per_kwh + _W_PER_KW * watt_price
    return replace(problem, energy_price_usd_per_kwh=price)


def _solve_fluid(
    problem: Problem,
    tables: Tables,
    demand: CoverDemand,
    columns: Columns,
    deadline: Deadline,
) -> tuple[JointSolution, SolveReport] | None:
    """A plan that serves everything, of a problem in which replicas contend for SM steps alone; None of any other."""
    if problem.objective != "min_cost" or not is_fluid(tables, demand):
        return None
    found = solve_fluid(
        tables, demand, columns, is_over=deadline.part(RELAXATION_SHARE)
    )
    if found is None:
        return None
    plan = decode(problem, tables, columns, found.counts, policy=TECHNIQUE)
    everything = float(tables.priority @ demand.rate)
    solution, report = state_solution(
        problem, plan, found.bound, served_bound=everything, method="whole GPUs, filled"
    )
    return replace(solution, found_s=deadline.elapsed_s()), report


def _cheaper(
    first: tuple[JointSolution, SolveReport], second: tuple[JointSolution, SolveReport]
) -> tuple[JointSolution, SolveReport]:
    """The second, unless the first, which serves everything, does so for less."""
    costs = [report.objective for _, report in (first, second)]
    assert costs[0] is not None and costs[1] is not None, "both are stated"
    is_cheaper = costs[0] < costs[1] - MIN_SAVING_USD_PER_HOUR
    return first if second[0].plan.unserved or is_cheaper else second


def estimate(
    problem: Problem, plan: Plan, budget: Budget, warm: WarmStart
) -> tuple[JointSolution, SolveReport]:
    """What the cheapest rounds of column generation prove of a plan that follows every rule, and their prices."""
    demand = warm.demand(problem)
    with threads(budget.threads) as executor:
        tools = warm.tools(problem, executor)
        search = JointSearch(
            problem,
            tools.tables,
            demand,
            tools.pricer,
            tools.columns,
            Deadline(budget, tools.tables),
        )
        if not demand.rate.any() and not demand.fewest.any():
            return state_solution(problem, plan, 0.0, served_bound=0.0)
        solution, report, relaxation = search.judge(plan, warm.cheapest(demand))
    warm.duals, warm.prices = relaxation.solution.duals, solution.prices
    return solution, report


def unproven(
    problem: Problem, plan: Plan, cost_usd_per_hour: float, warm: WarmStart
) -> tuple[JointSolution, SolveReport]:
    """A plan of that cost with the prices of the last relaxation, and nothing proven of it."""
    weight = sum(
        service.priority * service.arrival_rate_rps for service in problem.services
    )
    solution = JointSolution(
        plan=plan, cost_bound=None, served_weight_bound=weight, prices=warm.prices
    )
    is_goodput = problem.objective == "max_goodput"
    report = SolveReport(
        technique=TECHNIQUE,
        method=CHANGED,
        status=SolveStatus.FEASIBLE,
        objective=served_weight(problem, plan) if is_goodput else cost_usd_per_hour,
    )
    return solution, report


@contextmanager
def threads(count: int) -> Iterator[Executor | None]:
    """Threads to price on; None where one is all there is."""
    if count <= 1:
        yield None
        return
    with ThreadPoolExecutor(count) as pool:
        yield pool
