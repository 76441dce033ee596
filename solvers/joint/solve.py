"""Solve a Problem jointly: column generation, then whole GPUs, with a proven bound next to the plan."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from solvers.joint.heuristics.fluid import is_fluid, is_too_fine, solve_fluid
from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.patterns.carried import is_met
from solvers.joint.patterns.deadline import Deadline
from solvers.joint.patterns.decode import decode
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.power_budget import WattSearch
from solvers.joint.relaxation.column_generation import Relaxation
from solvers.joint.replan.warm_start import WarmStart
from solvers.joint.search import CHANGED, JointSearch
from solvers.joint.search_state import MIN_SAVING_USD_PER_HOUR, RELAXATION_SHARE
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
    problem: Problem,
    budget: Budget,
    *,
    warm: WarmStart | None = None,
) -> tuple[JointSolution, SolveReport]:
    """The best plan found within the budget; what runs now is a place to begin at, and has no other part in it.

    Optimal means proven to `OPTIMAL_GAP`, both in what is served and, under `min_cost`, in cost; otherwise the status
    is feasible: a plan always exists. `warm` must fit the problem; new columns and duals go into it.
    """
    warm = warm if warm is not None else WarmStart(problem)
    if problem.power_budget_w is not None:
        return _solve_within(problem, budget, warm)
    demand = warm.demand(problem)
    running = warm.running(problem)
    with threads(budget.threads) as executor:
        tools, deadline = _tools(problem, budget, warm, executor)
        if is_met(demand):
            plan = decode(problem, tools.tables, tools.columns, {}, policy=TECHNIQUE)
            return state_solution(problem, plan, 0.0, served_bound=0.0)
        fluid = _solve_fluid(problem, tools, demand, deadline)
        if fluid is not None and _is_enough(fluid, tools.tables):
            return fluid
        search = JointSearch(problem, tools, demand, deadline)
        start = [*running, *warm.cheapest(demand)]
        solved = _remember(warm, search.run(start, budget.seed, executor))
    return solved if fluid is None else _cheaper(fluid, solved)


def _tools(
    problem: Problem,
    budget: Budget,
    warm: WarmStart,
    executor: Executor | None,
) -> tuple[SearchContext, Deadline]:
    """What a search works with, and its end, at which pricing stops even in the middle of a round."""
    tools = warm.tools(problem, executor)
    deadline = Deadline(budget, tools.tables)
    pricer = tools.pricer.on(executor, is_late=deadline.is_late)
    return tools._replace(pricer=pricer), deadline


def _remember(
    warm: WarmStart,
    answer: tuple[JointSolution, SolveReport, Relaxation],
) -> tuple[JointSolution, SolveReport]:
    """The solution and its report; duals and prices go into the warm start, for the next plan to begin with."""
    solution, report, relaxation = answer
    warm.duals, warm.prices = relaxation.solution.duals, solution.prices
    return solution, report


def _is_enough(fluid: tuple[JointSolution, SolveReport], tables: Tables) -> bool:
    """Whether no search need follow: nothing is left to gain, or it would get nowhere on steps so small."""
    return fluid[1].status is SolveStatus.OPTIMAL or is_too_fine(tables)


def _solve_within(
    problem: Problem,
    budget: Budget,
    warm: WarmStart,
) -> tuple[JointSolution, SolveReport]:
    """As `solve`, under a power budget; what is proven without it holds with it all the more."""
    free = replace(problem, power_budget_w=None)
    with threads(budget.threads) as executor:
        demand, running = warm.demand(problem), warm.running(problem)
        tools, deadline = _tools(problem, budget, warm, executor)
        search = WattSearch(problem, tools, demand, deadline)

        def plan_at(watt_price: float) -> Plan:
            if watt_price <= 0.0:
                # The budget seems to be no hindrance, so the tables and columns at hand serve that solve too.
                return solve(free, _part(budget, _FREE_SHARE), warm=warm)[0].plan
            # Another energy price changes what columns cost: these tables cannot be shared.
            dearer = _dearer(free, watt_price)
            return solve(dearer, _part(budget, _PRICED_SHARE))[0].plan

        start = [*running, *warm.cheapest(demand)]
        return _remember(warm, search.run_within(start, budget.seed, plan_at))


def _part(budget: Budget, share: float) -> Budget:
    """That share of what is left of a budget."""
    elapsed_s = budget.elapsed()
    seconds = elapsed_s + share * max(0.0, budget.seconds - elapsed_s)
    return replace(budget, seconds=seconds, work=share * budget.work)


def _dearer(problem: Problem, watt_price: float) -> Problem:
    """The problem where a watt costs `watt_price` USD per hour more."""
    price = problem.energy_price_usd_per_kwh + _W_PER_KW * watt_price
    return replace(problem, energy_price_usd_per_kwh=price)


def _solve_fluid(
    problem: Problem,
    tools: SearchContext,
    demand: CoverDemand,
    deadline: Deadline,
) -> tuple[JointSolution, SolveReport] | None:
    """A plan that serves everything, of a problem in which replicas contend for SM steps alone; None of any other."""
    tables = tools.tables
    columns = tools.columns
    if problem.objective != "min_cost" or not is_fluid(tables, demand):
        return None
    is_over = deadline.part(RELAXATION_SHARE)
    found = solve_fluid(tables, demand, columns, is_over=is_over)
    if found is None:
        return None
    plan = decode(problem, tables, columns, found.counts, policy=TECHNIQUE)
    everything = float(tables.priority @ demand.rate)
    solution, report = state_solution(
        problem,
        plan,
        found.bound,
        served_bound=everything,
        method="whole GPUs, filled",
    )
    return replace(solution, found_s=deadline.elapsed_s()), report


def _cheaper(
    first: tuple[JointSolution, SolveReport],
    second: tuple[JointSolution, SolveReport],
) -> tuple[JointSolution, SolveReport]:
    """The second, unless the first, which serves everything, does so for less."""
    costs = [report.objective for _, report in (first, second)]
    assert costs[0] is not None and costs[1] is not None, "both are stated"
    # The margin decides for the search where both cost the same: its bound and prices are the better ones.
    is_cheaper = costs[0] < costs[1] - MIN_SAVING_USD_PER_HOUR
    return first if second[0].plan.unserved or is_cheaper else second


def estimate(
    problem: Problem,
    plan: Plan,
    budget: Budget,
    warm: WarmStart,
) -> tuple[JointSolution, SolveReport]:
    """What the cheapest rounds of column generation prove of a plan that follows every rule, and their prices."""
    demand = warm.demand(problem)
    with threads(budget.threads) as executor:
        if is_met(demand):
            return state_solution(problem, plan, 0.0, served_bound=0.0)
        # Unlike in a solve, pricing is not stopped inside a round: rounds are short, and part of one proves nothing.
        tools = warm.tools(problem, executor)
        deadline = Deadline(budget, tools.tables)
        search = JointSearch(problem, tools, demand, deadline)
        return _remember(warm, search.judge(plan, warm.cheapest(demand)))


def unproven(
    problem: Problem,
    plan: Plan,
    cost_usd_per_hour: float,
    warm: WarmStart,
) -> tuple[JointSolution, SolveReport]:
    """A plan of that cost with the prices of the last relaxation, and nothing proven of it."""
    weight = sum(
        service.priority * service.arrival_rate_rps for service in problem.services
    )
    solution = JointSolution(
        plan=plan,
        cost_bound=None,
        served_weight_bound=weight,
        prices=warm.prices,
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
