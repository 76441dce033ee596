"""Whole GPUs beside those that are cut: their patterns by column generation, under prices that both have a part in.

The rows of demand, replicas and watts are the same for whole GPUs and for slices, so that their duals price both. A
slice needs no pattern: all of its choices are variables from the start. Patterns are made as they are needed, as in
`solvers.joint.relaxation`, until none is worth more than its GPU costs.

Bound (Lasdon 1970): with W_t the most that a pattern of type t is worth beyond its GPU, the relaxation over all
patterns costs at least that over those at hand less Σ_t N_t · max(0, W_t). N_t is the count of a type, or what a plan
of known cost could pay for.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Effort, Reals
from solvers.joint.patterns.decode import patterns_of
from solvers.joint.relaxation.column_generation import PHASES, price, thresholds
from solvers.joint.relaxation.master_solution import Duals
from solvers.joint.replan.warm_start import WarmStart
from solvers.joint.slices.program import SliceProgram, costs, whole_types
from solvers.joint.slices.solve import SliceDuals, relax
from solvers.joint.solve import solve
from solvers.types.outcome import Budget
from solvers.types.problem import Problem

_ALONE_SHARE = 0.3
"""Part of the budget in which the whole GPUs are planned alone, for patterns that are good in whole numbers too."""
_RELAX_SHARE = 0.7
"""Patterns are made until this part of the budget is used up; the rest is for whole numbers."""
_SHORTAGE_OVER_COST = 10.0
"""To leave a service out costs so many times what the cheapest choice would that serves it alone."""
_MAX_ROUNDS = 300
_SLOW = 1e-4
"""A round that lowers the relaxation by less than this part lets pricing try harder."""


class WholeBound(NamedTuple):
    """What the relaxation proves of all plans that serve everything."""

    relaxed: float
    """USD per hour of the relaxation over the patterns at hand."""
    excess: tuple[float, ...]
    """By type of whole GPU: the most that another pattern of it may be worth beyond its cost, USD per hour."""

    def least(self, problem: Problem, known_usd_per_hour: float) -> float:
        """USD per hour that no plan undercuts, where one is known that costs so much."""
        types = whole_types(problem)
        bound = self.relaxed
        for gpu_type, excess in zip(types, self.excess, strict=True):
            most = known_usd_per_hour / gpu_type.price_usd_per_hour
            if gpu_type.count is not None:
                most = min(most, gpu_type.count)
            # Nothing times infinity is nothing here.
            bound -= most * excess if excess > 0.0 else 0.0
        return bound


class WholeGpus:
    """The whole GPUs of a problem, whose patterns become columns of a program."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        # What runs now would only make candidates of rows that nothing needs.
        self._problem = replace(problem, gpu_types=whole_types(problem), current=None)
        self._budget = budget
        self._warm = WarmStart(self._problem)
        self._demand = self._warm.demand(self._problem)
        self._tools = self._warm.tools(self._problem, None)

    def added_to(self, program: SliceProgram) -> tuple[SliceProgram, WholeBound]:
        """The program with the patterns that it needs, and what its relaxation proves."""
        numbers = dict.fromkeys([*self._warm.singles, *self._alone()])
        phase, before = 0, np.inf
        for _ in range(_MAX_ROUNDS):
            program = self._with(program, numbers)
            objective, shift = self._objective(program)
            found, duals = relax(program, objective)
            effort = PHASES[phase].effort
            excess, patterns = self._priced(duals, effort)
            bound = WholeBound(float(found.fun) + shift, excess)
            fresh = [number for number in patterns if number not in numbers]
            is_last = phase == len(PHASES) - 1
            is_over = self._budget.elapsed() >= _RELAX_SHARE * self._budget.seconds
            if is_over or (is_last and not fresh):
                break
            numbers.update(dict.fromkeys(fresh))
            if not is_last and bound.relaxed > before - _SLOW * abs(before):
                phase += 1
            before = bound.relaxed
        return program, bound

    def _alone(self) -> Iterable[int]:
        """The patterns of a plan that uses nothing else."""
        part = replace(self._budget, seconds=_ALONE_SHARE * self._budget.seconds)
        solution, _ = solve(self._problem, part, warm=self._warm)
        tables = self._tools.tables
        return self._tools.columns.numbered(
            patterns_of(self._problem, tables, solution.plan)
        )

    def _with(self, program: SliceProgram, numbers: Iterable[int]) -> SliceProgram:
        columns = tuple(self._tools.columns[number] for number in numbers)
        return replace(program, tables=self._tools.tables, columns=columns)

    def _objective(self, program: SliceProgram) -> tuple[Reals, float]:
        """Costs, with a price on what is not served, and what that price adds where nothing is."""
        factors = costs(program)
        problem = program.problem
        dearest = max(each.price_usd_per_hour for each in problem.gpu_types)
        rates = np.array([each.arrival_rate_rps for each in problem.services])
        if problem.objective == "max_goodput":
            left_out = rates * [each.priority for each in problem.services]
        else:
            # A GPU of the dearest type for each choice is more than any plan would need.
            least = np.full(len(rates), np.inf)
            index = {each.name: at for at, each in enumerate(problem.services)}
            for choice in program.choices:
                at = index[choice.service.name]
                least[at] = min(least[at], 1.0 / choice.capacity_rps)
            for column in program.columns:
                able = column.capacity > 0.0
                own = column.service[able]
                least[own] = np.minimum(least[own], 1.0 / column.capacity[able])
            needed = np.maximum(1.0, rates * np.where(np.isinf(least), 0.0, least))
            left_out = _SHORTAGE_OVER_COST * dearest * needed
        factors[program.served_at : program.missing_at] = -left_out
        factors[program.missing_at :] = _SHORTAGE_OVER_COST * dearest
        return factors, float(left_out.sum())

    def _priced(
        self, prices: SliceDuals, effort: Effort
    ) -> tuple[tuple[float, ...], list[int]]:
        """The excess of each type under the prices, and the numbers of patterns that are worth their GPUs."""
        types = self._problem.gpu_types
        tables, columns = self._tools.tables, self._tools.columns
        duals = Duals(
            rps=prices.rps,
            presence=prices.presence,
            stock=np.array([prices.stock.get(each.name, 0.0) for each in types]),
            # Only bounds that are not asked for here would need it.
            replicas_value=0.0,
            watt_price=prices.watt,
        )
        priced = price(tables, self._tools.pricer, self._demand, duals, effort)
        beyond = np.array([each.bound for each in priced]) - thresholds(tables, duals)
        excess = tuple(
            float(beyond[tables.mode_types == at].max(initial=0.0))
            for at in range(len(types))
        )
        patterns = [pattern for each in priced for pattern in each.patterns]
        columns.add(patterns)
        return excess, [columns.number(pattern) for pattern in patterns]
