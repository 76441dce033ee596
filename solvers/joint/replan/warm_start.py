"""Warm state: what stays the same while only rates, stock, priorities and the running plan change.

Tables, the pricer's cells with their multipliers, and columns with what they carry depend on none of these, but for one
thing: candidates that only higher rates could need are left out of the tables. So tables that are to be used again are
made for higher rates, and serve as long as no rate is above those: many times the present ones where that adds few
candidates, which is so unless replicas are large for the rates.

A process keeps a few warm states, each under a token that the policy's memory carries. A token that the process does
not know (it was restarted, or the state was dropped) means a cold start: the plan may be another one, never a worse
checked one. The same problem with the same memory after the same plans in the same process gives the same plan.
"""

import itertools
import os
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.patterns.columns import Columns, single_patterns
from solvers.joint.patterns.formulation import (
    CoverDemand,
    cheapest_rps,
    make_demand,
    priced_problem,
)
from solvers.joint.patterns.running import Candidates, ColumnKinds
from solvers.joint.patterns.tables import Tables, make_tables, stock_of, tables_at
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.master_solution import Duals
from solvers.joint.relaxation.pricing import Pricer
from solvers.types.outcome import Prices
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import GpuType

HEADROOM = 1.5
"""Rates may grow by this factor at least before tables are made again,"""
WIDE_HEADROOM = 6.0
"""or by this one where that takes no more candidates than `_MORE_CANDIDATES` times as many."""
_MORE_CANDIDATES = 1.1
MAX_STATES = 4
"""States in one process: the control loop needs one, another one where GPUs are short, and previews leave theirs."""
_CHEAPEST = 600
MAX_COLUMNS = 60_000
_KEPT_COLUMNS = 30_000
"""A state with more than MAX_COLUMNS keeps this number: those that are cheapest under the last duals."""


class WarmStart:
    """One fleet's tables, columns, candidates and cells. Not for two threads at once."""

    def __init__(self, problem: Problem, *, has_headroom: bool = False) -> None:
        """has_headroom: to be used for higher rates too."""
        self._made_for = problem
        # Rates that rise within the headroom need candidates that the present rates do not.
        self._tables, self.headroom = (
            _roomy_tables(problem)
            if has_headroom
            else (make_tables(priced_problem(problem)), 1.0)
        )
        self._pricer = Pricer(self._tables)
        self.columns = Columns(self._tables)
        self.singles = self.columns.add(
            single_patterns(self._tables, self._tables.rate),
        )
        self.pool = ColumnPool(self._tables, self.columns)
        self.candidates = Candidates(problem, self._tables)
        self.column_kinds = ColumnKinds(self.candidates, self._tables)
        self.duals: Duals | None = None
        """Duals of the last relaxation."""
        self.prices: Prices | None = None
        """The same, for people."""

    def fits(self, problem: Problem) -> bool:
        """Whether the state serves the problem: all is the same but rates within the headroom and what they leave."""
        mine = self._made_for
        # What is compared fast comes first: points and the running plan are large.
        return (
            mine.objective == problem.objective
            and mine.energy_price_usd_per_kwh == problem.energy_price_usd_per_kwh
            and mine.max_replicas_per_gpu == problem.max_replicas_per_gpu
            and mine.capacity_law == problem.capacity_law
            and _same_types(mine.gpu_types, problem.gpu_types)
            and _same_services(mine.services, problem.services)
            and all(
                now.arrival_rate_rps <= self.headroom * before.arrival_rate_rps
                for now, before in zip(problem.services, mine.services, strict=True)
            )
            and mine.points == problem.points
            and self._has_all_that_runs(problem)
        )

    def tables(self, problem: Problem) -> Tables:
        """The tables with the problem's rates, priorities and stock."""
        return self._tables._replace(
            rate=np.array([service.arrival_rate_rps for service in problem.services]),
            priority=np.array([service.priority for service in problem.services]),
            stock=stock_of(problem),
        )

    def tools(self, problem: Problem, executor: Executor | None) -> SearchContext:
        """What a search for the problem works with; pricing runs on the executor's threads."""
        self.pool.sync()
        return SearchContext(
            self.tables(problem),
            self._pricer.on(executor),
            self.columns,
            self.pool,
        )

    def demand(self, problem: Problem) -> CoverDemand:
        """What the problem asks for."""
        tables = self.tables(problem)
        singles = (self.columns[number] for number in self.singles)
        return make_demand(problem, tables, cheapest_rps(problem, tables, singles))

    def cheapest(self, demand: CoverDemand, most: int = _CHEAPEST) -> list[int]:
        """Numbers of the columns that are cheapest for a demand under the duals of the last relaxation."""
        if self.duals is None:
            return []
        return self.pool.cheapest(self.pool.reduced_costs(demand, self.duals), most)

    def trim(
        self,
        problem: Problem,
        *,
        most: int = MAX_COLUMNS,
        kept: int = _KEPT_COLUMNS,
    ) -> None:
        """Where there are too many, forget the columns that are dearest for the problem; others change their numbers.

        The best single replicas stay in any case.
        """
        if len(self.columns) <= most:
            return
        # Pool and kinds must know all columns before they are asked for some of them.
        self.settle()
        most = len(self.singles) + kept
        numbers = list(
            dict.fromkeys([*self.singles, *self.cheapest(self.demand(problem), most)]),
        )[:most]
        self.columns = self.columns.taken(numbers)
        self.pool = self.pool.taken(self.columns, numbers)
        self.column_kinds = self.column_kinds.taken(numbers)
        self.singles = list(range(len(self.singles)))

    def settle(self) -> None:
        """Take in the columns that were made since, so that the next plan need not."""
        self.pool.sync()
        self.column_kinds.of(self.columns)

    def running(self, problem: Problem) -> dict[int, int]:
        """Column number → running GPUs; without those that run anything that is no candidate (any more)."""
        current = problem.current
        patterns = self.candidates.patterns_of(current) if current is not None else {}
        self.columns.add(patterns)
        self.pool.sync()
        return {
            self.columns.number(pattern): count for pattern, count in patterns.items()
        }

    def _has_all_that_runs(self, problem: Problem) -> bool:
        """Whether every running GPU is a pattern, or was none either when the tables were made with it running."""
        if problem.current is None or problem.current == self._made_for.current:
            return True
        known = self.candidates.patterns_of(problem.current).total()
        return known == sum(gpu.count for gpu in problem.current.gpus)


def _roomy_tables(problem: Problem) -> tuple[Tables, float]:
    """Tables for higher rates, and how many times as high."""
    narrow, wide = tables_at(priced_problem(problem), (HEADROOM, WIDE_HEADROOM))
    if _candidates(wide) <= _MORE_CANDIDATES * _candidates(narrow):
        return wide, WIDE_HEADROOM
    return narrow, HEADROOM


def _candidates(tables: Tables) -> int:
    return sum(len(mode.service) for mode in tables.modes)


def _same_types(mine: tuple[GpuType, ...], others: tuple[GpuType, ...]) -> bool:
    return len(mine) == len(others) and all(
        one == replace(other, count=one.count)
        for one, other in zip(mine, others, strict=True)
    )


def _same_services(
    mine: tuple[ServiceDemand, ...],
    others: tuple[ServiceDemand, ...],
) -> bool:
    return len(mine) == len(others) and all(
        one
        == replace(other, arrival_rate_rps=one.arrival_rate_rps, priority=one.priority)
        for one, other in zip(mine, others, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The warm states of this process by token, the one used last at the end."""

    states: OrderedDict[str, WarmStart]
    numbers: "itertools.count[int]"


_KEPT = _Kept(OrderedDict(), itertools.count(1))


def load_warm_start(token: str | None, problem: Problem) -> WarmStart | None:
    """The state of that token, which is then forgotten; None where there is none that serves the problem."""
    # Taken out, not only looked up: two calls at once must not work on one state.
    warm = _KEPT.states.pop(token, None) if token is not None else None
    if warm is None or not warm.fits(problem):
        return None
    warm.trim(problem)
    return warm


def store_warm_start(warm: WarmStart) -> str:
    """Keep a state for the next plan; its token. The states that were not used for longest go."""
    warm.settle()
    # With the process id: a token of another process must not find a state of this one.
    token = f"{os.getpid()}-{next(_KEPT.numbers)}"
    _KEPT.states[token] = warm
    while len(_KEPT.states) > MAX_STATES:
        _KEPT.states.popitem(last=False)
    return token
