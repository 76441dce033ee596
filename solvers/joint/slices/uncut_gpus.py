"""Whole GPUs next to those that are cut: their patterns by column generation, under prices that both have a part in.

The rows of demand, replicas and watts are the same for whole GPUs and for slices, so that their duals price both. A
slice needs no pattern: all of its choices are variables from the start. Patterns are made as they are needed, as in
`solvers.joint.relaxation`, until none is worth more than its GPU costs.

Bound (Lasdon 1970): with W_t the most that a pattern of type t is worth beyond its GPU, the relaxation over all
patterns costs at least that over those at hand less Σ_t N_t · max(0, W_t). N_t is the count of a type, or what a plan
of known cost could pay for.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from solvers.joint.kernels.types import Effort, Reals
from solvers.joint.patterns.decode import patterns_of
from solvers.joint.relaxation.column_generation import PHASES, price, thresholds
from solvers.joint.relaxation.master_solution import Duals
from solvers.joint.replan.warm_start import WarmStart
from solvers.joint.slices.program import SliceProgram
from solvers.joint.slices.solve import PartBound, RowName, relax
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem

_RELAX_SHARE = 0.7
"""Patterns are made until this part of the budget is used up; the rest is for whole numbers."""
_MAX_ROUNDS = 300
_MIN_RPS = 1e-9
_SLOW = 1e-4
"""A round that lowers the relaxation by less than this part lets pricing try harder."""


class UncutGpus:
    """The whole GPUs of a problem, whose patterns become columns of a program."""

    def __init__(self, problem: Problem, warm: WarmStart, budget: Budget) -> None:
        """`problem`: without the GPUs that can only be cut; `warm` fits it."""
        self._problem, self._budget = problem, budget
        self._demand = warm.demand(problem)
        self._tools = warm.tools(problem, None)
        self._singles = warm.singles

    def added_to(
        self, program: SliceProgram, alone: Plan
    ) -> tuple[SliceProgram, PartBound]:
        """The program with the patterns that it needs, and what its relaxation proves.

        `alone`: a plan that cuts no GPU, whose patterns are good in integers too.
        """
        found = patterns_of(self._problem, self._tools.tables, alone)
        numbers = dict.fromkeys([*self._singles, *self._tools.columns.numbered(found)])
        phase, before = 0, np.inf
        for _ in range(_MAX_ROUNDS):
            program = self._with(program, numbers)
            bound, prices = relax(program)
            excess, patterns = self._priced(prices, PHASES[phase].effort)
            bound = bound._replace(excess=excess)
            # Pricing finds the best patterns again where they are at hand already.
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

    def _with(self, program: SliceProgram, numbers: Iterable[int]) -> SliceProgram:
        columns = tuple(self._tools.columns[number] for number in numbers)
        return replace(program, tables=self._tools.tables, columns=columns)

    def _priced(
        self, prices: Mapping[RowName, float], effort: Effort
    ) -> tuple[tuple[float, ...], list[int]]:
        """The excess of each type under the prices, and the numbers of patterns that are worth their GPUs."""
        tables = self._tools.tables
        duals = self._duals(prices)
        priced = price(tables, self._tools.pricer, self._demand, duals, effort)
        beyond = np.array([each.bound for each in priced]) - thresholds(tables, duals)
        excess = np.zeros(len(self._problem.gpu_types))
        np.maximum.at(excess, tables.mode_types, beyond)
        patterns = [pattern for each in priced for pattern in each.patterns]
        return tuple(excess.tolist()), list(
            self._tools.columns.numbered(Counter(patterns))
        )

    def _duals(self, prices: Mapping[RowName, float]) -> Duals:
        """Those of the rows that whole GPUs have a part in."""
        names = [each.name for each in self._problem.services]
        types = [each.name for each in self._problem.gpu_types]
        # The rows of demand are in parts of the rate; without a rate there is none, and its price is 0.
        demand = np.maximum(0.0, _each(prices, "demand", names))
        return Duals(
            rps=demand / np.maximum(_MIN_RPS, self._demand.rate),
            presence=_each(prices, "min", names) + _each(prices, "max", names),
            stock=np.minimum(0.0, _each(prices, "stock", types)),
            # Only bounds that are not asked for here would need it.
            replicas_value=0.0,
            watt_price=max(0.0, -prices.get(("watts",), 0.0)),
        )


def _each(prices: Mapping[RowName, float], kind: str, names: Sequence[str]) -> Reals:
    """The prices of a kind of rows; 0 of those that there are not."""
    return np.array([prices.get((kind, name), 0.0) for name in names])
