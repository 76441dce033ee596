"""From a fractional plan to an integer one: fix what is integer, price again for what is left, fix again."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solvers.joint.heuristics.residual import (
    ResidualRelaxation,
    SearchContext,
    relax_rest,
)
from solvers.joint.heuristics.residual_cover import SmallPlan, solve_small_program
from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.carried import is_met, rest_of
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.relaxation.master_solution import Duals
from solvers.joint.relaxation.pricing import NarrowPricer

_INTEGRALITY = 1e-6
"""A count this near below an integer is taken for that integer."""
_NEARLY_ONE = 0.9
"""Next to integer parts, a fraction is rounded up only from here on: the rest is priced again first."""
_HASTY_ROUNDS = 1
"""Rounds of pricing in each step when time is short."""
_HASTY_STEP = 0.3
"""Share of the fractional GPUs that is rounded up at a time when time is short."""
_MIN_USE = 0.95
"""A column to which those just rounded up leave less than this share of its worth waits for the next step."""
_PROGRAM_COLUMNS = 400
"""A small integer program for what is left over gets this number of columns, by reduced cost."""
_MIN_WORTH = 1e-6
"""A request is worth at least this share of its shortage's price, so that services with dual 0 are covered too."""
_NARROW = 0.6
"""When no more than this share of the services is still wanted, pricing looks at them alone."""


class DiveEffort(NamedTuple):
    """How thorough a dive is."""

    rounds: int
    """Each step has at most this number of rounds of pricing."""
    min_gain: float
    """Rounds go on while each saves this share of what is left to pay."""
    columns: int
    """Each step begins with this number of columns."""
    few_gpus: float
    """When so few are left over, all plans of the columns at hand are looked through too."""
    spread: float
    """0: the largest fractions are fixed; more: chance has a say."""
    step: float = 0.2
    """At most this share of the GPUs that are left is rounded up at a time."""


class DiveContext(NamedTuple):
    """What all steps of one search share."""

    tools: SearchContext
    demand: CoverDemand
    duals: Duals
    """Duals of the relaxation of the entire demand."""
    rng: np.random.Generator
    is_over: Callable[[], bool]


def floors(counts: Reals, numbers: Sequence[int]) -> Counter[int]:
    """Column number → integer part of its count."""
    floor = np.floor(counts + _INTEGRALITY).astype(int).tolist()
    # Unary plus drops zeros, so that a plan names only columns that it uses.
    return +Counter(dict(zip(numbers, floor, strict=True)))


def used_columns(counts: Reals, numbers: Sequence[int]) -> list[int]:
    """The columns that a fractional plan uses."""
    return [
        number for number, count in zip(numbers, counts, strict=True) if count > 0.0
    ]


def complete_greedily(
    tools: SearchContext, demand: CoverDemand, duals: Duals, counts: Mapping[int, int]
) -> Counter[int]:
    """The counts and, one by one, the GPUs that earn most per USD of what is still wanted."""
    plan = Counter(counts)
    taken = tools.carried(plan)
    while True:
        rest = rest_of(demand, tools.tables, taken)
        best = -1 if is_met(rest) else _best_column(tools, rest, duals)
        if best < 0:
            return plan
        more = {best: _alike(tools, rest, best)}
        plan.update(more)
        taken = taken.plus(tools.carried(more))


def _best_column(tools: SearchContext, rest: CoverDemand, duals: Duals) -> int:
    """The column that earns most per USD; −1 where none earns anything."""
    # What the duals value at nothing must be covered too.
    rps = np.maximum(duals.rps, _MIN_WORTH * rest.shortage_price)
    presence = np.where(rest.fewest > 0.0, rest.missing_price, 0.0)
    return tools.pool.best_value(rest, rps, presence)


def _alike(tools: SearchContext, rest: CoverDemand, best: int) -> int:
    """GPUs of the column that is worth most of which each earns as much as the first; those of others earn no more."""
    column = tools.columns[best]
    gpu_type = tools.pool.gpu_type[best]
    service = column.service
    capacity = column.capacity
    # A first replica is worth more than a second one.
    if rest.fewest[service].any():
        return 1
    earns = (rest.rate[service] > 0.0) & (capacity > 0.0)
    # It is worth something, so that something earns.
    full = (rest.rate[service][earns] / capacity[earns]).min()
    return max(1, int(min(full, rest.most[service].min(), rest.stock[gpu_type])))


def dive(
    search: DiveContext,
    demand: CoverDemand,
    pace: DiveEffort,
    *,
    below: float,
    start: Sequence[int] = (),
    is_late: Callable[[], bool] = never,
) -> Counter[int] | None:
    """A plan for the demand, all of it or a rest, that costs less than `below`; None where the dive met none.

    `start`: columns to begin with, besides the cheapest at hand. `is_late`: from when on haste is better than being
    cut short.

    Where any plan will do (`below` infinite) and time is over, what is left is completed greedily.
    """
    return _Dive(search, demand, pace, below=below, is_late=is_late).run(start)


class _Dive:
    """How far one dive has come."""

    def __init__(
        self,
        search: DiveContext,
        demand: CoverDemand,
        pace: DiveEffort,
        *,
        below: float,
        is_late: Callable[[], bool],
    ) -> None:
        self._search = search
        self._tools = search.tools
        self._demand = demand
        self._pace = pace
        self._is_late = is_late
        self._duals = search.duals
        self._plan: Counter[int] = Counter()
        self._rest, self._spent = demand, 0.0
        self._best: Counter[int] | None = None
        self._below = below
        self._priced = len(demand.rate)
        self._is_hasty = False

    def run(self, start: Sequence[int]) -> Counter[int] | None:
        """Fix GPUs step by step until everything is served, or until that cannot be cheap enough any more."""
        while not self._search.is_over():
            part = self._relax(start)
            # No way of going on costs less than the relaxation of what is left.
            if self._spent + part.solution.objective >= self._below:
                return self._best
            self._look_through(part)
            fixed = _fixed(self._tools, self._rest, part, self._pace, self._search.rng)
            if not fixed:
                # No GPU is left that would serve more than it costs.
                return self._plan

            self._fix(fixed)
            if is_met(self._rest):
                return self._plan if self._spent < self._below else self._best
            start = used_columns(part.solution.counts, part.columns)
        if np.isinf(self._below):
            return complete_greedily(self._tools, self._demand, self._duals, self._plan)
        return self._best

    def _relax(self, start: Sequence[int]) -> ResidualRelaxation:
        """The relaxation of what is left, from these columns and the cheapest ones at hand."""
        self._narrow()
        self._is_hasty = self._is_hasty or self._is_late()
        if self._is_hasty:
            self._pace = self._pace._replace(rounds=_HASTY_ROUNDS, step=_HASTY_STEP)
        pool = self._tools.pool
        costs = pool.reduced_costs(self._rest, self._duals)
        part = relax_rest(
            self._tools,
            self._rest,
            [*start, *pool.cheapest(costs, self._pace.columns)],
            self._pace.rounds,
            min_gain=self._pace.min_gain,
            # Pricing stops when it becomes late, since the next step is hasty then; in a hasty step, at the end.
            is_over=self._search.is_over if self._is_hasty else self._is_late,
        )
        self._duals = part.solution.duals
        return part

    def _narrow(self) -> None:
        """Price only the services that are still wanted once these are few."""
        is_wanted = (self._rest.rate > 0.0) | (self._rest.fewest > 0.0)
        wanted = np.flatnonzero(is_wanted).astype(np.int32)
        # A narrow pricer has to make its cells again, so it must save enough to be worth that.
        if len(wanted) <= _NARROW * self._priced:
            tools = self._tools
            narrow = NarrowPricer(tools.tables, wanted, like=tools.pricer)
            self._tools = tools._replace(pricer=narrow)
            self._priced = len(wanted)

    def _look_through(self, part: ResidualRelaxation) -> None:
        """Where few GPUs are left over, look for the best way to place them all."""
        if part.solution.counts.sum() > self._pace.few_gpus:
            return
        last = finish(self._tools, self._rest, part, self._below - self._spent)
        if last is not None:
            self._best = self._plan + last.counts
            self._below = self._spent + last.cost

    def _fix(self, fixed: Counter[int]) -> None:
        self._plan.update(fixed)
        # Summed over the plan so far instead of step by step, so that rounding does not add up.
        taken = self._tools.carried(self._plan)
        self._rest = rest_of(self._demand, self._tools.tables, taken)
        self._spent = taken.cost


def plan_rest(
    tools: SearchContext, rest: CoverDemand, start: Iterable[int], below: float
) -> SmallPlan | None:
    """A plan for a residual demand, after one round of pricing; None where it seems that none costs less than `below`.

    start: columns to begin with.
    """
    part = relax_rest(tools, rest, start, 1)
    if part.solution.objective >= below:
        return None
    return finish(tools, rest, part, below)


def finish(
    tools: SearchContext, rest: CoverDemand, part: ResidualRelaxation, below: float
) -> SmallPlan | None:
    """The best of the plans from columns that are cheapest under the duals of the part."""
    duals = part.solution.duals
    # A GPU whose reduced cost is the gap or more is part of no plan that costs less than `below`.
    gap = below - part.solution.objective
    costs = tools.pool.reduced_costs(rest, duals)
    numbers = tools.pool.cheapest(costs, _PROGRAM_COLUMNS, below=gap)
    if np.isinf(below):
        # The search needs a cost to stay below: that of a greedy plan, which takes hardly any time.
        greedy = tools.carried(complete_greedily(tools, rest, duals, {}))
        if not is_met(rest_of(rest, tools.tables, greedy)):
            return None
        below = greedy.cost
    return solve_small_program(tools.pool, rest, duals, numbers, below=below)


def _fixed(
    tools: SearchContext,
    rest: CoverDemand,
    part: ResidualRelaxation,
    pace: DiveEffort,
    rng: np.random.Generator,
) -> Counter[int]:
    """Integer parts, and the largest fractions as long as each finds enough of its work undone."""
    counts = part.solution.counts
    gpus = FixedGpus(tools, rest, part.solution.duals.rps)
    for number, count in floors(counts, part.columns).items():
        gpus.take(number, count)

    for at in _largest_fractions(counts, pace, rng, has_floors=bool(gpus.plan)):
        # At least one GPU is fixed, whatever is left to do for it, so that the dive goes on.
        if not gpus.plan or gpus.use(part.columns[at]) >= _MIN_USE:
            gpus.take(part.columns[at], 1)
    return gpus.plan


def _largest_fractions(
    counts: Reals, pace: DiveEffort, rng: np.random.Generator, *, has_floors: bool
) -> list[int]:
    """Positions of the fractions that may be rounded up, the largest first.

    Next to whole parts only those that are nearly whole.
    """
    fractions = counts - np.floor(counts + _INTEGRALITY)
    limit = max(1, int(pace.step * fractions.sum()))
    if has_floors:
        fractions[fractions < _NEARLY_ONE] = 0.0
    if pace.spread > 0.0:
        fractions *= 1.0 - pace.spread * rng.random(len(fractions))
    # A stable order: of equal fractions the column that was added first goes first.
    order = np.argsort(-fractions, kind="stable")[:limit]
    largest: list[int] = order[fractions[order] > _INTEGRALITY].tolist()
    return largest


class FixedGpus:
    """GPUs taken one after the other, with what they leave to do."""

    def __init__(self, tools: SearchContext, rest: CoverDemand, rps: Reals) -> None:
        """`rps`: (S,) USD per hour, what a request of each service is worth."""
        self._columns = tools.columns
        self._gpu_type = tools.pool.gpu_type
        self._wanted = rest.rate
        self._rps = rps
        self._rate = rest.rate.copy()
        self._stock = rest.stock.copy()
        self._most = rest.most.copy()
        self.plan: Counter[int] = Counter()

    def take(self, number: int, count: int) -> None:
        """Take `count` GPUs of a column."""
        column = self._columns[number]
        left = self._rate[column.service] - count * column.capacity
        self._rate[column.service] = np.maximum(left, 0.0)
        self._stock[self._gpu_type[number]] -= count
        self._most[column.service] -= count
        self.plan[number] += count

    def use(self, number: int) -> float:
        """Part of a column's worth that is left to do; 0 where it is not possible any more."""
        column = self._columns[number]
        has_gpu = self._stock[self._gpu_type[number]] >= 1.0
        if not has_gpu or (self._most[column.service] < 1.0).any():
            return 0.0
        prices = self._rps[column.service]
        served = np.minimum(column.capacity, self._wanted[column.service])
        served_now = np.minimum(column.capacity, self._rate[column.service])
        worth = float(prices @ served)
        # A column that is worth nothing cannot lose any of its worth.
        return float(prices @ served_now) / worth if worth > 0.0 else 1.0
